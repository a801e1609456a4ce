"""The texts on which heads are scored: those that ship with the package, and a person's own.

In annotated sentences a head is tested on how often it finds the word that another word belongs to
(Clark et al. 2019, section 4.2). The related words of a sentence are annotated by hand;
``data/probes/README.md`` gives the format.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.numbers import counted
from attnviz.engine.probing import Probing
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.patterns.report import Probe
from attnviz.measures.registry import DESCRIBED, LABELS, RELATIONS, STATISTICS, of_family
from attnviz.models.work import about_tokens
from attnviz.reading import PACKAGED, TEXTS_BYTES, read_bytes, text_lines
from attnviz.records import Input, Tokens
from attnviz.texts import natural_texts

Hits = dict[int, NDArray[np.float64]]


@dataclass(frozen=True)
class WordPair:
    """An annotated pair of words with a relation such as ``subject``: the indices of both."""

    relation: str
    dependent: int
    head: int


@dataclass(frozen=True)
class AnnotatedSentence:
    """A sentence in which a person has annotated pairs of related words.

    words: for each word the range of its characters in ``text``, without punctuation at its ends.
    """

    text: str
    words: tuple[range, ...]
    pairs: tuple[WordPair, ...]
    line: int


_UNIT = re.compile(r"<0x([0-9A-Fa-f]{2})>|\S")
"""A byte as a tokenizer spells it, or a character."""

_CONTINUES = "##"
_GAP = 64  # the most characters that one unknown token may stand for


def word_pieces(
    tokens: Tokens, text: str, words: Sequence[range]
) -> tuple[tuple[int, ...], ...] | None:
    """Return the token indices of each word, or None if the tokens do not spell the text.

    words: the character range of each word in ``text``. A token for an unknown word covers
        everything between its neighbours. A token shared by two words belongs to the first.
    """
    spans = _spans(tokens, text, _raw) or _spans(tokens, text, _folded)
    if spans is None:
        return None
    taken, pieces = set[int](), list[tuple[int, ...]]()
    for word in words:
        own = (
            token
            for token, span in enumerate(spans)
            if token not in taken and span.start < word.stop and word.start < span.stop
        )
        pieces.append(tuple(own))
        taken.update(pieces[-1])
    return tuple(pieces)


def _spans(
    tokens: Tokens, text: str, units: Callable[[str], Iterator[tuple[str, int]]]
) -> list[range] | None:
    """Return the range of each token's characters in the text; None if tokens and text differ."""
    stream = list(units(text))
    joined = "".join(unit for unit, _ in stream)
    offsets = [offset for _, offset in stream] + [len(text)]
    spans: list[range] = []
    at, unknown = 0, None
    for index, (piece, special) in enumerate(zip(tokens.texts, tokens.special, strict=True)):
        wanted = "" if special else "".join(unit for unit, _ in units(piece))
        if not joined.startswith(wanted, at):
            shorter = "".join(unit for unit, _ in units(piece.removeprefix(_CONTINUES)))
            wanted = shorter if joined.startswith(shorter, at) else wanted
        start = at
        if not joined.startswith(wanted, at):
            start = joined.find(wanted, at, at + _GAP) if unknown is not None else -1
            if start < 0 and unknown is None:
                unknown = index
                spans.append(range(offsets[at], offsets[at]))
                continue
            if start < 0:
                return None
        if unknown is not None and wanted:
            spans[unknown] = range(offsets[at], offsets[start])
            unknown = None
        at = start + len(wanted)
        end = offsets[at - 1] + 1 if wanted else offsets[start]
        spans.append(range(offsets[start], end))
    if unknown is not None:
        spans[unknown] = range(offsets[at], len(text))
    return spans if unknown is not None or at >= len(joined) else None


def _raw(text: str) -> Iterator[tuple[str, int]]:
    """Yield the bytes of a text without blanks as Latin-1, with their character offsets."""
    for unit in _UNIT.finditer(text):
        spelled = unit[0].encode("utf-8", "surrogatepass")
        for number in [int(unit[1], 16)] if unit[1] else spelled:
            yield chr(number), unit.start()


def _folded(text: str) -> Iterator[tuple[str, int]]:
    """Yield a text's characters without case, accents and blanks, with their offsets."""
    for offset, character in enumerate(text):
        for unit in unicodedata.normalize("NFKD", character).casefold():
            if not unit.isspace() and not unicodedata.combining(unit):
                yield unit, offset


_TIE = 1e-6  # how far equal weights may differ by rounding


