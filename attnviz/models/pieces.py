"""Turns a tokenizer's pieces into readable texts, by the rules of its own decoder.

The byte alphabet of byte-level BPE is that of GPT-2 (Radford et al. 2019, ``encoder.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.decoders import Decoder

from attnviz.errors import LoadError, UsageError
from attnviz.models.growth import flattened, replaced
from attnviz.models.model import Placed
from attnviz.records import UNKNOWN, Tokens

_LONE_BYTES = {0xDC00 + byte: f"<0x{byte:02X}>" for byte in range(0x80, 0x100)}
"""The characters by which ``surrogateescape`` replaces invalid UTF-8 bytes, and their texts."""

_WORDS = (*UNKNOWN, "<extra_id_")
"""How tokens begin that stand for words; T5 hides some by the last."""

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


_SPECIAL = re.compile(r"(?i)(?!<0x|.(?:unk|mask).$)(?:<[^<>\s]+>|\[[^\[\]\s]+\])")


def looks_special(text: str) -> bool:
    """Return whether a token looks like ``<s>`` or ``[SEP]``; ``[UNK]`` and ``[MASK]`` do not."""
    return _SPECIAL.fullmatch(text) is not None


def undone(pieces: Sequence[str]) -> tuple[str, ...]:
    """Return the pieces of an unknown tokenizer as texts; special-looking ones are unchanged."""
    return tuple(map(reader_by(pieces), pieces))


def reader_by(pieces: Iterable[str], verbatim: Collection[str] = ()) -> ReadPiece:
    """Return what turns pieces with marks such as ``▁`` into text; verbatim ones stay so."""
    plain = [each for each in pieces if each not in verbatim and not looks_special(each)]
    bare = [piece.removesuffix("</w>") for piece in plain]
    read: ReadPiece = str
    if _spells_text(bare):
        read = _bytes_to_text
    elif any("\x80" <= piece <= "\x9f" for piece in plain) and max(map(len, plain)) == 1:
        read = _byte_to_text
    elif any(piece.startswith("▁") for piece in plain):
        read = _spaced
    elif bare == plain and any(piece.endswith("@@") and piece[:-2].isalnum() for piece in plain):
        read = _ended(str, "@@", goes_on=True)
    read = read if bare == plain else _ended(read, "</w>")
    return lambda piece: piece if piece in verbatim or looks_special(piece) else read(piece)


def _spells_text(pieces: Sequence[str]) -> bool:
    """Return whether pieces are byte-level: letters of that alphabet that spell another text."""
    alphabet, joined = _byte_alphabet(), "".join(pieces)
    if joined.isascii() or not alphabet.keys() >= set(joined):
        return False
    try:
        text = bytes(alphabet[letter] for letter in joined).decode()
    except UnicodeDecodeError:  # a character may be cut at an end
        return "Ġ" in joined
    return not re.search(r"[\0-\x08\x0e-\x1f\x7f]", text)


def tokens_of(
    name: str, tokenizer: Tokenizer, found: Encoding, embeddings: int, special: Collection[int]
) -> Tokens:
    """Return the tokens of a text that ``tokenizer`` has encoded, as ``as_spelled`` does.

    embeddings: how many ids the model has. Raises LoadError for an id that it does not have.
    """
    check_ids(name, found.ids, embeddings)
    none = (False,) * len(found.ids)
    # An encoding of Unigram has the letters that its ids hide behind <unk>.
    read = zip(found.ids, found.tokens, strict=True)
    pieces = [tokenizer.id_to_token(number) or text for number, text in read]
    tokens = Tokens(tuple(found.ids), token_texts(tokenizer, pieces), none)
    tokens = replace(tokens, spans=tuple(found.offsets))
    return as_spelled(tokens, found.special_tokens_mask, special)


def as_spelled(tokens: Tokens, added: Sequence[int], special: Collection[int]) -> Tokens:
    """Return the tokens of an encoded text, special ones marked, none of them doubled.

    added: 1 for each token that the tokenizer put around the text, else 0. Those that the text
    itself spells next to them are left out, such as the first ``<s>`` of ``<s><s>Hi``; ``places``
    of the result tells which are left. special: the ids that are special wherever they stand.
    """
    marks = tuple(bool(one) or at in special for one, at in zip(added, tokens.ids, strict=True))
    kept, runs = list[int](), [[*run] for _, run in groupby(range(len(added)), added.__getitem__)]
    for number, run in enumerate(runs):
        if added[run[0]]:
            before, after = ([*of] for of in (runs[:number][-1:], runs[number + 1 :][:1]))
            run = run[: len(run) - _shared(tokens, [run], after)]
            run = run[_shared(tokens, before, [run]) :]
        kept += run
    return replace(tokens, special=marks).taken(kept)


def placed_tokens(tokens: Tokens, sides: Sequence[int | None]) -> Placed:
    """Return tokens of ``as_spelled`` with their offsets. sides: as in ``Placed``, of all."""
    left = [sides[at] for at in tokens.places]
    return Placed(replace(tokens, kept=(), spans=()), tokens.spans, left)


def _shared(tokens: Tokens, *runs: Sequence[Sequence[int]]) -> int:
    """Return how many ids at the end of one run are those at the start of the next."""
    first, second = ([tokens.ids[at] for run in some for at in run] for some in runs)
    most = min(len(first), len(second))
    return next((n for n in range(most, 0, -1) if first[-n:] == second[:n]), 0)


def special_ids(added: Mapping[int, AddedToken], named: Mapping[str, int | None]) -> frozenset[int]:
    """Return the ids of special tokens that a text may spell; words' stand-ins are none."""
    ends = {named.get(name) for name in ("bos", "eos", "cls", "sep")}
    words = {named.get(name) for name in ("unk", "mask")} - ends
    words |= {at for at, token in added.items() if token.content.startswith(_WORDS)}
    return frozenset(at for at, token in added.items() if token.special) - words


