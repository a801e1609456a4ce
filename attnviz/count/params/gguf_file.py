"""Counts the model in a GGUF file from its header: parameters, bytes and cache.

The package gguf knows how each type is stored. Its reader is not used: it takes 35 s for a
vocabulary of 262,144 tokens, and believes every count.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.count.params.counting.built import MadeModel
from attnviz.count.params.counting.cache import LayerCache
from attnviz.count.params.counting.storage import Storage, StoredLine
from attnviz.errors import LoadError
from attnviz.reading import damaged

_FORMS = {**dict(enumerate("BbHhIif?")), **dict(enumerate("Qqd", start=10))}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_HEADER_BYTES = 2**26
_MOST_LISTED = 4096
_MOST_AXES = 4
_MOST_FILES = 1000
_PARTS = {
    "token embedding": r"token_embd\.",
    "attention": r"blk\.\d+\.attn",
    "MLP": r"blk\.\d+\.ffn",
    "LM head": r"output\.",
    "other": "",
}
_NOT_TRAINED = re.compile(r"rope_f|.*\.rope_f")
_KEYS = re.compile(r"blk\.(\d+)\.attn_(k|qkv|kv_a_mqa)\.weight")
_UNTOLD = ("ssm.", "wkv", "shortconv", "attention.shared_kv_layers", "attention.chunk")
"""The beginnings of fields of architectures whose cache the header does not tell."""


class _Tensor(NamedTuple):
    """A tensor of a file: its name, the name of its type, how many numbers it has and bytes."""

    name: str
    kind: str
    numbers: int
    bytes: int


class _Header:
    """The bytes of a header, which are read one value after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def skip(self, length: int) -> int:
        """Move on by ``length`` bytes and return where these begin; EOFError if they are missing."""
        start, self.at = self.at, self.at + length
        if self.at > len(self._data):
            raise EOFError("its header ends early")
        return start

    def number(self, form: str) -> Any:
        """Return a number in a form of ``struct``."""
        return struct.unpack_from(f"<{form}", self._data, self.skip(struct.calcsize(form)))[0]

    def text(self) -> str:
        start = self.skip(self.number("Q"))
        return self._data[start : self.at].decode(errors="replace")

    def value(self, kind: int) -> Any:
        """Return a value of a GGUF type; None for strings in a list and for long lists."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_FORMS[kind])
        inner, length = self.number("I"), self.number("Q")
        if inner == _STRING:
            for _ in range(length):
                self.skip(self.number("Q"))
        elif length > _MOST_LISTED:
            self.skip(length * struct.calcsize(_FORMS[inner]))
        else:
            return [self.number(_FORMS[inner]) for _ in range(length)]
        return None


def count_gguf(path: Path) -> MadeModel:
    """Count the parameters, their bytes and the cache of a model in one GGUF file, or in several.

    path: of the file, or of the first of several. Raises LoadError for a file that is damaged or
    ends early, for a missing one of several, and if the package gguf is not installed.
    """
    fields, tensors = _read(path)
    for other in _further(path, fields.get("split.count")):
        tensors += _read(other)[1]
    sizes, numbers, parts, buffers = Counter[str](), Counter[str](), Counter[str](), 0
    for tensor in tensors:
        sizes[tensor.kind] += tensor.bytes
        numbers[tensor.kind] += tensor.numbers
        if _NOT_TRAINED.match(tensor.name):
            buffers += tensor.numbers
        else:
            part = next(part for part, start in _PARTS.items() if re.match(start, tensor.name))
            parts[part] += tensor.numbers
    lines = tuple(StoredLine(kind, numbers[kind], size) for kind, size in sizes.most_common())
    architecture = str(fields.get("general.architecture"))
    own = {
        key.removeprefix(f"{architecture}."): value
        for key, value in fields.items()
        if key.startswith(f"{architecture}.")
    }
    with damaged(path.name):
        kept = _kept(own, {match[1] for one in tensors if (match := _KEYS.match(one.name))})
    limit = own.get("context_length")
    return MadeModel(
        architecture=architecture,
        total=parts.total(),
        buffers=buffers,
        parts=tuple((part, parts[part]) for part in _PARTS if parts[part]),
        kept=kept,
        limit=limit if isinstance(limit, int) and limit > 0 else None,
        way="header",
        storage=Storage(f"GGUF {lines[0].label}" if lines else "GGUF", lines, buffered=True),
    )


def _further(path: Path, count: Any) -> list[Path]:
    """Return the other files of a model of which ``path`` is the first of ``count`` files."""
    if not isinstance(count, int) or count < 2:
        return []
    start, named = re.subn(r"-00001-of-\d{5}\.gguf$", "", path.name)
    if not named or count > _MOST_FILES:
        raise LoadError(f"{path.name} is one of {count} files of a model: name the first of them")
    files = [path.with_name(f"{start}-{n:05}-of-{count:05}.gguf") for n in range(2, count + 1)]
    if absent := [file.name for file in files if not file.is_file()]:
        raise LoadError(f"{path.name} is incomplete: {absent[0]} is missing")
    return files


def _read(path: Path) -> tuple[dict[str, Any], list[_Tensor]]:
    """Return the fields and the tensors in the header of a file."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise LoadError("counting a GGUF file needs gguf: pip install 'attnviz[gguf]'") from error
    with damaged(path.name, "get it again"):
        with path.open("rb") as file:
            header = _Header(file.read(_HEADER_BYTES))
        if header.number("I") != int.from_bytes(b"GGUF", "little"):
            raise ValueError("it is no GGUF file")
        if (version := header.number("I")) not in _VERSIONS:
            raise ValueError(f"version {version}: expected 2 or 3")
        many, fields = header.number("Q"), {}
        for _ in range(header.number("Q")):
            key = header.text()
            fields[key] = header.value(header.number("I"))
        tensors, end = [], 0
        for _ in range(many):
            name, axes = header.text(), header.number("I")
            if axes > _MOST_AXES:
                raise ValueError(f"a tensor of {axes} axes")
            shape = [header.number("Q") for _ in range(axes)]
            kind = GGMLQuantizationType(header.number("I"))
            block, size = GGML_QUANT_SIZES[kind]
            numbers = math.prod(shape)
            tensors.append(_Tensor(name, kind.name, numbers, numbers // block * size))
            end = max(end, header.number("Q") + tensors[-1].bytes)
        step = max(int(fields.get("general.alignment") or 32), 1)
        if (whole := -(-header.at // step) * step + end) > path.stat().st_size:
            raise EOFError(f"it ends early: expected {whole:,} bytes")
    return fields, tensors


def _kept(own: Mapping[str, Any], layers: set[str]) -> tuple[LayerCache, ...] | None:
    """Return what each layer caches; None if the header does not tell.

    own: the fields of the architecture. layers: those with keys of their own.
    """
    if own.get("attention.causal") is False:
        return ()
    depth, heads = own.get("block_count"), own.get("attention.head_count")
    window, slides = (
        own.get("attention.sliding_window"),
        own.get("attention.sliding_window_pattern"),
    )
    told = depth == len(layers) and (not window or isinstance(slides, list))
    if not depth or not told or any(key.startswith(_UNTOLD) for key in own):
        return None
    if latent := own.get("attention.kv_lora_rank"):
        return (LayerCache("latent", latent + own["rope.dimension_count"]),) * depth
    sharing = own.get("attention.head_count_kv", heads)
    shared = sharing if isinstance(sharing, list) else [sharing] * depth
    width = own.get("attention.key_length") or own["embedding_length"] // heads
    both = width + (own.get("attention.value_length") or width)
    sliding = slides if window else [False] * depth
    return tuple(
        LayerCache("sliding" if slide else "full", many * both, window if slide else None)
        for many, slide in zip(shared[:depth], sliding[:depth], strict=True)
    )
