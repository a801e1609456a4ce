"""Finds words in a tokenised text, however many tokens they were split into."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from attnviz.errors import UsageError
from attnviz.records import AttentionRecord, Tokens

_WITHOUT_BLANKS = ("CJK", "HIRAGANA", "KATAKANA")
_CONTRACTION = re.compile("['’](?:d|ll|m|re|s|t|ve)", re.IGNORECASE)
"""The end of an English word that byte-level tokenizers cut off, as in ``don't`` and ``dog's``."""

_BYTES = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")
_NUMBERED = re.compile(
    r"“?(.+?)”?(?:(?: \(|#)(?P<token>[0-9]{1,9})\)?|:(?P<nth>[1-9][0-9]{0,8}))", re.S
)


def joined(tokens: Tokens) -> str:
    """Return the tokens as one string, without the special ones."""
    pairs = zip(tokens.texts, tokens.special, strict=True)
    return "".join(text for text, special in pairs if not special).strip()


def word_spans(tokens: Tokens, word: str) -> list[range]:
    """Return the token ranges whose text is ``word``, in order.

    Whole words are preferred to parts of words (``at`` in ``m|at``); of either, those with the
    given upper and lower case to those with any. A word that is not there is looked for without
    accents, which a tokenizer may drop, then inside tokens with more than the word, as ``mat.``.
    """
    wanted = word.strip()
    if not wanted:
        return []
    texts = tokens.spaced
    every = [_spans(texts, wanted, fold) for fold in (str, str.casefold)]
    whole = [[span for span in spans if _is_whole(texts, span)] for spans in every]
    known = next((spans for spans in (*whole, *every) if spans), [])
    if not known:
        accented = any(map(unicodedata.combining, unicodedata.normalize("NFD", "".join(texts))))
        known = [] if accented else _spans(texts, _bare(wanted), str.casefold)
    read = ["" if special else text for text, special in zip(texts, tokens.special, strict=True)]
    return known or _within(read, wanted)


def _bare(word: str) -> str:
    """Return a word without accents and invisible characters, or itself if nothing is left."""
    letters = unicodedata.normalize("NFD", word)
    shown = (letter for letter in letters if unicodedata.category(letter) != "Cf")
    return "".join(letter for letter in shown if unicodedata.combining(letter) < 200) or word


def _within(texts: Sequence[str], word: str) -> list[range]:
    """Return the fewest tokens that have ``word`` and no letter next to it, wherever it stands."""
    looked_for = re.compile(rf"(?<!\w){re.escape(unicodedata.normalize('NFC', word))}(?!\w)")
    spans: list[range] = []
    first = 0
    for end in range(1, len(texts) + 1):
        text, start = "", end
        while start > first and len(text) <= len(word) + len(texts[end - 1]):
            start -= 1
            text = unicodedata.normalize("NFC", text_of(texts[start:end]))
            if looked_for.search(text):
                if _is_whole(texts, range(start, end)):
                    spans.append(range(start, end))
                    first = end
                break
    return spans


def _is_whole(texts: Sequence[str], span: range) -> bool:
    """Return True if a range of tokens is a whole word: no letter is next to it."""
    if not any(text.startswith(" ") for text in texts):  # the tokens do not mark blanks
        return True
    before = texts[span.start - 1][-1:] if span.start else ""
    after = texts[span.stop][:1] if span.stop < len(texts) else ""
    begins = texts[span.start][:1].isspace() or not before.isalnum()
    return begins and not after.isalnum()


def _spans(texts: Sequence[str], word: str, fold: Callable[[str], str]) -> list[range]:
    def joined(start: int, end: int) -> str:
        """Return tokens as one string, with letters taken apart, as some tokenizers write them."""
        return unicodedata.normalize("NFD", fold(text_of(texts[start:end]).strip()))

    spans: list[range] = []
    wanted = unicodedata.normalize("NFD", fold(word))
    start = 0
    while start < len(texts):
        end = start + 1
        text = joined(start, end)
        while text and text != wanted and end < len(texts):
            whole = text.removesuffix("\ufffd")  # an incomplete character
            if len(whole) >= len(wanted) or not wanted.startswith(whole):
                break
            end += 1
            text = joined(start, end)
        if text == wanted:
            spans.append(range(start, end))
        start = end if text == wanted else start + 1
    return spans


def text_of(texts: Sequence[str]) -> str:
    """Return neighbouring tokens as one string: bytes joined, WordPiece's ``##`` removed."""
    pieces = [*texts[:1], *(text.removeprefix("##") for text in texts[1:])]

    def decoded(match: re.Match[str]) -> str:
        numbers = re.findall(r"0x([0-9A-Fa-f]{2})", match.group())
        return bytes.fromhex("".join(numbers)).decode("utf-8", "replace")

    return _BYTES.sub(decoded, "".join(pieces))