class WordView:
    """The units of one annotated sentence for a model: each word, and each other token alone.

    It tests which heads find the annotated word pairs. If ``causal``, a pair is tested from its
    later word to the earlier one; else from the dependent to the head. ``fits`` is false if the
    tokens do not spell the text.
    """

    def __init__(self, sentence: AnnotatedSentence, tokens: Tokens, causal: bool) -> None:
        self._causal = causal
        self._sentence = sentence
        pieces = word_pieces(tokens, sentence.text, sentence.words)
        self.fits = pieces is not None
        of_words = [list(word) for word in pieces or () if word]
        lone = set(range(len(tokens))) - {token for word in of_words for token in word}
        marks = [[token] for token in lone if not tokens.special[token]]
        self.units = sorted([*of_words, *marks])
        self._of_unit = _memberships(len(tokens), self.units)
        self._unit = [self.units.index(list(word)) if word else None for word in pieces or ()]

    def find(self, weights: NDArray[np.floating], seen: NDArray[np.bool_]) -> tuple[Hits, Hits]:
        """Return which heads find the annotated word pairs, and the same by chance.

        weights: the attention weights (head, query, key) over the tokens. seen: (query, key), True
            where a token sees another.
        Both are (head,) by the index of the pair in ``pairs``, NaN if its words do not see each
        other. The first is 1 if a head's largest weight is on the annotated word, else 0; words
        that tie for the largest share the hit; NaN if the weights are NaN. The second is that of
        uniform attention over the tokens: words of several tokens get more of it.
        """
        visible = (self._of_unit.T @ seen @ self._of_unit).astype(int)
        by_word = word_weights(weights, self.units)
        every = np.arange(len(self.units))
        by_word[:, every, every] = -1.0
        most = by_word.max(-1, keepdims=True)
        largest = (by_word >= most * (1 - _TIE)) & (most > 0)
        shares = largest / np.maximum(largest.sum(-1, keepdims=True), 1)
        shares[np.isnan(most[..., 0])] = np.nan
        hits, chance = Hits(), Hits()
        for at, (_, query, key) in enumerate(self.pairs):
            others = visible[query].copy()
            others[query] = 0
            known = 1.0 if others[key] else np.nan
            largest = others == others.max()
            hits[at] = known * shares[:, query, key]
            chance[at] = np.full(len(weights), known * (largest[key] / largest.sum()))
        return hits, chance

    @cached_property
    def pairs(self) -> Sequence[tuple[str, int, int]]:
        """Return (relation, query, key) of every annotated word pair whose words both have tokens.

        Query and key are indices among the words of the sentence and its other tokens.
        """
        pairs = []
        for pair in self._sentence.pairs:
            query, key = self._unit[pair.dependent], self._unit[pair.head]
            if query is None or key is None:
                continue
            if self._causal and key > query:
                query, key = key, query
            pairs.append((pair.relation, query, key))
        return pairs


