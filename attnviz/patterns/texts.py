"""The texts of a scoring run, each with the scores that are taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.patterns.probes import AnnotatedSentence, natural_texts
from attnviz.patterns.records import Probe
from attnviz.patterns.relations import WordView
from attnviz.records import Input, Tokens

__all__ = [
    "COPIES",
    "NATURAL",
    "OWN",
    "PREFIX",
    "SENTENCES",
    "ProbeText",
    "batches",
    "facts_of",
    "probe_texts",
]

NATURAL = "natural text"
COPIES = "random repeats"
PREFIX = "random copies"
SENTENCES = "annotated sentences"
OWN = "text"

_LENGTHS = (20, 40, 60)
_SHORTER = (10, 5)
"""Distinct tokens of random texts; the shorter ones are for models without room for the others."""

_PREFIX_LENGTH, _PREFIX_COPIES = 20, 4
"""Distinct tokens and copies of the texts for prefix matching."""

_FEWEST = 4
"""Tokens below which no score says anything: each query sees next to nothing."""

_BATCH_TOKENS = 2048


@dataclass(frozen=True, eq=False)
class ProbeText:
    """One text to be scored.

    probe: one of the names above.
    passage: its tokens.
    seed: of a random text.
    words: of an annotated sentence.
    """

    probe: str
    passage: Input
    seed: int | None = None
    words: WordView | None = None


def probe_texts(
    probing: Probing,
    texts: Sequence[Tokens] | None,
    targets: Sequence[Tokens],
    sentences: Sequence[AnnotatedSentence],
    seeds: Sequence[int],
) -> tuple[tuple[ProbeText, ...], tuple[str, ...]]:
    """Every text to run, and sentences on those that cannot be.

    texts: a person's own in place of natural text and random tokens; None for these.
    Raises UsageError where a text is too short to say anything.
    """
    found: list[ProbeText] = []
    if texts is None:
        natural = [probing.input_of(text) for text in natural_texts()]
        found += [ProbeText(NATURAL, passage) for passage in natural]
        found += _random(probing, seeds)
    else:
        paired = zip(texts, targets, strict=True) if targets else ((text, None) for text in texts)
        found += [ProbeText(OWN, Input(text, target)) for text, target in paired]
    for text in found:
        _check_length(text.passage.queries(probing.kind))
    annotated, skipped = _annotated(probing, sentences)
    return (*found, *annotated), skipped


def _check_length(tokens: Tokens) -> None:
    if len(tokens) < _FEWEST:
        count = f"{len(tokens)} token{'s' if len(tokens) != 1 else ''}"
        raise UsageError(
            f"the text has {count}: scoring heads needs at least {_FEWEST}, give a longer one"
        )


def _random(probing: Probing, seeds: Sequence[int]) -> list[ProbeText]:
    """Random tokens twice, and four times; shorter ones where the model has no room for the usual.

    Nothing where even the shortest do not fit.
    """
    twice = _fitting(probing, _LENGTHS, 2) or _fitting(probing, _SHORTER, 2)[:1]
    often = _fitting(probing, (_PREFIX_LENGTH, *_SHORTER), _PREFIX_COPIES)[:1]
    wanted = [(COPIES, length, 2) for length in twice]
    wanted += [(PREFIX, length, _PREFIX_COPIES) for length in often]
    made = [
        (probe, probing.copies(length, copies, seed), seed)
        for (probe, length, copies), seed in product(wanted, seeds)
    ]
    return [ProbeText(probe, passage, seed) for probe, passage, seed in made if passage is not None]


def _fitting(probing: Probing, lengths: Sequence[int], copies: int) -> list[int]:
    return [length for length in lengths if probing.copies(length, copies, 0) is not None]


def _annotated(
    probing: Probing, sentences: Sequence[AnnotatedSentence]
) -> tuple[list[ProbeText], tuple[str, ...]]:
    if probing.kind == "cross":  # words that belong together stand in one text
        return [], ()
    found, skipped = [], []
    for sentence in sentences:
        passage = probing.input_of(sentence.text)
        words = WordView(sentence, passage.queries(probing.kind), probing.causal)
        if words.fits and words.pairs():
            found.append(ProbeText(SENTENCES, passage, words=words))
        else:
            skipped.append(f"line {sentence.line}: its words are not whole tokens of the model")
    return found, tuple(skipped)


def batches(texts: Sequence[ProbeText]) -> list[list[ProbeText]]:
    """The texts in groups of one length, each of a bounded number of tokens; longest last."""
    by_length: dict[tuple[int, int], list[ProbeText]] = {}
    for text in texts:
        target = text.passage.target
        key = (len(text.passage.text), 0 if target is None else len(target))
        by_length.setdefault(key, []).append(text)
    found = []
    for lengths in sorted(by_length):
        group, size = by_length[lengths], max(1, _BATCH_TOKENS // max(lengths))
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return found


def facts_of(
    texts: Sequence[ProbeText],
    probe: str,
    scores: tuple[str, ...],
    probing: Probing,
    skipped: tuple[str, ...] = (),
) -> Probe:
    """What a report says of one probe."""
    mine = [text for text in texts if text.probe == probe]
    lengths = [len(text.passage.queries(probing.kind)) for text in mine]
    pairs: dict[str, int] = {}
    for text in mine:
        for relation, _, _ in text.words.pairs() if text.words is not None else ():
            pairs[relation] = pairs.get(relation, 0) + 1
    seeds = tuple(dict.fromkeys(text.seed for text in mine if text.seed is not None))
    return Probe(probe, len(mine), min(lengths), max(lengths), scores, seeds, pairs, skipped)
