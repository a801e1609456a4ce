"""How often a head finds the word that another word belongs to (Clark et al. 2019, section 4.2)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Tokens


@dataclass(frozen=True)
class WordPair:
    """An annotated pair of words of a sentence with a grammatical relation.

    relation: such as ``subject``. dependent, head: the indices of both words in the sentence.
    """

    relation: str
    dependent: int
    head: int


@dataclass(frozen=True)
class AnnotatedSentence:
    """A sentence in which a person has annotated pairs of related words.

    text: the whole sentence.
    words: for each word the range of its characters in ``text``, without punctuation at its ends.
    pairs: the related words. line: its number in the file, counted from 1.
    """

    text: str
    words: tuple[range, ...]
    pairs: tuple[WordPair, ...]
    line: int

    def __post_init__(self) -> None:
        for pair in self.pairs:
            if not {pair.dependent, pair.head} <= set(range(len(self.words))):
                raise ValueError(f"no such words: {pair}")


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTINUES = "##"
_GAP = 64
"""The most characters that one unknown token may stand for."""


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
    taken: set[int] = set()
    found = []
    for word in words:
        pieces = tuple(
            token
            for token, span in enumerate(spans)
            if token not in taken and span.start < word.stop and word.start < span.stop
        )
        taken.update(pieces)
        found.append(pieces)
    return tuple(found)


def _spans(
    tokens: Tokens, text: str, units: Callable[[str], Iterator[tuple[str, int]]]
) -> list[range] | None:
    """Return the range of each token's characters in the text; None if tokens and text differ.

    units: yields the characters to compare and their character offsets.
    """
    stream = list(units(text))
    joined = "".join(unit for unit, _ in stream)
    places = [place for _, place in stream] + [len(text)]
    spans: list[range] = []
    at, unknown = 0, None
    for index, (piece, special) in enumerate(zip(tokens.texts, tokens.special, strict=True)):
        wanted = "" if special else "".join(unit for unit, _ in units(piece))
        if not joined.startswith(wanted, at):
            shorter = "".join(unit for unit, _ in units(piece.removeprefix(_CONTINUES)))
            wanted = shorter if joined.startswith(shorter, at) else wanted
        found = at
        if not joined.startswith(wanted, at):
            found = joined.find(wanted, at, at + _GAP) if unknown is not None else -1
            if found < 0 and unknown is None:
                unknown = index
                spans.append(range(places[at], places[at]))
                continue
            if found < 0:
                return None
        if unknown is not None and wanted:
            spans[unknown] = range(places[at], places[found])
            unknown = None
        at = found + len(wanted)
        end = places[at - 1] + 1 if wanted else places[found]
        spans.append(range(places[found], end))
    if unknown is not None:
        spans[unknown] = range(places[at], len(text))
    return spans if unknown is not None or at >= len(joined) else None


def _raw(text: str) -> Iterator[tuple[str, int]]:
    """Yield the bytes of a text without blanks as Latin-1, with their character offsets."""
    place = 0
    while place < len(text):
        byte = _BYTE.match(text, place) if text[place] == "<" else None
        if byte is not None:
            yield chr(int(byte[1], 16)), place
            place = byte.end()
            continue
        if not text[place].isspace():
            for number in text[place].encode("utf-8", "surrogatepass"):
                yield chr(number), place
        place += 1


def _folded(text: str) -> Iterator[tuple[str, int]]:
    """Yield a text's characters without case, accents and blanks, with their offsets."""
    for place, character in enumerate(text):
        for unit in unicodedata.normalize("NFKD", character).casefold():
            if not unit.isspace() and not unicodedata.combining(unit):
                yield unit, place


_TIE = 1e-6
"""How far equal weights may differ by rounding."""


@dataclass(frozen=True, eq=False)
class FoundPair:
    """The result of testing which heads find one annotated word pair.

    relation: its name. offset: from the query word to the key word, in words and punctuation marks.
    by_chance: the chance that uniform attention over the tokens finds the pair. Words of several
        tokens get more of it, and words that tie for the largest weight share the hit.
    hits: (head,) 1 if the head's largest weight is on the annotated word, else 0; words that tie
        for the largest share the hit. NaN if the weights are NaN.
    """

    relation: str
    offset: int
    by_chance: float
    hits: NDArray[np.float64]


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

    def find(self, weights: NDArray[np.floating], seen: NDArray[np.bool_]) -> list[FoundPair]:
        """Return for each annotated word pair which heads find it.

        weights: the attention weights (head, query, key) over the tokens. seen: (query, key), True
            where a token sees another. A pair whose words do not see each other is left out.
        """
        visible = (self._of_unit.T @ seen @ self._of_unit).astype(int)
        by_word = word_weights(weights, self.units)
        every = np.arange(len(self.units))
        by_word[:, every, every] = -1.0
        most = by_word.max(-1, keepdims=True)
        largest = (by_word >= most * (1 - _TIE)) & (most > 0)
        shares = largest / np.maximum(largest.sum(-1, keepdims=True), 1)
        shares[np.isnan(most[..., 0])] = np.nan
        found = []
        for relation, query, key in self.pairs:
            others = visible[query].copy()
            others[query] = 0
            largest = others == others.max()
            by_chance = float(largest[key] / largest.sum())
            if others[key]:
                found.append(FoundPair(relation, key - query, by_chance, shares[:, query, key]))
        return found

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
    found = np.zeros((tokens, len(words)))
    for word, places in enumerate(words):
        found[list(places), word] = 1
    return found


def relation_base_rate(found: Sequence[FoundPair]) -> float:
    """Return the base rate of a relation: the share of word pairs found without looking at words.

    It is that of the best fixed offset, or of uniform attention if that is more; 0 without pairs.
    """
    offsets = Counter(pair.offset for pair in found)
    even = sum(pair.by_chance for pair in found)
    return max(max(offsets.values()), even) / len(found) if found else 0.0
