"""Which tokens make up each word of a text, whatever the tokenizer did to the text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from attnviz.records import Tokens

__all__ = ["word_pieces"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTINUES = "##"
_GAP = 64
"""The most characters that one unknown token may stand for."""


def word_pieces(
    tokens: Tokens, text: str, words: Sequence[range]
) -> tuple[tuple[int, ...], ...] | None:
    """Of each word the indices of its tokens, or None where the tokens are not those of the text.

    words: the characters of each word in ``text``. A token that stands for an unknown word takes
    up what lies between its neighbours. A token of two words is the first one's.
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
    """Of each token the characters of the text; empty for special ones."""
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
    """The bytes of a text as characters of Latin-1, blanks aside, each with its character."""
    place = 0
    while place < len(text):
        byte = _BYTE.match(text, place)
        if byte is not None:
            yield chr(int(byte[1], 16)), place
            place = byte.end()
            continue
        if not text[place].isspace():
            for number in text[place].encode("utf-8", "surrogatepass"):
                yield chr(number), place
        place += 1


def _folded(text: str) -> Iterator[tuple[str, int]]:
    """The characters of a text without case, accents and blanks, each with its place."""
    for place, character in enumerate(text):
        for unit in unicodedata.normalize("NFKD", character).casefold():
            if not unit.isspace() and not unicodedata.combining(unit):
                yield unit, place
