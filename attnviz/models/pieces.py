"""Turns a tokenizer's pieces into readable texts, by the rules of its own decoder.

The byte alphabet of byte-level BPE is that of GPT-2 (Radford et al. 2019, ``encoder.py``).
"""

from __future__ import annotations

import json
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


def token_texts(tokenizer: Tokenizer, pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the text of each piece of a tokenizer's vocabulary, white space included.

    Byte-level pieces become text (``Ġcat`` is " cat"); bytes that are no complete character are
    written ``<0xED><0x95>``. Metaspace (``▁cat``) becomes a space. WordPiece's ``##ing``, byte
    fallback's ``<0xE2>`` and all else stay as they are, and so do special and added tokens, which
    are text already. The tokenizer's decoder decides, never the look of a piece.
    """
    steps = _steps(tokenizer)
    verbatim = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return tuple(piece if piece in verbatim else _apply(steps, piece) for piece in pieces)


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
            before, after = (ids[at] if 0 <= at < len(ids) else [] for at in (number - 1, number + 1))
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


def special_ids(
    added: Mapping[int, AddedToken], named: Mapping[str, int | None]
) -> frozenset[int]:
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


def _apply(steps: list[Callable[[str], str]], piece: str) -> str:
    for step in steps:
        piece = step(piece)
    return piece


def _steps(tokenizer: Tokenizer) -> list[Callable[[str], str]]:
    """Return the steps of the tokenizer's decoder that turn a single piece into text."""
    if tokenizer.decoder is None or type(tokenizer.decoder) is Decoder:  # written in Python
        return []
    # Only the pickled state has a decoder's type; that of the tokenizer has the vocabulary too.
    spec = json.loads(tokenizer.decoder.__getstate__())
    return [step for part in _flatten(spec) if (step := _step(part)) is not None]


def _flatten(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if spec["type"] == "Sequence":
        for part in spec["decoders"]:
            yield from _flatten(part)
    else:
        yield spec


def _step(spec: dict[str, Any]) -> Callable[[str], str] | None:
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
