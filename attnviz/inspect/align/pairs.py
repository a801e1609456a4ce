"""Sentence pairs with gold links: reads them, and scores what heads say by alignment error rate.

Och & Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models". Which row of
cross attention belongs to a word is tried both ways (Chen et al. 2020, "Accurate Word Alignment
Induction from Neural Machine Translation"): the step that writes it, or the next, which reads it.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import token_spans
from attnviz.engine.capture import encoded
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.align.report import LinkedWord
from attnviz.inspect.align.study import Example, Heads, HeadStudy, cross_weights
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.speech import SpeechModel
from attnviz.progress import Advance
from attnviz.reading import TEXTS_BYTES, read_bytes, text_lines
from attnviz.records import Floats, Tokens
from attnviz.tables import layout_of, table_rows

_COLUMNS = ("source", "target", "alignment")
_BETWEEN = re.compile(r" *(?:\|\|\||\t) *")
_LINK = re.compile(r"(\d{1,6})([-?p])(\d{1,6})")
_EXPECTED = "source ||| target ||| 0-0 1-2 2?1"
_AS_JSON = '{"source": "a b", "target": "x y", "alignment": "0-0 1?1"}'

Link = tuple[int, int]
"""A source word and a target word, from 0."""


class GoldPair(NamedTuple):
    """A sentence pair: its words, and its gold links.

    name: its line in the file. possible: has the sure links, too.
    """

    name: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: frozenset[Link]
    possible: frozenset[Link]


class GoldPairs(NamedTuple):
    """Sentence pairs. prefix: what stands before each source. notes: on how they were read."""

    pairs: Sequence[GoldPair]
    prefix: str = ""
    notes: tuple[str, ...] = ()


# The files -----------------------------------------------------------------------------------


def read_gold(given: Path | Iterable[Mapping[str, Any]], prefix: str = "") -> GoldPairs:
    """Return the sentence pairs of a file, or of mappings with source, target and alignment.

    The file has a pair a line, its three parts between ``|||`` or tabs, or is CSV or JSON with
    these columns. Words stand between blanks; ``0-2`` is a sure link, ``0?2`` or ``0p2`` a possible
    one. Links count from 1 if none names 0, and some would else be beyond its sentence.

    Raises LoadError for a damaged row, which it names, UsageError for fewer than two pairs.
    """
    if isinstance(given, str) or not isinstance(given, Path | Iterable):
        raise UsageError(
            f"expected a list of pairs {_AS_JSON}, or a file of them: got {given!r:.40}"
        )
    where = f"{str(given)!r} line" if isinstance(given, Path) else "pair"
    rows = _file_rows(given) if isinstance(given, Path) else enumerate(given, start=1)
    pairs = [_linked(row, str(number), f"{where} {number}") for number, row in rows]
    notes = list[str]()
    once = {pair[1:]: pair for pair in reversed(pairs)}
    if len(once) < len(pairs):
        notes.append(f"{len(pairs) - len(once)} of {len(pairs)} pairs are repeated: left out")
        pairs = [pair for pair in pairs if once[pair[1:]] is pair]
    if len(pairs) < 2:
        raise UsageError(
            f"expected two or more sentence pairs, one half to choose heads and one to report, got "
            f"{len(pairs)}: {_EXPECTED}"
        )
    if not any(pair.possible for pair in pairs):
        raise UsageError(f"no pair has a gold link to compare with: expected {_EXPECTED}")
    first = 0
    if _beyond(pairs) and not any(0 in link for pair in pairs for link in pair.possible):
        pairs = [
            pair._replace(sure=_less(pair.sure), possible=_less(pair.possible)) for pair in pairs
        ]
        notes.append("the links count words from 1: none names 0")
        first = 1
    for pair, (source, target) in _beyond(pairs)[:1]:
        raise LoadError(
            f"{where} {pair.name} links words {source + first} and {target + first}, beyond its "
            f"sentences of {len(pair.source)} and {len(pair.target)} words: words count from "
            f"{first}{', as no link names 0' if first else ' where a link names 0'}"
        )
    return GoldPairs(pairs, prefix, tuple(notes))


def _file_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the cells of each row of a file."""
    source = repr(str(path))
    layout, lines = layout_of(path, text_lines(read_bytes(path, most=TEXTS_BYTES), source))
    if "json" in layout or path.suffix.lower() == ".csv":
        yield from table_rows(layout, lines, source)
        return
    for number, line in enumerate(lines, start=1):
        cells = _BETWEEN.split(line.strip(" "))
        if line.strip() and not (number == 1 and [*map(str.lower, cells)] == [*_COLUMNS]):
            yield number, dict(zip(_COLUMNS, cells, strict=False)) if len(cells) == 3 else cells


