"""Turns a tokenizer's pieces into readable texts, and refuses tokenizers that cannot be trusted.

A piece is read by the rules of the tokenizer's own decoder. The byte alphabet of byte-level BPE is
that of GPT-2 (Radford et al. 2019, ``encoder.py``). A rule of four lines in a ``tokenizer.json``
may turn one character into 10¹² characters: how long an untrusted tokenizer would make a text is
estimated before the text is tokenised.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from itertools import groupby
from operator import methodcaller
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.decoders import Decoder
from tokenizers.normalizers import NFC, Normalizer

from attnviz.errors import LoadError, UsageError
from attnviz.models.checkpoint_files import file_names, side_files
from attnviz.models.model import Placed
from attnviz.reading import (
    TOKENIZER_BYTES,
    check_memory,
    check_size,
    damaged,
    read_bytes,
    read_json,
)
from attnviz.records import UNKNOWN, Tokens

# The characters by which ``surrogateescape`` replaces invalid UTF-8 bytes, and their texts.
_LONE_BYTES = {0xDC00 + byte: f"<0x{byte:02X}>" for byte in range(0x80, 0x100)}
# How tokens that stand for words begin; T5 hides some by the last.
_WORDS = (*UNKNOWN, "<extra_id_")
ReadPiece = Callable[[str], str]  # returns the text that a piece of a vocabulary stands for


def token_texts(tokenizer: Tokenizer, pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the text of each piece of a tokenizer's vocabulary, white space included.

    Byte-level pieces become text (``Ġcat`` is " cat"); bytes that are no complete character are
    written ``<0xED><0x95>``. Metaspace (``▁cat``) becomes a space before a word, the end of a word
    (``cat</w>``) one behind it. WordPiece's ``##ing``, byte fallback's ``<0xE2>`` and all else stay
    as they are, and so do special and added tokens, which are text already. The tokenizer's model
    and decoder decide, never the look of a piece.
    """
    suffix = getattr(tokenizer.model, "end_of_word_suffix", None)
    steps = list[ReadPiece]()
    if tokenizer.decoder is not None and type(tokenizer.decoder) is not Decoder:  # not in Python
        # Only the pickled state has a decoder's type; that of the tokenizer has the vocabulary too.
        spec = [*_flattened(json.loads(tokenizer.decoder.__getstate__()), "decoders")]
        steps = [step for part in spec if (step := _read_by(part)) is not None]
        suffix = suffix or next((part["suffix"] for part in spec if "suffix" in part), None)

    def read(piece: str) -> str:
        return reduce(lambda text, step: step(text), steps, piece)

    reading = _ended(read, suffix) if suffix else read
    verbatim = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return tuple(piece if piece in verbatim else reading(piece) for piece in pieces)


_SPECIAL = re.compile(r"(?i)(?!<0x|.(?:unk|mask).$)(?:<[^<>\s]+>|\[[^\[\]\s]+\])")


def looks_special(text: str) -> bool:
    """Return whether a token looks like ``<s>`` or ``[SEP]``; ``[UNK]`` and ``[MASK]`` do not."""
    return _SPECIAL.fullmatch(text) is not None


def undone(pieces: Sequence[str]) -> tuple[str, ...]:
    """Return the pieces of an unknown tokenizer as texts; special-looking ones are unchanged."""
    return tuple(map(reader_by(pieces), pieces))


def reader_by(pieces: Iterable[str], verbatim: Collection[str] = ()) -> ReadPiece:
    """Return what turns pieces with marks such as ``▁`` into text; verbatim ones stay so."""
    plain = [piece for piece in pieces if piece not in verbatim and not looks_special(piece)]
    bare = [piece.removesuffix("</w>") for piece in plain]
    read: ReadPiece = str
    if _spells_text(bare):
        read = _bytes_to_text
    elif any("\x80" <= piece <= "\x9f" for piece in plain) and max(map(len, plain)) == 1:
        read = _byte_to_text
    elif any(piece.startswith("▁") for piece in plain):
        read = methodcaller("replace", "▁", " ")
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
    name: str, tokenizer: Tokenizer, encoding: Encoding, embeddings: int, special: Collection[int]
) -> Tokens:
    """Return the tokens of an encoded text, see ``as_spelled``; LoadError for an unknown id."""
    ids = tuple(encoding.ids)
    check_ids(name, ids, embeddings)
    # An encoding of Unigram has the letters that its ids hide behind <unk>.
    read = zip(ids, encoding.tokens, strict=True)
    texts = token_texts(tokenizer, [tokenizer.id_to_token(at) or text for at, text in read])
    tokens = Tokens(ids, texts, (False,) * len(ids), spans=tuple(encoding.offsets))
    return as_spelled(tokens, encoding.special_tokens_mask, special)


