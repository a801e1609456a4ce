"""Describe a run and a head in words: provenance, titles, labels, scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attnviz.draw.document import First, Group, Note, Ways
from attnviz.draw.labels import at_blanks, split_into_bytes
from attnviz.draw.numbers import counted
from attnviz.records import (
    NO_LABEL,
    NO_PREDICTIONS,
    SINKS,
    UNKNOWN_NOTE,
    AttentionRecord,
    HeadLabel,
    ModelInfo,
    Tokens,
)

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
LONGEST_FINDING = 158
"""The number of characters in two lines of 80 columns."""

_BACKENDS = {"numpy": "NumPy", "torch": "torch"}


def fits_two_lines(finding: str) -> bool:
    """Return whether the finding, a sentence, takes at most two lines of 80 characters."""
    return len(at_blanks(finding, 80)) <= 2


def share(value: float) -> str:
    """Return a number in [0, 1] in three characters, such as ``.07``; a dash for NaN."""
    if math.isnan(value):
        return "–"
    return "1.0" if value >= 0.995 else f"{max(value, 0.0):.2f}"[1:]


def probability(value: float) -> str:
    """Return a probability in three or four characters, such as ``.97``."""
    if value >= 0.0095:
        return share(value)
    return f"{value:.3f}"[1:] if value >= 0.0005 else f"{value:.0e}"


def p_value(value: float) -> str:
    """Return the p of a test, such as ``.021``: with three digits where thresholds are near."""
    return f"{value:.3f}"[1:] if 0.0005 <= value < 0.0995 else probability(value)


ONE_PASS = "all attention weights come from one forward pass over this text alone"
"""How ``--explain`` begins below the maps of one text."""

UNLIKELY = 0.05
"""The probability below which the likeliest word is said to be no likely one."""


def label_text(label: HeadLabel, max_width: int) -> str:
    """Return a head's label and its score in at most ``max_width`` characters.

    The label's short form is used if its name does not fit.
    A label that only describes these texts gets the word ``here``, if it fits. The score is
    left out if there is none, or if it does not fit.
    """
    value = "" if math.isnan(label.score) else f" {share(label.score)}"
    here = " here" if value and not label.is_finding else ""
    ends = dict.fromkeys((value + here, value))
    texts = [name + end for end in ends for name in (label.said, label.short)]
    return next((text for text in texts if len(text) <= max_width), label.short)


def known_text(label: HeadLabel) -> str:
    """Return a head's known label with the score measured before, not the score on this text.

    An attention sink has no score here, because its score is always that of the current text.
    """
    return label.said if label.name in SINKS else f"{label.said} {share(label.score)}"


def label_words(label: HeadLabel) -> list[str]:
    """Return a label with its score, then its score on this text and that of uniform attention."""
    if label is NO_LABEL:
        return [label.name]
    words = [f"{label.said} {share(label.score)}"]
    if label.is_known and not math.isnan(label.on_text):
        words.append(f"on this text {share(label.on_text)}")
    even = label.name == "spread" or math.isnan(label.base_rate)
    return words if even else [*words, f"uniform {share(label.base_rate)}"]


def label_source(labels: Iterable[HeadLabel], form: str = "labels of {date}, {source}") -> str:
    """Return the source of the labels that ``patterns`` stored; empty if there are none.

    form: the text to return, with the fields {source} and {date}.
    """
    for label in labels:
        if label.source == "patterns":
            return form.format(source="attnviz patterns", date=spoken_date(label.date))
    return ""


def label_title(labels: Iterable[HeadLabel]) -> str:
    """Return the heading of a table column of labels, with the source of labels of ``patterns``."""
    return label_source(labels, "label (patterns, {date})") or "label"


def spoken_date(date: str) -> str:
    """Return the date ``2026-11-21`` as ``21 Nov 2026``, an empty one as ``an unknown date``."""
    if not date:
        return "an unknown date"
    year, month, day = map(int, date.split("-"))
    return f"{day} {_MONTHS[month - 1]} {year}"


def shape_words(info: ModelInfo) -> str:
    """Return how many layers and heads the model has, in words."""
    some = len(info.heads_of_layers)
    layers = f"{info.layers} layer{'s' * (info.layers > 1)}"
    shape = f"{f'{some} of ' * (some < info.layers)}{layers} × {info.heads} heads"
    return shape if info.kv_heads == info.heads else f"{shape} on {info.kv_heads} key/value heads"


def size_words(record: AttentionRecord) -> str:
    """Return in words how many tokens the attention covers; for cross-attention both axes."""
    queries, keys = len(record.queries), len(record.keys)
    if record.kind != "cross":
        return f"{queries} token{'s' * (queries != 1)}"
    return f"{queries} {'query' if queries == 1 else 'queries'}, {keys} key{'s' * (keys != 1)}"


def model_words(info: ModelInfo) -> list[tuple[str, bool]]:
    """Return the model and the origin of its parameters, as parts (text, bold) of a line."""
    if info.is_array:
        size = counted(info.heads, "head") if info.is_one_layer else shape_words(info)
        words = [f"given as a {info.dtype} array", size]
    else:
        words = [
            *([f"revision {info.revision[:12]}"] if info.revision else []),
            *[info.untrained] * bool(info.untrained),
            f"{info.weights} weights",
            info.dtype if info.device == "cpu" else f"{info.dtype} on {info.device}",
            *([_BACKENDS[info.backend]] if info.weights == "checkpoint" else []),
            shape_words(info),
        ]
    return [(info.name, True), *((word, False) for word in words)]


def named(info: ModelInfo) -> list[tuple[str, bool]]:
    """Return the model's name, then remarks: random or untrained weights, and its devices."""
    random = ["random weights"] * (info.weights == "random")
    words = (*random, *[info.untrained] * bool(info.untrained), *places_words(info))
    return [(info.name, True), *((word, False) for word in words)]


def places_words(info: ModelInfo) -> list[str]:
    """Return the devices of the layers if there are several, such as ``on cuda:0 and cpu``."""
    return [f"on {info.device}"] if {"and", "disk"} & {*info.device.split()} else []


def notes_group(notes: Iterable[str], tokens: Tokens) -> Group:
    """Return the warnings that a reader of attention must know, as a group of the document.

    notes: the warnings of the run. Advice is added if some of the ``tokens`` are parts of
        characters.
    """
    advice = split_into_bytes(tokens)
    kept = [note for note in notes if not note.endswith(NO_PREDICTIONS)]
    return Group([Note(note) for note in (*kept, *([advice] if advice else []))])


def advised(first: First, tokens: Tokens) -> First:
    """Return a maker of screens that adds advice at the end if the tokens are hard to read.

    They are if tokens are parts of characters, or over a tenth are unknown to the tokenizer.
    first: makes the groups of a screen from its width and number of lines.
    """
    advice = split_into_bytes(tokens)
    if tokens.unknown:
        advice = f"{tokens.unknown:,} of {len(tokens):,} tokens {UNKNOWN_NOTE}"
    if not advice:
        return first

    def with_advice(columns: int, lines: int) -> Sequence[Group] | Ways:
        groups, last = first(columns, lines - 2), Group([Note(advice)])
        if isinstance(groups, Ways):
            return Ways([[*way, last] for way in groups.ways])
        return [*groups, last]

    return with_advice