def _reader(tokenizer: Tokenizer) -> ReadPiece:
    """Return what turns a single piece into text: the steps of the tokenizer's decoder."""
    suffix = getattr(tokenizer.model, "end_of_word_suffix", None)
    steps = list[ReadPiece]()
    if tokenizer.decoder is not None and type(tokenizer.decoder) is not Decoder:  # not in Python
        # Only the pickled state has a decoder's type; that of the tokenizer has the vocabulary too.
        spec = [*flattened(json.loads(tokenizer.decoder.__getstate__()), "decoders")]
        steps = [step for part in spec if (step := _step(part)) is not None]
        suffix = suffix or next((part["suffix"] for part in spec if "suffix" in part), None)

    def read(piece: str) -> str:
        for step in steps:
            piece = step(piece)
        return piece

    return _ended(read, suffix) if suffix else read


def _ended(read: ReadPiece, mark: str, *, goes_on: bool = False) -> ReadPiece:
    """Return ``read`` with a blank behind pieces that end a word: with ``mark``, or without."""

    def undo(piece: str) -> str:
        bare = piece.removesuffix(mark)
        return read(bare) + " " * ((bare == piece) is goes_on)

    return undo


def _spaced(piece: str) -> str:
    return piece.replace("▁", " ")


def _byte_to_text(piece: str) -> str:
    return f"<0x{ord(piece):02X}>" if "\x80" <= piece <= "\xff" else piece


def _step(spec: Mapping[str, Any]) -> ReadPiece | None:
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
    """Return the byte of each character of byte-level pieces: printable Latin-1, then U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(0x100) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + offset): byte for offset, byte in enumerate(moved)
    }


# Refusals ------------------------------------------------------------------------------------


def check_limit(name: str, added: int, limit: int | None) -> None:
    """Raise UsageError if ``limit`` is below the number of special tokens that the model adds."""
    if limit is not None and limit < added:
        raise UsageError(
            f"{name!r} adds {added} special tokens to every text; a text cannot be cut to {limit}"
        )


def check_ids(name: str, ids: Iterable[int], embeddings: int) -> None:
    """Raise LoadError if a tokenizer gives a token id that the model has no embedding for."""
    beyond = next((number for number in ids if number >= embeddings), None)
    if beyond is not None:
        raise LoadError(
            f"the tokenizer of {name!r} gives the id {beyond}, the model has {embeddings} "
            "embeddings: tokenizer and model do not belong together"
        )
