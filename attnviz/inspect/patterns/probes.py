"""The texts on which heads are scored: those that ship with the package, and a person's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from attnviz.draw.numbers import counted
from attnviz.engine.capture import Probing
from attnviz.errors import UsageError
from attnviz.inspect.patterns.relations import AnnotatedSentence, WordView, shipped_sentences
from attnviz.inspect.patterns.report import Probe
from attnviz.measures.registry import DESCRIBED, of_family
from attnviz.models.work import about_tokens
from attnviz.records import Input
from attnviz.texts import natural_texts

NATURAL = "natural text"
COPIES = "random repeats"
PREFIX = "random copies"
SENTENCES = "annotated sentences"
OWN = "text"

ON_TEXT = "text_"
"""The prefix of scores on natural text if their label is given on random tokens."""

_POSITION, _IDENTITY = of_family("position"), of_family("identity")
_RUNNING = of_family("position", "content", "alignment")

SCORES_OF: Mapping[str, Mapping[str, str]] = {
    NATURAL: {name: name for name in _RUNNING} | {name: ON_TEXT + name for name in _IDENTITY},
    COPIES: {name: name for name in _IDENTITY},
    PREFIX: {"induction": "prefix_matching"},
    OWN: {name: name for name in (*_RUNNING, *_IDENTITY)},
}
"""For each probe, the measures taken from it, and the names of the scores they give."""

AGREES_ON: Mapping[str, tuple[str, ...]] = {COPIES: _POSITION, PREFIX: _POSITION}
"""Measures that further probes confirm, but that are not averaged over them."""

UNREAD = "more than a tenth of its tokens is unknown to the tokenizer"
"""The reason for leaving a text out."""

SEEDS = 3
"""How many times random tokens are drawn."""

_LENGTHS = (20, 40, 60)
_SHORTER = (10, 5)
"""The number of distinct tokens of random texts; shorter ones for models with less room."""

_PREFIX_LENGTH, _PREFIX_COPIES = 20, 4
"""The number of distinct tokens and of copies in the texts for prefix matching."""

FEWEST = 4
"""The fewest tokens of a text: with fewer, a query sees too little for a score."""


@dataclass(frozen=True, eq=False)
class ProbeText:
    """One text over which pattern scores are measured, of a set such as ``natural text``."""

    probe: str
    passage: Input
    seed: int | None = None
    words: WordView | None = None

    @property
    def pairs(self) -> Sequence[tuple[str, int, int]]:
        """Return the (relation, query, key) of each annotated pair of words."""
        return () if self.words is None else self.words.pairs


def measures_of(probe: str) -> tuple[str, ...]:
    """Return the names of the measures that are computed on texts of a probe (a set of texts)."""
    described = DESCRIBED if probe in (NATURAL, OWN) else ()
    return (*dict.fromkeys((*SCORES_OF.get(probe, ()), *AGREES_ON.get(probe, ()), *described)),)


def probe_texts(
    probing: Probing,
    text: Input | None,
    sentences: Sequence[AnnotatedSentence],
    seeds: Sequence[int],
) -> tuple[tuple[ProbeText, ...], tuple[str, ...]]:
    """Return every text to run, and for each text that cannot be run a sentence with the reason.

    text: the user's own, which is run in place of natural text and random tokens; None for these.
    Raises UsageError if a text is too short for any score.
    """
    if text is None:
        natural = map(probing.input_of, natural_texts())
        found = [ProbeText(NATURAL, passage) for passage in natural if not passage.text.unknown]
        found += _random(probing, seeds)
    else:
        found = [ProbeText(OWN, text)]
    for probe in found:
        if (count := len(probe.passage.queries(probing.kind))) < FEWEST:
            raise UsageError(
                f"the text has {counted(count, 'token')}: scoring heads needs at least {FEWEST}, "
                "give a longer one"
            )
    annotated, skipped = _annotated(probing, sentences)
    return (*found, *annotated), skipped


def probe_tokens(text: str | None, sentences: Sequence[AnnotatedSentence] | None) -> int:
    """Return about how many tokens the model runs on, estimated without its tokenizer."""
    texts = natural_texts() if text is None else (text, text)  # a second time for its labels
    if sentences is None:
        sentences = shipped_sentences() if text is None else ()
    drawn = 2 * sum(_LENGTHS) + _PREFIX_LENGTH * _PREFIX_COPIES
    read = about_tokens(*texts, *(sentence.text for sentence in sentences))
    return read + (SEEDS * drawn if text is None else 0)


def _random(probing: Probing, seeds: Sequence[int]) -> list[ProbeText]:
    """Return texts of random tokens, repeated twice and four times, for each seed.

    They are shorter if the model's context is too small for the usual length; empty if none fits.
    """

    def fitting(lengths: Sequence[int], copies: int) -> list[int]:
        return [length for length in lengths if probing.copies(length, copies, 0) is not None]

    twice = fitting(_LENGTHS, 2) or fitting(_SHORTER, 2)[:1]
    often = fitting((_PREFIX_LENGTH, *_SHORTER), _PREFIX_COPIES)[:1]
    wanted = [(COPIES, length, 2) for length in twice]
    wanted += [(PREFIX, length, _PREFIX_COPIES) for length in often]
    return [
        ProbeText(probe, passage, seed)
        for (probe, length, copies), seed in product(wanted, seeds)
        if (passage := probing.copies(length, copies, seed)) is not None
    ]


def _annotated(
    probing: Probing, sentences: Sequence[AnnotatedSentence]
) -> tuple[list[ProbeText], tuple[str, ...]]:
    if probing.kind == "cross":  # related words stand in one text
        return [], ()
    found, skipped = [], []
    for sentence in sentences:
        passage = probing.input_of(sentence.text)
        words = _word_view(sentence, passage.queries(probing.kind), probing.causal)
        if passage.text.unknown:
            skipped.append(f"line {sentence.line}: {UNREAD}")
        elif words.fits and words.pairs:
            found.append(ProbeText(SENTENCES, passage, words=words))
        else:
            skipped.append(f"line {sentence.line}: its words are not whole tokens of the model")
    return found, tuple(skipped)


_word_view = lru_cache(256)(WordView)
"""Returns the words of a sentence; a comparison of two models often asks for them twice."""


def batches(texts: Sequence[ProbeText], tokens: int) -> list[list[ProbeText]]:
    """Return groups of texts of equal length with at most ``tokens`` tokens, longest texts last."""
    by_length: dict[tuple[int, int], list[ProbeText]] = {}
    for text in texts:
        target = text.passage.target
        key = (len(text.passage.text), 0 if target is None else len(target))
        by_length.setdefault(key, []).append(text)
    found = []
    for lengths in sorted(by_length):
        group, size = by_length[lengths], max(1, tokens // max(lengths))
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return found


def described(
    probing: Probing,
    texts: Sequence[ProbeText],
    relations: tuple[str, ...],
    skipped: tuple[str, ...],
) -> tuple[Probe, ...]:
    """Return the report's description of each probe, a set of texts."""
    probes = []
    for name in dict.fromkeys(text.probe for text in texts):
        own = [text for text in texts if text.probe == name]
        lengths = [len(text.passage.queries(probing.kind)) for text in own]
        annotated = name == SENTENCES
        probe = Probe(
            name,
            len(own),
            min(lengths),
            max(lengths),
            relations if annotated else tuple(SCORES_OF[name].values()),
            seeds=tuple(dict.fromkeys(text.seed for text in own if text.seed is not None)),
            pairs=dict(Counter(relation for text in own for relation, _, _ in text.pairs)),
            skipped=skipped if annotated else (),
        )
        probes.append(probe)
    return tuple(probes)
