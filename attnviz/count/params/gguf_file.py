"""Counts the model in a GGUF file from its header: parameters, bytes and cache."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

from attnviz.count.params.cache import LayerCache
from attnviz.count.params.cost import MadeModel
from attnviz.count.params.quantised import Storage, StoredLine
from attnviz.errors import LoadError
from attnviz.reading import damaged

_MOST = {"fields": 10_000, "tensors": 200_000, "texts": 5_000_000, "listed": 4096, "files": 1000}
"""The largest counts that are believed."""

_PARTS = {
    "token embedding": r"token_embd\.",
    "attention": r"blk\.\d+\.attn",
    "MLP": r"blk\.\d+\.ffn",
    "LM head": r"output\.",
    "other": "",
}
_KEYS = re.compile(r"blk\.(\d+)\.attn_(k|qkv|kv_a_mqa)\.weight")
_UNTOLD = ("ssm.", "wkv", "shortconv", "attention.shared_kv_layers", "attention.chunk")
"""The beginnings of fields of architectures whose cache the header does not tell."""


class _Reader(GGUFReader):
    """The package's reader, but it believes no count and skips lists of texts.

    For a vocabulary of 262,144 tokens it would make a million arrays, which takes 35 s.
    """

    def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **more: Any) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("it ends early")
        return super()._get(offset, dtype, count, *order, **more)

    def _build_fields(self, offs: int, count: int) -> Any:
        tensors = int(self.fields["GGUF.tensor_count"].parts[0][0])
        _check("fields", count)
        _check("tensors", tensors)
        return super()._build_fields(offs, count)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        inner = self._get(orig_offs, np.uint32)[0]
        length = int(self._get(orig_offs + 4, np.uint64)[0])
        if inner == GGUFValueType.ARRAY:
            raise ValueError("it has lists of lists")
        if inner != GGUFValueType.STRING and length <= _MOST["listed"]:
            return super()._get_field_parts(orig_offs, raw_type)
        at, view = orig_offs + 12, memoryview(np.asarray(self.data).data)
        if inner == GGUFValueType.STRING:
            _check("texts", length)
            for _ in range(length):
                at += 8 + int.from_bytes(view[at : at + 8], "little")
        else:
            at += length * np.dtype(self.gguf_scalar_to_np[GGUFValueType(inner)]).itemsize
        return at - orig_offs, [], [], [GGUFValueType.ARRAY]


def _check(name: str, count: int) -> None:
    if count > _MOST[name]:
        raise ValueError(f"its header tells of {count:,} {name}")


def count_gguf(path: Path) -> MadeModel:
    """Count the parameters, their bytes and the cache of a model in one GGUF file, or in several.

    path: of the file, or of the first of several. Raises LoadError for a file that is damaged or
    ends early, and for a missing one of several.
    """
    fields, tensors = _read(path)
    for other in _further(path, fields.get("split.count")):
        tensors += _read(other)[1]
    sizes, numbers, parts, buffers = Counter[str](), Counter[str](), Counter[str](), 0
    for tensor in tensors:
        kind, many = tensor.tensor_type.name, int(tensor.n_elements)
        sizes[kind] += int(tensor.n_bytes)
        numbers[kind] += many
        if "rope_f" in tensor.name:  # not trained
            buffers += many
        else:
            parts[next(part for part in _PARTS if re.match(_PARTS[part], tensor.name))] += many
    lines = tuple(StoredLine(kind, numbers[kind], size) for kind, size in sizes.most_common())
    architecture = str(fields.get("general.architecture"))[:40]
    limit = fields.get(f"{architecture}.context_length")
    start = f"{architecture}."
    own = {key.removeprefix(start): fields[key] for key in fields if key.startswith(start)}
    with damaged(path.name):
        matches = (_KEYS.match(tensor.name) for tensor in tensors)
        kept = _kept(own, {match[1] for match in matches if match})
    return MadeModel(
        architecture=architecture,
        total=parts.total(),
        buffers=buffers,
        parts=tuple((part, parts[part]) for part in _PARTS if parts[part]),
        kept=kept,
        limit=limit if type(limit) is int and limit > 0 else None,
        way="header",
        storage=Storage(f"GGUF {lines[0].label}" if lines else "GGUF", lines, buffered=True),
    )


def _further(path: Path, count: Any) -> list[Path]:
    """Return the other files of a model of which ``path`` is the first of ``count`` files."""
    if count is None or count < 2:
        return []
    start, named = re.subn(r"-00001-of-\d{5}\.gguf$", "", path.name)
    if not named or count > _MOST["files"]:
        raise LoadError(f"{path.name} is one of {count} files of a model: name the first of them")
    files = [path.with_name(f"{start}-{n:05}-of-{count:05}.gguf") for n in range(2, count + 1)]
    if absent := [file.name for file in files if not file.is_file()]:
        raise LoadError(f"{path.name} is incomplete: {absent[0]} is missing")
    return files


def _read(path: Path) -> tuple[dict[str, Any], list[Any]]:
    with damaged(path.name, "get it again"):
        reader = _Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if field.data}
        return fields, reader.tensors


def _kept(own: Mapping[str, Any], layers: set[str]) -> tuple[LayerCache, ...] | None:
    """Return what each layer caches; None if the header does not tell.

    own: the fields of the architecture. layers: those with keys of their own.
    """
    if own.get("attention.causal") is False:
        return ()
    depth, heads = own.get("block_count", 0), own.get("attention.head_count")
    window, slides = (own.get(f"attention.sliding_window{end}") for end in ("", "_pattern"))
    told = depth == len(layers) and (not window or isinstance(slides, list))
    if not depth or not told or any(key.startswith(_UNTOLD) for key in own):
        return None
    if latent := own.get("attention.kv_lora_rank"):
        return tuple([LayerCache("latent", latent + own["rope.dimension_count"])] * depth)
    sharing = own.get("attention.head_count_kv", heads)
    shared = sharing if isinstance(sharing, list) else [sharing] * depth
    width = own.get("attention.key_length") or own["embedding_length"] // heads
    both = width + (own.get("attention.value_length") or width)
    sliding = list(slides or ()) if window else [False] * depth
    if any(type(number) is not int or not 0 <= number < 2**40 for number in (*shared, both)):
        raise ValueError("it has sizes that cannot be")
    kinds = LayerCache("full", 0), LayerCache("sliding", 0, window)
    return tuple(
        kinds[bool(slide)]._replace(per_token=many * both)
        for many, slide in zip(shared[:depth], sliding[:depth], strict=True)
    )