def as_spelled(tokens: Tokens, added: Sequence[int], special: Collection[int]) -> Tokens:
    """Return the tokens of an encoded text, special ones marked, none of them doubled.

    added: 1 for each token that the tokenizer put around the text, else 0. Those that the text
    itself spells next to them are left out, such as the first ``<s>`` of ``<s><s>Hi``; ``places``
    of the result tells which are left. special: the ids that are special wherever they stand.
    """
    marks = tuple(bool(by) or at in special for by, at in zip(added, tokens.ids, strict=True))
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


def _ended(read: ReadPiece, mark: str, *, goes_on: bool = False) -> ReadPiece:
    """Return ``read`` with a blank behind pieces that end a word: with ``mark``, or without."""

    def undo(piece: str) -> str:
        bare = piece.removesuffix(mark)
        return read(bare) + " " * ((bare == piece) is goes_on)

    return undo


def _byte_to_text(piece: str) -> str:
    return f"<0x{ord(piece):02X}>" if "\x80" <= piece <= "\xff" else piece


def _read_by(spec: Mapping[str, Any]) -> ReadPiece | None:
    match spec:
        case {"type": "ByteLevel"}:
            return _bytes_to_text
        case {"type": "Metaspace", "replacement": str(mark)}:
            return lambda piece: piece.replace(mark, " ")
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return lambda piece: _replaced(piece, old, new)
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


# How long a tokenizer would make a text ----------------------------------------------------------


_GROWTH = 20  # characters that normalising may make of one; Unicode's longest decomposition has 18
_SLACK = 1024  # characters that any text may gain in addition
_PIECE = 2**16  # characters that are normalised at once to see how much they grow
_LONGEST = 256  # bytes that may replace a character; Unicode's longest decomposition has 57
_STEPS = 1000  # the most steps of a normalizer; of known tokenizers XLM's has the most, about forty

# Files that add tokens to those of ``tokenizer.json``.
_TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_ADDED = 1000  # the most special tokens that may be put around a text
_INSERTED = "\ufdd0"  # a Unicode noncharacter, which no text has: it counts insertions

# An ASCII letter written as its number, which no known program does: it may hide a name.
_ESCAPED = re.compile(r"\\u00[2-7]")


@dataclass(frozen=True)
class GrowthStep:
    """One step of a tokenizer's normalizer, with the data to estimate its output's length.

    normalizer: performs the step alone.
    longest: the characters that it inserts for each match, or before a text; 0 if they are few.
    counting: the same step inserting ``_INSERTED`` instead, to count the insertions.
    """

    normalizer: Normalizer
    longest: int = 0
    counting: Normalizer | None = None


def normalizer_steps(normalizer: Normalizer | None) -> list[GrowthStep]:
    """Return the steps of a tokenizer's normalizer, for ``check_growth``."""
    if normalizer is None:
        return []
    if type(normalizer) is Normalizer:  # written in Python by the caller
        return [GrowthStep(normalizer)]
    return [*_steps(json.loads(normalizer.__getstate__()))]


def check_growth(name: str, steps: Sequence[GrowthStep], text: str) -> None:
    """Raise LoadError if the normalizer of the tokenizer of ``name`` would make a text too long."""
    grown, most = 0, _GROWTH * len(text) + _SLACK
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        for step in steps:
            length = len(piece)
            if step.counting is not None:
                length += step.longest * step.counting.normalize_str(piece).count(_INSERTED)
            if length > most or len(piece := step.normalizer.normalize_str(piece)) > most:
                raise _grows_too_long(f"the tokenizer of {name!r}")
        grown += len(piece)
        if grown > most:
            raise _grows_too_long(f"the tokenizer of {name!r}")