def _linked(row: Any, name: str, where: str) -> GoldPair:
    """Return a sentence pair of a row. where: names it in messages."""
    if not isinstance(row, Mapping) or not all(isinstance(row.get(key), str) for key in _COLUMNS):
        raise LoadError(
            f"{where} is not a sentence pair with links: expected {_EXPECTED}, in JSON {_AS_JSON}, "
            "in a table the header source, target, alignment"
        )
    source, target = (tuple(row[key].split()) for key in _COLUMNS[:2])
    if not source or not target:
        raise LoadError(f"{where} has no words on one side: expected {_EXPECTED}")
    read = [(text, _LINK.fullmatch(text)) for text in row["alignment"].split()]
    for text, match in read:
        if match is None:
            raise LoadError(f"{where} has {text!r} for a link: expected 0-2, or 0?2 if possible")
    links = [(match[2], (int(match[1]), int(match[3]))) for _, match in read if match]
    sure = frozenset(link for sign, link in links if sign == "-")
    return GoldPair(name, source, target, sure, frozenset(link for _, link in links))


def _less(links: frozenset[Link]) -> frozenset[Link]:
    return frozenset((source - 1, target - 1) for source, target in links)


def _beyond(pairs: Sequence[GoldPair]) -> list[tuple[GoldPair, Link]]:
    """Return the links to words that a pair does not have, each behind its pair."""
    return [
        (pair, link)
        for pair in pairs
        for link in sorted(pair.possible)
        if link[0] >= len(pair.source) or link[1] >= len(pair.target)
    ]


# What the model links ------------------------------------------------------------------------


@dataclass(frozen=True)
class Sentence(Example):
    """A sentence pair; its scores are the weights (head, target word, source word).

    gold: (link, target word, source word), the sure links and the possible ones.
    """

    pair: GoldPair
    gold: NDArray[np.bool_]

    def read(self, sets: Sequence[Heads]) -> NDArray[np.intp]:
        """Return the source word (set, target word) with the largest weight by sets of heads."""
        return self.mean(sets).argmax(axis=-1)

    def guess(self) -> NDArray[np.intp]:
        """Return the source words (1, target word) on the diagonal."""
        source, target = len(self.pair.source), len(self.pair.target)
        return ((np.arange(target) + 0.5) * source / target).astype(np.intp)[None]

    def facts(self, read: NDArray[np.intp]) -> Floats:
        """Return |A ∩ S|, |A ∩ P|, |A| and |S|, each (set,).

        A are the links that were read, S the sure ones and P the possible ones of the gold.
        """
        hits = self.gold[:, np.arange(read.shape[1]), read].sum(axis=-1)  # (sure or possible, set)
        sizes = [np.full(len(read), size) for size in (read.shape[1], len(self.pair.sure))]
        counts: Floats = np.stack([*hits, *sizes]).astype(np.float64)
        return counts

    def wrong(self, read: NDArray[np.intp]) -> Floats:
        """Return |A| + |S| − |A ∩ S| − |A ∩ P| and |A| + |S|, whose quotient is the error rate."""
        sure, possible, links, whole = self.facts(read)
        return np.stack([links + whole - sure - possible, links + whole], axis=1)

    def words(self, read: NDArray[np.intp]) -> list[LinkedWord]:
        pair = self.pair
        return [
            LinkedWord(
                pair=pair.name,
                position=at,
                word=pair.target[at],
                gold=" ".join(pair.source[place] for place in np.flatnonzero(self.gold[1, at])),
                by_heads=pair.source[source],
                source=source,
                link=self._kind(at, source),
            )
            for at, source in enumerate(read.tolist())
        ]

    def _kind(self, target: int, source: int) -> str:
        """Return what the gold says of a link, see ``LinkedWord``."""
        sure, possible = self.gold[:, target]
        if not possible.any():
            return "none"
        return "sure" if sure[source] else "possible" if possible[source] else "wrong"


