"""Finds the stored tensor of each role and compares its shape with the family's description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.families import LINEAR, Family, NotUnderstoodError
from attnviz.attention.numpy_stack import LazyTensors

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of stored tensors by name."""


@dataclass(frozen=True)
class TensorPart:
    """The position of a role's tensor in the checkpoint's files.

    name: of the stored tensor. rows: the role's rows in it, in the layout (out, in).
    transposed: whether it is stored (in, out). by_head: if queries, keys and values alternate head
        by head, the role's place among the three and the number of heads; else None.
    """

    name: str
    rows: slice | None = None
    transposed: bool = False
    by_head: tuple[int, int] | None = None


def parts_of(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], stored: Shapes
) -> tuple[str, dict[str, TensorPart]]:
    """Return the prefix of stored names, and where each role is stored; or NotUnderstoodError."""
    first = f"{family.tensors['tokens']}.weight"
    prefix = next((one for one in family.prefixes if one + first in stored), None)
    if prefix is None:
        raise NotUnderstoodError(f"the tensor {family.prefixes[0]}{first} is missing")
    parts, shapes = expected_tensors(family, fields, sizes)
    expected = {prefix + path: shape for path, shape in shapes.items()}
    for path, shape in expected.items():
        if path not in stored:
            raise NotUnderstoodError(f"the tensor {path} is missing")
        if stored[path] != shape:
            raise NotUnderstoodError(f"{path} is {stored[path]}, where {shape} is expected")
    for path in sorted(stored.keys() - expected.keys()):
        if not re.fullmatch(family.unused, path.removeprefix(prefix)):
            raise NotUnderstoodError(f"no description of the tensor {path}")
    return prefix, {role: replace(part, name=prefix + part.name) for role, part in parts.items()}


def expected_tensors(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[dict[str, TensorPart], dict[str, tuple[int, ...]]]:
    """Return where each role's tensor is stored, and each stored tensor's shape, without prefix."""
    parts: dict[str, TensorPart] = {}
    expected: dict[str, tuple[int, ...]] = {}
    for name, roles in _by_name(family, sizes).items():
        for kind in ("weight", "bias"):
            shapes = [_expected(role, kind, family, fields, sizes) for role in roles]
            known = [shape for shape in shapes if shape is not None]
            if not known:
                continue
            path = f"{name}.{kind}"
            rows = sum(shape[0] for shape in known)
            turned = family.transposed and len(known[0]) > 1 and _kind(roles[0]) in LINEAR
            whole = (rows, *known[0][1:])
            expected[path] = whole[::-1] if turned else whole
            start = 0
            for place, role in enumerate(roles):
                cut = slice(start, start + known[place][0]) if len(roles) > 1 else None
                start += known[place][0]
                by_head = (place, sizes["heads"]) if family.by_head and cut else None
                parts[f"{role}.{kind}"] = TensorPart(path, cut, turned, by_head)
    return parts, expected


def _by_name(family: Family, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the roles that share each stored tensor, by its name; first those of no layer."""
    found: dict[str, list[str]] = {}
    for number in (None, *range(sizes["layers"])):
        for role, name in family.tensors.items():
            if role == "embedding_projection" and sizes["embedding"] == sizes["d_model"]:
                continue
            if role.startswith("layers.") == (number is not None):
                stored, held = (_numbered(one, number) for one in (name, role))
                found.setdefault(stored, []).append(held)
    return found


def _numbered(name: str, layer: int | None) -> str:
    return ".".join(str(layer) if part == "N" else part for part in name.split("."))


def _kind(role: str) -> str:
    return role.rpartition(".")[2]


def _expected(
    role: str, kind: str, family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[int, ...] | None:
    """Return the shape of a role's tensor of a kind; None for a bias that it does not have."""
    name, width, inner = _kind(role), sizes["d_model"], sizes["d_ff"]
    query, key = sizes["heads"] * sizes["head_dim"], sizes["kv_heads"] * sizes["head_dim"]
    shape: tuple[int, ...] = {
        "tokens": (sizes["vocabulary"], sizes["embedding"]),
        "positions": (sizes["context"], sizes["embedding"]),
        "types": (sizes.get("types", 0), sizes["embedding"]),
        "embedding_norm": (sizes["embedding"],),
        "embedding_projection": (width, sizes["embedding"]),
        "query": (query, width),
        "key": (key, width),
        "value": (key, width),
        "output": (width, query),
        "query_norm": (sizes["head_dim"],),
        "key_norm": (sizes["head_dim"],),
        "gate": (inner, width),
        "up": (inner, width),
        "down": (width, inner),
    }.get(name, (width,))
    if kind == "weight":
        return shape
    said: bool | str = family.biases.get(name, False)
    if name.endswith("_norm"):
        said = family.norm == "layer"
    elif name == "embedding_projection":
        said = True
    if isinstance(said, str):
        field_name, _, otherwise = said.partition("=")
        said = bool(fields.get(field_name, otherwise == "true"))
    return shape[:1] if said else None


def head_tensors(
    family: Family,
    architecture: str,
    fields: Mapping[str, Any],
    sizes: Mapping[str, int],
    stored: Shapes,
    prefix: str,
) -> dict[str, TensorPart]:
    """Return where a model class's head is stored, by role; NotUnderstoodError if it is another."""
    if architecture not in family.heads:
        raise NotUnderstoodError(f"no description of a {architecture}")
    tied = fields.get("tie_word_embeddings", family.tied)
    parts: dict[str, TensorPart] = {}
    for name, said in family.heads[architecture].items():
        role, _, shape = said.removeprefix("?").rpartition(": ")
        path = name if name in stored else prefix + name
        expected = tuple(sizes.get(word) or int(word) for word in shape.split())
        if path in stored:
            if stored[path] != expected:
                raise NotUnderstoodError(f"{path} is {stored[path]}, where {expected} is expected")
            if role:
                parts[role] = TensorPart(path)
        elif not said.startswith("?") and not (tied and role == "unembedding.weight"):
            raise NotUnderstoodError(f"the tensor {name} is missing")
        elif role == "unembedding.weight":
            parts[role] = TensorPart(f"{prefix}{family.tensors['tokens']}.weight")
    return parts


def by_role(stored: Any, parts: Mapping[str, TensorPart]) -> LazyTensors:
    """Return the tensors by role, each cut out of a stored tensor at every access."""

    def cut(role: str) -> NDArray[np.floating]:
        part = parts[role]
        tensor: Any = stored[part.name]
        if part.transposed:
            tensor = tensor.transpose()
        if part.by_head is not None:
            place, heads = part.by_head
            rows = np.arange(len(tensor)).reshape(heads, 3, -1)[:, place].ravel()
            tensor = tensor[rows]
        elif part.rows is not None:
            tensor = tensor[part.rows]
        return tensor

    return LazyTensors(parts, cut)