def word_ranges(tokens: Tokens) -> list[range]:
    """Return the token range of each word, punctuation mark and special token, in order.

    A token continues a word if it begins with ``##`` or inside a character, or, where the tokens
    mark the blanks between words, with a letter or as the end of ``didn't``. A Han or kana
    character is a word of its own. A blank that is a token of its own belongs to the word after it.
    """
    texts = tokens.spaced
    marked = any(text.startswith(" ") for text in texts)
    words: list[range] = []
    inside = blank = joined = False
    for index, (text, special) in enumerate(zip(texts, tokens.special, strict=True)):
        first = text.removeprefix("##")
        is_byte = _BYTES.match(first) is not None
        inside_character = is_byte and 0x80 <= int(first[3:5], 16) < 0xC0
        goes_on = text.startswith("##") or (marked and _goes_on(first)) or inside_character
        begun = blank and (is_byte or first[:1].isalnum())
        # WordPiece parts ``don't`` into ``don``, ``'`` and ``t``, and does not mark blanks.
        near = tokens.spans[max(index - 1, 0) : index + 2]
        touches = all(own[1] == other[0] for own, other in pairwise(near))
        ending = "".join(texts[index : index + 2]) if inside and touches and not marked else ""
        cut = len(first) == 1 and _CONTRACTION.fullmatch(ending) is not None
        if not special and (begun or joined or cut or (inside and goes_on)):
            words[-1] = range(words[-1].start, index + 1)
        else:
            words.append(range(index, index + 1))
        end = text_of(texts[words[-1].start : index + 1])[-1:] if is_byte else first[-1:]
        inside = not special and (end == "\ufffd" or end.isalnum())  # \ufffd: half a character
        blank, joined = text == " " and not special, cut
    return words


def words_of_tokens(tokens: Tokens) -> list[range]:
    """Return for each token the range of tokens of the word that it belongs to."""
    return [word for word in word_ranges(tokens) for _ in word]


def word_text(tokens: Tokens, word: range) -> str:
    """Return the text of a word. word: the range of its tokens."""
    return text_of(tokens.texts[word.start : word.stop]).strip()


def is_mark(letter: str) -> bool:
    """Return True if a character is punctuation, a sign such as a plus, or invisible; no emoji."""
    category = unicodedata.category(letter)
    return category[0] == "P" or category in ("Sm", "Sc", "Sk", "Cc", "Cf")


def _goes_on(text: str) -> bool:
    """Return whether a token can continue a word, in a script that has blanks between words."""
    first = text[:1]
    if _BYTES.match(text):
        return not 0xE2 <= int(text[3:5], 16) <= 0xE9  # these begin quotes, most Han and kana
    if not first.isascii() and unicodedata.name(first, "").startswith(_WITHOUT_BLANKS):
        return False
    return first.isalnum() or _CONTRACTION.fullmatch(text) is not None


# A requested word ----------------------------------------------------------------------------


class Word(NamedTuple):
    """The range of a word's tokens, and the first token of each other occurrence in the text."""

    span: range
    elsewhere: tuple[int, ...] = ()


WordPlaces = tuple[Word | None, Word | None]
"""A word's place among the queries and among the keys; None if it is not there."""


def find_word(record: AttentionRecord, wanted: str) -> WordPlaces:
    """Return where a word is among queries and keys, None for nowhere; UsageError if in neither."""
    queries = find_in(record.queries, wanted)
    keys = queries if record.keys is record.queries else find_in(record.keys, wanted)
    if queries is None and keys is None:
        raise _absent(wanted, max(len(record.queries), len(record.keys)))
    return queries, keys


def place_of(tokens: Tokens, wanted: str) -> int:
    """Return the last token's index of the word that a person means; UsageError if not there."""
    word = find_in(tokens, wanted)
    if word is None:
        raise _absent(wanted, len(tokens))
    return word.span[-1]


def _absent(wanted: str, count: int) -> UsageError:
    return UsageError(
        f"no token {wanted!r} in the text: give a word in it, WORD:2 for its second occurrence, "
        f"or an index from 0 to {count - 1}"
    )


def find_in(tokens: Tokens, wanted: str) -> Word | None:
    """Return the tokens of the word that a person means; None if the text does not have it.

    wanted: a word, an index, negative from the end, ``WORD:2`` for a word's second occurrence, or
        the word with its token as screens show it, ``her (12)`` or ``“her” (12)``; ``her#12`` is
        the same. A number beyond the text, such as a year, is a word.
    """
    if re.fullmatch(r"-?[0-9]{1,18}", wanted):
        index = int(wanted) + (len(tokens) if wanted.startswith("-") else 0)
        if 0 <= index < len(tokens):
            return Word(range(index, index + 1))
    spans, chosen = word_spans(tokens, wanted), 0
    if not spans and (numbered := _NUMBERED.fullmatch(wanted)):
        spans = word_spans(tokens, numbered[1])
        if numbered["nth"]:
            chosen = int(numbered["nth"]) - 1
        else:
            at = int(numbered["token"])
            chosen = next((nth for nth, span in enumerate(spans) if at in span), len(spans))
    if chosen >= len(spans):
        return None
    others = tuple(span.start for index, span in enumerate(spans) if index != chosen)
    return Word(spans[chosen], others)