def _told(counts: Floats) -> dict[str, float]:
    """Return precision and recall of the counts of all pairs, see ``Sentence.facts``."""
    sure, possible, links, whole = counts.sum(axis=-1).tolist()
    return {"precision": possible / links, "recall": sure / whole if whole else float("nan")}


def paired(model: Model, given: GoldPairs, advance: Advance) -> HeadStudy:
    """Return what a model that translates is asked of sentence pairs.

    The weight of two words is the sum over the pieces of the source word, in the mean of the rows
    of the target word's pieces. advance: see ``align``.
    """
    if not isinstance(model, TwoStackModel) or isinstance(model, SpeechModel):
        raise UnsupportedError(
            f"{model.info.name!r} translates no text: --pairs takes an encoder–decoder, such as "
            "Helsinki-NLP/opus-mt-en-de"
        )
    readings: dict[str, list[Sentence]] = {"writes": [], "reads": []}
    heads: list[tuple[int, int]] = []
    left = list[str]()
    for at, pair in enumerate(given.pairs):
        source, target = " ".join(pair.source), " ".join(pair.target)
        before = f"{given.prefix.strip()} ".lstrip()
        tokens = encoded(model, before + source, truncate=None)
        written = model.encode_target(target)
        keys = word_pieces(tokens, before + source, pair.source, len(before))
        rows = word_pieces(written, target, pair.target)
        advance((at + 1) / len(given.pairs))
        if keys is None or rows is None:
            left.append(pair.name)
            continue
        heads, weights = cross_weights(model, tokens, written, f"pair {pair.name}")
        gold = np.zeros((2, len(pair.target), len(pair.source)), np.bool_)
        for kind, links in enumerate((pair.sure, pair.possible)):
            for from_word, to_word in links:
                gold[kind, to_word, from_word] = True
        for way, back in (("writes", 1), ("reads", 0)):
            own = np.stack(
                [weights[:, [row - back for row in word]].mean(axis=1) for word in rows], 1
            )
            scores = np.stack([own[..., word].sum(axis=-1) for word in keys], axis=-1)
            readings[way].append(Sentence(pair.name, scores, pair, gold))
    spelled = f"the tokens of {len(left)} of {len(given.pairs)} pairs do not spell their words"
    if len(readings["reads"]) < 2:
        raise UsageError(f"{spelled}: write them as {model.info.name!r} does")
    lines = ", ".join(left[:3]) + ", …" * (len(left) > 3)
    notes = [*given.notes, *[f"{spelled}: left out (line {lines})"] * bool(left)]
    return HeadStudy(heads, readings, _told, "diagonal", notes=notes)


def word_pieces(
    tokens: Tokens, text: str, words: Sequence[str], begins: int = 0
) -> list[list[int]] | None:
    """Return the indices of the tokens of each word; None if a word has none.

    text: what the tokens spell, in which the words, a blank between each two, begin at ``begins``.
    A blank that is a token of its own belongs to the word after it.
    """
    spans = token_spans(tokens, text)
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=begins))
    pieces: list[list[int]] = [[] for _ in words]
    for at, (start, stop) in enumerate(spans):
        first = len(text) - len(text[start:].lstrip())
        word = bisect(starts, first) - 1
        if start < stop and word >= 0:  # what the tokenizer added has an empty span
            pieces[word].append(at)
    return pieces if all(pieces) else None