def word_weights(
    weights: NDArray[np.floating], words: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Return attention weights between words (head, word, word) from those between tokens.

    weights: (head, token, token). words: the token indices of each word. The weight to a word is
        the sum over its tokens, the weight from it their mean.
    """
    to = _memberships(weights.shape[-1], words)
    share = to / to.sum(0)
    return np.asarray(share.T @ (weights.astype(np.float64) @ to))


def _memberships(tokens: int, words: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Return a matrix (token, word): 1 for each token that belongs to a word, else 0."""
    members = np.zeros((tokens, len(words)))
    for word, pieces in enumerate(words):
        members[list(pieces), word] = 1
    return members


def relation_base_rate(offsets: Sequence[int], by_chance: Sequence[float]) -> float:
    """Return a relation's base rate: the share of word pairs that one fixed offset finds.

    It is that of the best offset, or of uniform attention if that is more; 0 without pairs.
    offsets: of each pair, from the query word to the key word, in words and punctuation marks.
    by_chance: the chance that uniform attention finds each pair.
    """
    most = max(Counter(offsets).values(), default=0)
    return max(most, sum(by_chance)) / len(offsets) if offsets else 0.0


# Files ---------------------------------------------------------------------------------------

_DIRECTORY = PACKAGED / "probes"
_COLUMNS = ("text", "pairs", "words")
_NEEDED = ("text", "pairs")
_PAIR = re.compile(r"([a-z][a-z0-9_-]*):([0-9]{1,9})>([0-9]{1,9})")
_TAKEN = (set(LABELS) | set(STATISTICS)) - set(RELATIONS)


def shipped_sentences() -> tuple[AnnotatedSentence, ...]:
    """Return the annotated English sentences that ship with the package."""
    return read_probe_file(_DIRECTORY / "english.tsv")


def read_probe_file(path: str | os.PathLike[str]) -> tuple[AnnotatedSentence, ...]:
    """Return the annotated sentences of a file of tab-separated lines.

    The first line names the columns ``text``, ``pairs`` (such as ``subject:1>3``) and perhaps
    ``words``; ``data/probes/README.md`` gives the format. Raises LoadError, with the line number
    and the reason, if a line is not in the format.
    """
    lines = text_lines(read_bytes(Path(path), most=TEXTS_BYTES), str(path))
    columns: list[str] | None = None
    sentences = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if columns is None:
                columns = _header(line)
            else:
                sentences.append(_sentence(number, columns, line.split("\t")))
        except ValueError as error:
            raise LoadError(f"{path}, line {number}: {error}") from error
    if not sentences:
        raise LoadError(
            f"{path} holds no annotated sentence: expected a line that names the columns "
            f"{' and '.join(_NEEDED)}, apart by a tab, and sentences below it"
        )
    return tuple(sentences)


def _header(line: str) -> list[str]:
    columns = [cell.strip() for cell in line.split("\t")]
    unknown = [name for name in columns if name not in _COLUMNS]
    if unknown or len(set(columns)) < len(columns) or not set(_NEEDED) <= set(columns):
        raise ValueError(
            f"expected the names of the columns, apart by tabs: text, pairs and, if wanted, "
            f"words; got {', '.join(map(repr, columns))}"
        )
    return columns


def _sentence(number: int, columns: list[str], line: list[str]) -> AnnotatedSentence:
    """Return the sentence of a line. number, line: of the line, and its cells."""
    if len(line) != len(columns):
        raise ValueError(
            f"expected {len(columns)} columns ({', '.join(columns)}) apart by tabs, got {len(line)}"
        )
    cells = dict(zip(columns, line, strict=True))
    text, items, words, begin = cells["text"].strip(), cells["pairs"].split(), list[range](), 0
    for word in (cells.get("words") or text).split():
        start = text.find(word, begin)
        if start < 0:
            raise ValueError(f"the word {word!r} is not in the text, or not in this order")
        begin = start + len(word)
        inner = [at for at in range(start, begin) if text[at].isalnum()]
        words.append(range(inner[0], inner[-1] + 1) if inner else range(start, begin))
    if not text or not items:
        raise ValueError(f"the column {'text' if not text else 'pairs'} is empty")
    pairs = tuple(_pair(item, len(words)) for item in items)
    return AnnotatedSentence(text, tuple(words), pairs, number)


def _pair(item: str, words: int) -> WordPair:
    match = _PAIR.fullmatch(item)
    if match is None:
        raise ValueError(f"expected a pair such as subject:1>3, got {item!r}")
    relation, dependent, head = match[1], int(match[2]), int(match[3])
    if relation in _TAKEN:
        raise ValueError(f"{relation!r} is another score's name: choose another relation")
    for index in (dependent, head):
        if index >= words:
            has = f"the text has {words} (0 to {words - 1})"
            raise ValueError(f"{item!r} names the word {index}, {has}")
    if dependent == head:
        raise ValueError(f"{item!r} pairs a word with itself")
    return WordPair(relation, dependent, head)


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
        probes = [ProbeText(NATURAL, passage) for passage in natural if not passage.text.unknown]
        probes += _random(probing, seeds)
    else:
        probes = [ProbeText(OWN, text)]
    for probe in probes:
        if (count := len(probe.passage.queries(probing.kind))) < FEWEST:
            raise UsageError(
                f"the text has {counted(count, 'token')}: scoring heads needs at least {FEWEST}, "
                "give a longer one"
            )
    skipped = list[str]()
    # Related words stand in one text, and cross attention joins two.
    for sentence in sentences if probing.kind != "cross" else ():
        passage = probing.input_of(sentence.text)
        words = _word_view(sentence, passage.queries(probing.kind), probing.causal)
        if passage.text.unknown:
            skipped.append(f"line {sentence.line}: {UNREAD}")
        elif words.fits and words.pairs:
            probes.append(ProbeText(SENTENCES, passage, words=words))
        else:
            skipped.append(f"line {sentence.line}: its words are not whole tokens of the model")
    return tuple(probes), tuple(skipped)


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


_word_view = lru_cache(256)(WordView)
"""Returns the words of a sentence; a comparison of two models often asks for them twice."""


def batches(texts: Sequence[ProbeText], tokens: int) -> list[list[ProbeText]]:
    """Return groups of texts of equal length with at most ``tokens`` tokens, longest texts last."""
    by_length: dict[tuple[int, int], list[ProbeText]] = {}
    for text in texts:
        target = text.passage.target
        key = (len(text.passage.text), 0 if target is None else len(target))
        by_length.setdefault(key, []).append(text)
    groups = []
    for lengths, group in sorted(by_length.items(), key=lambda item: item[0]):
        size = max(1, tokens // max(lengths))
        groups += [group[start : start + size] for start in range(0, len(group), size)]
    return groups


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
