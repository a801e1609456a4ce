"""Estimates how long an untrusted tokenizer would make a text, before the text is tokenised.

A rule of four lines in a ``tokenizer.json`` may turn one character into 10¹² characters.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers.normalizers import NFC, Normalizer

from attnviz.errors import LoadError
from attnviz.models.checkpoint_files import file_names, side_files
from attnviz.reading import (
    TOKENIZER_BYTES,
    check_memory,
    check_size,
    damaged,
    read_bytes,
    read_json,
)

_GROWTH = 20
"""Characters that normalising may make of one; the longest decomposition in Unicode has 18."""

_SLACK = 1024
"""Characters that any text may gain in addition."""

_PIECE = 2**16
"""Characters that are normalised at once to see how much they grow."""

_LONGEST = 256
"""Bytes by which a table may replace a character; the longest Unicode decomposition has 57."""

_STEPS = 1000
"""The most steps of a normalizer; of known tokenizers XLM's has the most, about forty."""

_TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Files that add tokens to those of ``tokenizer.json``."""

_ADDED = 1000
"""The most special tokens that may be put around a text."""

_MARK = "\ufdd0"
"""A Unicode noncharacter, which no text has; it counts how often a step inserts text."""

_ESCAPED = re.compile(r"\\u00[2-7]")
"""An ASCII letter written as its number, which no known program does: it may hide a name."""


class Growth:
    """Checks how much the normalizer of the tokenizer of a model ``name`` would lengthen a text."""

    def __init__(self, name: str, normalizer: Normalizer | None) -> None:
        self._name = name
        if normalizer is None:
            self._steps: list[_Step] = []
        elif type(normalizer) is Normalizer:  # written in Python by the caller
            self._steps = [_Step(normalizer)]
        else:
            self._steps = [*_steps(json.loads(normalizer.__getstate__()))]

    def check(self, text: str) -> None:
        """Raise LoadError if the normalizer would make the text too long."""
        if self._steps:
            _check(self._name, self._steps, text)


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
            said = [read_json(directory / file) for file in names.intersection(_TOKENS)]
            _check(name, steps, "\n".join(_strings([*_values(text, "added_tokens"), said])))


def replaced(piece: str, old: str, new: str) -> str:
    """Return a string with ``new`` for each ``old``; raise LoadError if it would grow too long."""
    if len(piece) + piece.count(old) * len(new) > _GROWTH * len(piece) + _SLACK:
        raise _grows_too_long("the decoder of a tokenizer")
    return piece.replace(old, new)


@dataclass(frozen=True)
class _Step:
    """One step of a tokenizer's normalizer, with the data to estimate its output's length.

    normalizer: performs the step alone.
    longest: the characters that it inserts for each match, or before a text; 0 if they are few.
    counting: the same step inserting ``_MARK`` instead, to count the insertions.
    """

    normalizer: Normalizer
    longest: int = 0
    counting: Normalizer | None = None

    def most_characters(self, text: str) -> int:
        """Return the most characters of the step's output for a text; 0 if it inserts few."""
        if self.counting is None:
            return 0
        return len(text) + self.longest * self.counting.normalize_str(text).count(_MARK)


def _check(name: str, steps: list[_Step], text: str) -> None:
    grown, most = 0, _GROWTH * len(text) + _SLACK
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        for step in steps:
            grows = step.most_characters(piece) > most
            piece = "" if grows else step.normalizer.normalize_str(piece)
            if grows or len(piece) > most:
                raise _grows_too_long(f"the tokenizer of {name!r}")
        grown += len(piece)
        if grown > most:
            raise _grows_too_long(f"the tokenizer of {name!r}")


def _grows_too_long(name: str) -> LoadError:
    return LoadError(
        f"{name} cannot be used: it makes more than {_GROWTH} characters of each character of a "
        "text"
    )


def _steps(spec: Mapping[str, Any] | None) -> Iterator[_Step]:
    """Yield the steps of a normalizer; raise LoadError for too many or too long inserted texts."""
    for number, part in enumerate(flattened(spec, "normalizers")):
        if number == _STEPS:
            raise LoadError(f"a normalizer has more than {_STEPS:,} steps")
        match part:
            case {"type": "Replace", "content": str(content)} if len(content) > _GROWTH:
                yield _Step(_built(part), len(content), _built({**part, "content": _MARK}))
            case {"type": "Prepend", "prepend": str(content)} if len(content) > _GROWTH:
                yield _Step(_built(part), len(content), _built({**part, "prepend": _MARK}))
            case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
                raw = base64.b64decode(table)
                texts = raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")
                if max(map(len, texts)) > _LONGEST:
                    raise LoadError(f"a normalizer puts over {_LONGEST} bytes for one character")
                yield _Step(_built(part))
            case _:
                yield _Step(_built(part))


def _built(spec: Mapping[str, Any]) -> Normalizer:
    made: Any = NFC()
    made.__setstate__(json.dumps(spec).encode())
    found: Normalizer = made
    return found


def _check_template(name: str, processor: Mapping[str, Any] | None) -> None:
    for part in flattened(processor, "processors"):
        if part["type"] != "TemplateProcessing":
            continue
        special = {token: len(said["ids"]) for token, said in part["special_tokens"].items()}
        for pieces in (part["single"], part["pair"]):
            texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
            added = sum(
                special.get(piece["SpecialToken"]["id"], 0)
                for piece in pieces
                if "SpecialToken" in piece
            )
            if len(set(texts)) < len(texts) or added > _ADDED:
                raise LoadError(
                    f"the tokenizer of {name!r} cannot be used: it repeats a text, or puts more "
                    f"than {_ADDED:,} special tokens around it"
                )


def flattened(spec: Mapping[str, Any] | None, parts: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a JSON object, those of a ``Sequence`` under the field ``parts``."""
    if spec is None:
        return
    if spec["type"] != "Sequence":
        yield spec
        return
    for part in spec[parts]:
        yield from flattened(part, parts)


def _values(text: str, name: str) -> Iterator[Any]:
    """Yield the objects and lists that a field has anywhere in a JSON text.

    Parsing all of it, with the vocabulary, would take as long as opening the tokenizer. A name in
    quotes and a colon cannot occur within a JSON string, whose quotes are escaped.
    """
    if _ESCAPED.search(text):
        yield json.loads(text).get(name)
        return
    decoder, key, end = json.JSONDecoder(), re.compile(rf'"{name}"\s*:\s*(?=[\[{{])'), 0
    while (found := key.search(text, end)) is not None:
        value, end = decoder.raw_decode(text, found.end())
        yield value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _strings(part)