def check_files(name: str, directory: Path) -> None:
    """Raise LoadError if a tokenizer's files are too large, or its added tokens grow too long."""
    names = file_names(directory)
    for file in {*side_files(names, False), *(file for file in names if file.endswith(".json"))}:
        check_size(directory / file, TOKENIZER_BYTES)
    path = directory / "tokenizer.json"
    if not path.is_file():
        return
    with damaged(f"the tokenizer.json of {name!r}"):
        text = read_bytes(path, most=TOKENIZER_BYTES).decode("utf-8")
        check_memory(text, f"the tokenizer.json of {name!r}", TOKENIZER_BYTES)
        for processor in _values(text, "post_processor"):
            _check_template(name, processor)
        steps = [step for spec in _values(text, "normalizer") for step in _steps(spec)]
        if steps:
            others = [read_json(directory / file) for file in names.intersection(_TOKENS)]
            added = _strings([*_values(text, "added_tokens"), others])
            check_growth(name, steps, "\n".join(added))


def _replaced(piece: str, old: str, new: str) -> str:
    """Return a string with ``new`` for each ``old``; raise LoadError if it would grow too long."""
    if len(piece) + piece.count(old) * len(new) > _GROWTH * len(piece) + _SLACK:
        raise _grows_too_long("the decoder of a tokenizer")
    return piece.replace(old, new)


def _grows_too_long(name: str) -> LoadError:
    return LoadError(
        f"{name} cannot be used: it makes more than {_GROWTH} characters of each character of a "
        "text"
    )


def _steps(spec: Mapping[str, Any] | None) -> Iterator[GrowthStep]:
    """Yield the steps of a normalizer; raise LoadError for too many or too long inserted texts."""
    for number, part in enumerate(_flattened(spec, "normalizers")):
        if number == _STEPS:
            raise LoadError(f"a normalizer has more than {_STEPS:,} steps")
        match part:
            case {"type": "Replace", "content": str(content)} if len(content) > _GROWTH:
                yield GrowthStep(_built(part), len(content), _built({**part, "content": _INSERTED}))
            case {"type": "Prepend", "prepend": str(content)} if len(content) > _GROWTH:
                yield GrowthStep(_built(part), len(content), _built({**part, "prepend": _INSERTED}))
            case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
                raw = base64.b64decode(table)
                texts = raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")
                if max(map(len, texts)) > _LONGEST:
                    raise LoadError(f"a normalizer puts over {_LONGEST} bytes for one character")
                yield GrowthStep(_built(part))
            case _:
                yield GrowthStep(_built(part))


def _built(spec: Mapping[str, Any]) -> Normalizer:
    normalizer: Normalizer = NFC()
    normalizer.__setstate__(json.dumps(spec).encode())
    return normalizer


def _check_template(name: str, processor: Mapping[str, Any] | None) -> None:
    for part in _flattened(processor, "processors"):
        if part["type"] != "TemplateProcessing":
            continue
        special = {token: len(fields["ids"]) for token, fields in part["special_tokens"].items()}
        for pieces in (part["single"], part["pair"]):
            texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
            around = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
            added = sum(special.get(token, 0) for token in around)
            if len(set(texts)) < len(texts) or added > _ADDED:
                raise LoadError(
                    f"the tokenizer of {name!r} cannot be used: it repeats a text, or puts more "
                    f"than {_ADDED:,} special tokens around it"
                )


def _flattened(spec: Mapping[str, Any] | None, parts: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a JSON object, those of a ``Sequence`` under the field ``parts``."""
    if spec is None:
        return
    if spec["type"] != "Sequence":
        yield spec
        return
    for part in spec[parts]:
        yield from _flattened(part, parts)


def _values(text: str, name: str) -> Iterator[Any]:
    """Yield the objects and lists that a field has anywhere in a JSON text.

    Parsing all of it, with the vocabulary, would take as long as opening the tokenizer. A name in
    quotes and a colon cannot occur within a JSON string, whose quotes are escaped.
    """
    if _ESCAPED.search(text):
        yield json.loads(text).get(name)
        return
    decoder, key, end = json.JSONDecoder(), re.compile(rf'"{name}"\s*:\s*(?=[\[{{])'), 0
    while (match := key.search(text, end)) is not None:
        value, end = decoder.raw_decode(text, match.end())
        yield value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _strings(part)
