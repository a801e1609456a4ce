"""Turns a tokenizer's pieces into readable texts, by the rules of its own decoder.

The byte alphabet of byte-level BPE is that of GPT-2 (Radford et al. 2019, ``encoder.py``).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.decoders import Decoder

from attnviz.errors import LoadError, UsageError
from attnviz.models.growth import replaced
from attnviz.models.model import UNKNOWN, Placed
from attnviz.records import Tokens

_LONE_BYTES = {0xDC00 + byte: f"<0x{byte:02X}>" for byte in range(0x80, 0x100)}
"""The characters by which ``surrogateescape`` replaces invalid UTF-8 bytes, and their texts."""


ReadPiece = Callable[[str], str]
"""Returns the text that a piece of a tokenizer's vocabulary stands for."""


def token_texts(tokenizer: Tokenizer, pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the text of each piece of a tokenizer's vocabulary, white space included.

    Byte-level pieces become text (``Ġcat`` is " cat"); bytes that are no complete character are
    written ``<0xED><0x95>``. Metaspace (``▁cat``) becomes a space before a word, the end of a word
    (``cat</w>``) one behind it. WordPiece's ``##ing``, byte fallback's ``<0xE2>`` and all else stay
    as they are, and so do special and added tokens, which are text already. The tokenizer's model
    and decoder decide, never the look of a piece.
    """
    read = _reader(tokenizer)
    verbatim = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return tuple(piece if piece in verbatim else read(piece) for piece in pieces)


def python_texts(tokenizer: Any, pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the text of each piece of a tokenizer that is written in Python; see ``token_texts``.

    How it joins two pieces tells what marks them.
    """

    def joins(first: str, second: str, text: str) -> bool:
        try:
            return bool(tokenizer.convert_tokens_to_string([first, second]).strip() == text)
        except Exception:  # its code need not know a piece with the marks of others
            return False

    if joins("b", "Ġa", "b a"):
        read = _bytes_to_text
    elif joins("Ã", "©", "é"):
        read = _byte_to_text
    elif joins("b</w>", "a</w>", "b a"):
        read = _ended(str, "</w>")
    elif joins("b@@", "a", "ba"):
        read = _ended(str, "@@", goes_on=True)
    else:
        read = _spaced
    verbatim = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return tuple(piece if piece in verbatim else read(piece) for piece in pieces)


_SPECIAL = re.compile(r"<(?!0x)[^<>\s]+>|\[[^\[\]\s]+\]")


def looks_special(text: str) -> bool:
    """Return whether a token is written like a special one, such as ``<s>`` or ``[SEP]``.

    The tokens of unknown and of hidden words are not special.
    """
    return _SPECIAL.fullmatch(text) is not None and text[1:-1].lower() not in ("unk", "mask")


def undone(pieces: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of the pieces of an unknown tokenizer, by the marks that they bear.

    Those that look special, and pieces without the marks of any tokenizer, stay as they are.
    """
    plain = [piece for piece in pieces if not looks_special(piece)]
    ends = any(piece.endswith("</w>") for piece in plain)
    bare = [piece.removesuffix("</w>") for piece in plain]
    read: ReadPiece = str
    if _in_alphabet(bare):
        read = _bytes_to_text
    elif _are_bytes(bare):
        read = _byte_to_text
    elif any(piece.startswith("▁") for piece in plain):
        read = _spaced
    elif not ends and any(piece.endswith("@@") and piece[:-2].isalnum() for piece in plain):
        read = _ended(str, "@@", goes_on=True)
    read = _ended(read, "</w>") if ends else read
    return tuple(piece if looks_special(piece) else read(piece) for piece in pieces)


def _in_alphabet(pieces: Sequence[str]) -> bool:
    """Return whether pieces are byte-level: letters of that alphabet that spell a text."""
    alphabet, joined = _byte_alphabet(), "".join(pieces)
    if joined.isascii() or any(letter not in alphabet for letter in joined):
        return False
    marked = "Ġ" in joined or "Ċ" in joined
    try:
        text = bytes(alphabet[letter] for letter in joined).decode()
    except UnicodeDecodeError:  # a character may be cut at an end
        return marked
    plain = all(letter in "\t\n\r" or unicodedata.category(letter) != "Cc" for letter in text)
    return plain and (marked or not text.isascii())


def _are_bytes(pieces: Sequence[str]) -> bool:
    """Return whether pieces are single bytes, each written as the character of its number."""
    if not pieces or any(len(piece) != 1 or piece > "\xff" for piece in pieces):
        return False
    try:
        return not "".join(pieces).encode("latin-1").decode().isascii()
    except UnicodeDecodeError:
        return False


def tokens_of(
    name: str, tokenizer: Tokenizer, found: Encoding, embeddings: int, special: Collection[int]
) -> Tokens:
    """Return the tokens of a text that ``tokenizer`` has encoded, as ``as_spelled`` does.

    name: of the model, for messages. found: the encoding. embeddings: how many ids the model has.
    special: the ids of special tokens. Raises LoadError for an id that the model does not have.
    """
    check_ids(name, found.ids, embeddings)
    none = (False,) * len(found.ids)
    tokens = Tokens(tuple(found.ids), token_texts(tokenizer, found.tokens), none)
    tokens = replace(tokens, spans=tuple(found.offsets))
    return as_spelled(tokens, found.special_tokens_mask, special)


def as_spelled(tokens: Tokens, added: Sequence[int], special: Collection[int]) -> Tokens:
    """Return the tokens of an encoded text, special ones marked, none of them doubled.

    added: 1 for each token that the tokenizer put around the text, else 0. Those that the text
    itself spells next to them are left out, such as the first ``<s>`` of ``<s><s>Hi``.
    special: the ids that are special wherever they stand. ``places`` of the result tells the
    indices of the tokens that are left.
    """
    runs = [[*run] for _, run in groupby(range(len(tokens)), lambda at: bool(added[at]))]
    ids, kept = [[tokens.ids[at] for at in run] for run in runs], list[int]()
    for number, run in enumerate(runs):
        if added[run[0]]:
            before, after = (
                ids[at] if 0 <= at < len(ids) else [] for at in (number - 1, number + 1)
            )
            run = run[: len(run) - _shared(ids[number], after)]
            run = run[_shared(before, ids[number]) :]
        kept += run
    marks = (bool(one) or number in special for one, number in zip(added, tokens.ids, strict=True))
    return replace(tokens, special=tuple(marks)).taken(kept)


def placed_tokens(tokens: Tokens, sides: Sequence[int | None]) -> Placed:
    """Return the tokens of one text or two, as ``as_spelled`` returns them, with their places.

    sides: the text of each token of the encoding, None for those that were added.
    """
    left = [sides[at] for at in tokens.places]
    return Placed(replace(tokens, kept=(), spans=()), tokens.spans, left)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many ids at the end of the first list are those at the start of the second."""
    most = min(len(first), len(second))
    return next((n for n in range(most, 0, -1) if [*first[-n:]] == [*second[:n]]), 0)


def special_ids(added: Mapping[int, AddedToken], named: Mapping[str, int | None]) -> frozenset[int]:
    """Return the ids of the special tokens that a text may spell, such as ``[SEP]``.

    A token that stands for a word, unknown or hidden by a mask, is none of them.
    added: the tokens beside the vocabulary by id. named: the ids of special tokens by their names,
        such as ``bos``.
    """
    ends = {named.get(name) for name in ("bos", "eos", "cls", "sep")}
    words = {named.get(name) for name in ("unk", "mask")} - ends
    return frozenset(
        number
        for number, token in added.items()
        if token.special
        and number not in words
        and token.content not in UNKNOWN
        and not token.content.startswith("<extra_id_")  # T5 hides words by these
    )


def _reader(tokenizer: Tokenizer) -> ReadPiece:
    """Return what turns a single piece into text: the steps of the tokenizer's decoder."""
    suffix = getattr(tokenizer.model, "end_of_word_suffix", None)
    steps = list[ReadPiece]()
    if tokenizer.decoder is not None and type(tokenizer.decoder) is not Decoder:  # not in Python
        # Only the pickled state has a decoder's type; that of the tokenizer has the vocabulary too.
        spec = [*_flatten(json.loads(tokenizer.decoder.__getstate__()))]
        steps = [step for part in spec if (step := _step(part)) is not None]
        suffix = suffix or next((part["suffix"] for part in spec if "suffix" in part), None)

    def read(piece: str) -> str:
        for step in steps:
            piece = step(piece)
        return piece

    return _ended(read, suffix) if suffix else read


def _ended(read: ReadPiece, mark: str, *, goes_on: bool = False) -> ReadPiece:
    """Return ``read``, with a blank behind each piece that ends a word.

    mark: what such a piece ends with; with ``goes_on`` what all others end with.
    """

    def undo(piece: str) -> str:
        bare = piece.removesuffix(mark)
        return read(bare) + " " * ((bare == piece) is goes_on)

    return undo


def _spaced(piece: str) -> str:
    return piece.replace("▁", " ")


def _byte_to_text(piece: str) -> str:
    return f"<0x{ord(piece):02X}>" if "\x80" <= piece <= "\xff" else piece


def _flatten(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if spec["type"] == "Sequence":
        for part in spec["decoders"]:
            yield from _flatten(part)
    else:
        yield spec


def _step(spec: dict[str, Any]) -> ReadPiece | None:
    match spec:
        case {"type": "ByteLevel"}:
            return _bytes_to_text
        case {"type": "Metaspace", "replacement": str(mark)}:
            return lambda piece: piece.replace(mark, " ")
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return lambda piece: replaced(piece, old, new)
    return None


@lru_cache(65_536)  # a corpus has the same pieces in every text
def _bytes_to_text(piece: str) -> str:
    alphabet = _byte_alphabet()
    try:
        raw = bytes(alphabet[character] for character in piece)
    except KeyError:  # outside the alphabet: text already, which the decoder lets through too
        return piece
    return raw.decode("utf-8", errors="surrogateescape").translate(_LONE_BYTES)


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte for each character of the alphabet of byte-level pieces.

    Printable Latin-1 bytes stand for themselves, the others follow from U+0100 in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(0x100) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + offset): byte for offset, byte in enumerate(moved)
    }


# Refusals ------------------------------------------------------------------------------------


def check_limit(name: str, added: int, limit: int | None) -> None:
    """Raise UsageError if ``limit`` is below the number of special tokens that the model adds.

    added: how many it adds to every text.
    """
    if limit is not None and limit < added:
        raise UsageError(
            f"{name!r} adds {added} special tokens to every text; a text cannot be cut to {limit}"
        )


def check_ids(name: str, ids: Iterable[int], embeddings: int) -> None:
    """Raise LoadError if a tokenizer gives a token id that the model has no embedding for.

    name: of the model, for the message. embeddings: how many it has.
    """
    beyond = next((number for number in ids if number >= embeddings), None)
    if beyond is not None:
        raise LoadError(
            f"the tokenizer of {name!r} gives the id {beyond}, the model has {embeddings} "
            "embeddings: tokenizer and model do not belong together"
        )
