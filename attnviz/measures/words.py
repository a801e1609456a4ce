"""Finds words in a tokenised text, however many tokens they were split into."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnviz.errors import UsageError
from attnviz.records import AttentionRecord, Tokens

_BYTES = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")


def joined(tokens: Tokens) -> str:
    """Return the text of tokens without the special ones."""
    pairs = zip(tokens.texts, tokens.special, strict=True)
    return "".join(text for text, special in pairs if not special).strip()


def word_spans(tokens: Tokens, word: str) -> list[range]:
    """Return the token ranges whose text is ``word``, in order.

    Whole words if there are any, else parts of words (``at`` in ``m|at``); in either case first
    with the given upper and lower case, then with any.
    """
    wanted = word.strip()
    if not wanted:
        return []
    found = [_spans(tokens.texts, wanted, fold) for fold in (str, str.casefold)]
    whole = [[span for span in spans if _is_whole(tokens.texts, span)] for spans in found]
    return next((spans for spans in (*whole, *found) if spans), [])


def _is_whole(texts: Sequence[str], span: range) -> bool:
    """Return whether no letter is next to the span; True if the tokens do not mark blanks."""
    if not any(text.startswith(" ") for text in texts):
        return True
    before = texts[span.start - 1][-1:] if span.start else ""
    after = texts[span.stop][:1] if span.stop < len(texts) else ""
    begins = texts[span.start][:1].isspace() or not before.isalnum()
    return begins and not after.isalnum()


def _spans(texts: Sequence[str], word: str, fold: Callable[[str], str]) -> list[range]:
    found: list[range] = []
    wanted = fold(word)
    start = 0
    while start < len(texts):
        end = start + 1
        joined = fold(_joined(texts[start:end]))
        while joined and end < len(texts) and _may_become(joined, wanted):
            end += 1
            joined = fold(_joined(texts[start:end]))
        if joined == wanted:
            found.append(range(start, end))
            start = end
        else:
            start += 1
    return found


def _may_become(joined: str, wanted: str) -> bool:
    """Return whether further tokens can complete ``joined`` to the wanted word.

    An incomplete character at its end is U+FFFD.
    """
    whole = joined.removesuffix("\ufffd")
    return joined != wanted and len(whole) < len(wanted) and wanted.startswith(whole)


def _joined(texts: Sequence[str]) -> str:
    return text_of(texts).strip()


def text_of(texts: Sequence[str]) -> str:
    """Return the text of neighbouring tokens: bytes joined, WordPiece's ``##`` removed."""
    pieces = [text.removeprefix("##") if place else text for place, text in enumerate(texts)]

    def decoded(match: re.Match[str]) -> str:
        numbers = re.findall(r"0x([0-9A-Fa-f]{2})", match.group())
        return bytes.fromhex("".join(numbers)).decode("utf-8", "replace")

    return _BYTES.sub(decoded, "".join(pieces))


# A requested word ----------------------------------------------------------------------------


class Word(NamedTuple):
    """A word of the text.

    span: its tokens. elsewhere: the first token of each other occurrence.
    """

    span: range
    elsewhere: tuple[int, ...] = ()


WordPlaces = tuple[Word | None, Word | None]
"""A word's place among the queries and among the keys; None if it is not there."""


def find_word(record: AttentionRecord, wanted: str) -> WordPlaces:
    """Return where a word, or the token of an index, is among the queries and among the keys.

    ``WORD:2`` is the word's second occurrence. Raises UsageError if it is in neither.
    """
    queries = find_in(record.queries, wanted)
    keys = queries if record.keys is record.queries else find_in(record.keys, wanted)
    if queries is None and keys is None:
        last = max(len(record.queries), len(record.keys)) - 1
        raise UsageError(
            f"no token {wanted!r} in the text: give a word of it, WORD:2 for its second place, or "
            f"an index from 0 to {last}"
        )
    return queries, keys


def find_in(tokens: Tokens, wanted: str) -> Word | None:
    """Return the token of an index, or the requested or first occurrence of a word."""
    if re.fullmatch(r"-?[0-9]{1,18}", wanted):
        place = int(wanted) + (len(tokens) if wanted.startswith("-") else 0)
        return Word(range(place, place + 1)) if 0 <= place < len(tokens) else None
    spans, chosen = word_spans(tokens, wanted), 0
    numbered = re.fullmatch(r"(.+):([1-9][0-9]{0,8})", wanted, re.DOTALL)
    if not spans and numbered:
        spans, chosen = word_spans(tokens, numbered[1]), int(numbered[2]) - 1
    if chosen >= len(spans):
        return None
    others = tuple(span.start for place, span in enumerate(spans) if place != chosen)
    return Word(spans[chosen], others)
