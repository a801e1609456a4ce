"""What a figure says in words: provenance, the name and the scores of a head."""

from __future__ import annotations

from attnviz.draw.kind_words import kind_words
from attnviz.draw.labels import cut, token_labels
from attnviz.draw.provenance import size_words, trait_words
from attnviz.records import HeadScores, HeadsReport, Tokens

__all__ = [
    "axis_labels",
    "head_name",
    "head_words",
    "mapped_heads",
    "run_lines",
    "run_words",
    "text_lines",
]

_LONGEST_LABEL = 16


def axis_labels(tokens: Tokens) -> list[str]:
    """The labels of a text's tokens, none longer than an axis can hold."""
    return [cut(label, _LONGEST_LABEL) for label in token_labels(tokens)]


def run_words(report: HeadsReport) -> str:
    """Which model, which weights, how much text: one line that lets a reader repeat the run."""
    record, info = report.record, report.record.model
    shape = f"{info.layers} layer{'s' * (info.layers > 1)} × {info.heads} heads"
    if info.kv_heads != info.heads:
        shape += f" on {info.kv_heads} key/value heads"
    size = size_words(record)
    if info.is_array:
        heads = f"{info.heads} head{'s' * (info.heads > 1)}"
        return " · ".join([info.name, f"given as a {info.dtype} array", heads, size])
    parts = [
        info.name,
        f"revision {info.revision[:12]}" if info.revision else "no revision",
        info.architecture,
        f"{info.weights} weights",
        info.dtype if info.device == "cpu" else f"{info.dtype} on {info.device}",
        shape,
        *kind_words(record),
        size,
        "no seed used" if info.seed is None else f"seed {info.seed}",
    ]
    return " · ".join(parts)


def head_name(report: HeadsReport, scores: HeadScores) -> str:
    """A head's name, with its key/value head where heads share one."""
    name = report.name(scores.layer, scores.head)
    group = report.record.model.group(scores.head)
    return name if group is None else f"{name} kv{group + report.index_base}"


def head_words(scores: HeadScores) -> str:
    """A head's trait, how it compares and how wide the head looks."""
    return " · ".join(trait_words(scores))


def _reading(report: HeadsReport) -> str:
    """How a map is read."""
    text = "A row is the token that looks (query), a column the token looked at (key)"
    return text + (
        "; later tokens, which it cannot see, stay blank." if report.record.causal else "."
    )


def mapped_heads(report: HeadsReport) -> list[HeadScores]:
    """The heads that get a full map: those that were chosen, else the most telling."""
    if report.selected:
        return list(report.heads)
    return [report.scores(layer, head) for layer, head in report.telling]


def text_lines(text: str, target: str | None) -> list[str]:
    """What was read: the text and, where there is one, the target text, each in one line."""
    lines = [" ".join(text.split())]
    if target is not None:
        lines.append(f"target: {' '.join(target.split())}")
    return lines


def run_lines(report: HeadsReport) -> list[str]:
    """What a reader must know of a run: provenance, notes, and how a map is read."""
    return [run_words(report), *report.record.model.notes, _reading(report)]
