"""Holds the config and the tensors of a checkpoint against the description of its family."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.encoder_families import ENCODERS
from attnviz.attention.families import ACTIVATIONS, DECODERS, LINEAR, LLAMA, MUST_BE, SILENT, Family
from attnviz.attention.functional import Rotary
from attnviz.attention.numpy_stack import NumpyStack, StackShape

FAMILIES = (*DECODERS, *ENCODERS)


class NotUnderstoodError(Exception):
    """What of a checkpoint no description covers, in words."""


Shapes = Mapping[str, tuple[int, ...]]
"""Stored tensors by their names."""


@dataclass(frozen=True)
class Part:
    """Where the tensor of a role is stored.

    name: of the stored tensor. rows: of it, once it stands (out, in). transposed: it is stored
    (in, out). heads: where queries, keys and values alternate head by head, how many there are.
    """

    name: str
    rows: slice | None = None
    transposed: bool = False
    by_head: tuple[int, int] | None = None


@dataclass(frozen=True)
class Understood:
    """What a checkpoint computes.

    parts: where the tensor of each role is stored. architecture: the class of the model.
    predicts: whether that has an unembedding.
    """

    shape: StackShape
    parts: Mapping[str, Part]
    architecture: str
    predicts: bool


def understood(fields: Mapping[str, Any], stored: Shapes) -> Understood:
    """What a checkpoint computes, and where the tensor of each role stands.

    fields: of its ``config.json``. stored: the shapes of its tensors.
    Raises NotUnderstoodError, in words, where anything is not covered by a description.
    """
    family = next((one for one in FAMILIES if fields.get("model_type") in one.model_types), None)
    if family is None:
        raise NotUnderstoodError(f"no description of the model type {fields.get('model_type')!r}")
    used: set[str] = set()
    sizes = _sizes(family, fields, used)
    rotary = _rotary(family, fields, sizes, used)
    _check_settings(family, fields, used)
    named = _text(fields, family.activation, used)
    if named not in ACTIVATIONS:
        raise NotUnderstoodError(f"{family.activation} is {named!r}")
    shape = StackShape(
        layers=sizes["layers"],
        heads=sizes["heads"],
        kv_heads=sizes.get("kv_heads", sizes["heads"]),
        head_dim=sizes["head_dim"],
        vocabulary=sizes["vocabulary"],
        context=sizes["context"] - (0 if family.padding is None else family.padding + 1),
        norm=family.norm,
        norm_eps=_number(fields, family.norm_eps, used),
        order=family.order,
        activation=ACTIVATIONS[named],
        causal=family.causal,
        rotary=rotary,
        window=_window(family, fields, used),
        padding=family.padding,
    )
    _check_silent(fields, shape.vocabulary)
    strange = sorted(fields.keys() - used - SILENT - MUST_BE.keys() - {*family.silent})
    if strange:
        raise NotUnderstoodError(f"no description of {strange[0]} = {fields[strange[0]]!r}")
    prefix, parts = _parts(family, fields, sizes, stored)
    architecture = str((fields.get("architectures") or [None])[0])
    head = _head(family, architecture, fields, sizes, stored, prefix)
    unembeddings = [name for name, said in head.items() if said.startswith("vocabulary ")]
    if unembeddings and family.causal and not fields.get("tie_word_embeddings", family.tied):
        name = unembeddings[0]
        parts = {**parts, "unembedding.weight": Part(name if name in stored else prefix + name)}
    return Understood(shape, parts, architecture, bool(unembeddings))


def _head(
    family: Family,
    architecture: str,
    fields: Mapping[str, Any],
    sizes: Mapping[str, int],
    stored: Shapes,
    prefix: str,
) -> Mapping[str, str]:
    """The tensors of a class's head, held against what is stored."""
    if architecture not in family.heads:
        raise NotUnderstoodError(f"no description of a {architecture}")
    head = family.heads[architecture]
    tied = fields.get("tie_word_embeddings", family.tied)
    for name, said in head.items():
        found = stored.get(name, stored.get(prefix + name))
        if found is None and (said.startswith("?") or (tied and said.startswith("vocabulary "))):
            continue
        expected = tuple(sizes.get(word) or int(word) for word in said.removeprefix("?").split())
        if found != expected:
            raise NotUnderstoodError(f"{name} is {found}, where {expected} is expected")
    return head


def _sizes(family: Family, fields: Mapping[str, Any], used: set[str]) -> dict[str, int]:
    """The sizes by our names."""
    sizes: dict[str, int] = {}
    for ours, said in family.sizes.items():
        name, _, otherwise = said.partition("=")
        used.add(name)
        value = fields.get(name)
        if value is None and otherwise:
            value = _reckoned(otherwise, sizes)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise NotUnderstoodError(f"{name} is {value!r}")
        sizes[ours] = value
    if sizes["d_model"] % sizes["heads"] and "head_dim" not in sizes:
        raise NotUnderstoodError(f"{sizes['heads']} heads do not divide {sizes['d_model']}")
    sizes.setdefault("head_dim", sizes["d_model"] // sizes["heads"])
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("embedding", sizes["d_model"])
    if sizes["heads"] % sizes["kv_heads"]:
        raise NotUnderstoodError(f"{sizes['heads']} heads over {sizes['kv_heads']} key/value heads")
    return sizes


def _reckoned(otherwise: str, sizes: Mapping[str, int]) -> int:
    """A number, or a product or quotient of sizes."""
    first, sign, second = re.split(r"([*/]|$)", otherwise, maxsplit=1)
    value = sizes.get(first) or int(first)
    if not sign:
        return value
    other = sizes.get(second) or int(second)
    return value * other if sign == "*" else value // other


def _check_settings(family: Family, fields: Mapping[str, Any], used: set[str]) -> None:
    for name in family.required:
        if name not in fields:
            raise NotUnderstoodError(f"{name} is missing")
    for name, values in {**MUST_BE, **family.settings}.items():
        used.add(name)
        if fields.get(name, values[0]) not in values:
            raise NotUnderstoodError(f"{name} is {fields[name]!r}")
    used.update(said.partition("=")[0] for said in family.biases.values() if isinstance(said, str))


def _check_silent(fields: Mapping[str, Any], vocabulary: int) -> None:
    """Raise NotUnderstoodError for values that no model can be built with."""
    for name in ("dtype", "torch_dtype"):
        if fields.get(name) not in (None, "float32", "float16", "bfloat16"):
            raise NotUnderstoodError(f"{name} is {fields[name]!r}")
    padding = fields.get("pad_token_id")
    if padding is not None and padding not in range(vocabulary):
        raise NotUnderstoodError(f"pad_token_id is {padding!r}")


def _text(fields: Mapping[str, Any], name: str, used: set[str]) -> str:
    used.add(name)
    return str(fields.get(name))


def _number(fields: Mapping[str, Any], said: str, used: set[str]) -> float:
    name, _, otherwise = said.partition("=")
    used.add(name)
    value = fields.get(name, float(otherwise) if otherwise else None)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise NotUnderstoodError(f"{name} is {value!r}")
    return float(value)


_ROPE_FIELDS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {
        *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    },
}
"""What transformers' kinds of rotary positions say beside theta and their share of a head."""

_ROPE_NAMES = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")
_ROPE_SHARES = ("partial_rotary_factor", "rotary_pct")


def _rotary(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], used: set[str]
) -> Rotary | None:
    """The rotary positions, as transformers 4 or 5 writes them."""
    if not family.rotary:
        return None
    used.update(_ROPE_NAMES, _ROPE_SHARES)
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise NotUnderstoodError(f"rope_parameters is {rope!r}")
    both = {name: fields[name] for name in (*_ROPE_NAMES[2:], *_ROPE_SHARES) if name in fields}
    both |= rope
    kind = both.pop("rope_type", both.pop("type", "default"))
    both.pop("type", None)
    theta = both.pop("rope_theta", both.pop("rotary_emb_base", None))
    both.pop("rotary_emb_base", None)
    share = [both.pop(name) for name in _ROPE_SHARES if name in both]
    if both.keys() != _ROPE_FIELDS.get(str(kind)):
        raise NotUnderstoodError(f"rotary positions of type {kind!r} with {sorted(both)}")
    if share != [1] and (family.rotary == "part") != bool(share):
        raise NotUnderstoodError("rotary positions of a part of each head")
    numbers = [theta, *share, *both.values()]
    if not all(isinstance(one, int | float) and one > 0 for one in numbers):
        raise NotUnderstoodError(f"rotary positions of {numbers}")
    dims = int(sizes["head_dim"] * share[0]) if share else sizes["head_dim"]
    if dims < 2 or dims % 2 or dims > sizes["head_dim"]:
        raise NotUnderstoodError(f"rotary positions of {dims} dimensions")
    return Rotary(
        float(theta),
        dims,
        float(both.get("factor", 1.0)),
        both.get("low_freq_factor"),
        float(both.get("high_freq_factor", 4.0)),
        int(both.get("original_max_position_embeddings", 8192)),
    )


def _window(family: Family, fields: Mapping[str, Any], used: set[str]) -> int | None:
    """How many keys a query sees."""
    kinds = set(fields.get("layer_types") or ())
    used.add("layer_types")
    if "sliding_window" in family.silent:
        window = None
    else:
        used.add("sliding_window")
        window = fields.get("sliding_window")
    if kinds - {"full_attention" if window is None else "sliding_attention"}:
        raise NotUnderstoodError(f"layers of {' and '.join(sorted(kinds))}")
    if window is not None and (not isinstance(window, int) or window < 1 or not family.causal):
        raise NotUnderstoodError(f"sliding_window is {window!r}")
    return window


def _parts(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], stored: Shapes
) -> tuple[str, dict[str, Part]]:
    """What stands before the names, and where each role's tensors are, held against the stored."""
    first = f"{family.tensors['tokens']}.weight"
    prefix = next((one for one in family.prefixes if one + first in stored), None)
    if prefix is None:
        raise NotUnderstoodError(f"the tensor {family.prefixes[0]}{first} is missing")
    parts: dict[str, Part] = {}
    expected: dict[str, tuple[int, ...]] = {}
    for name, roles in _by_name(family, sizes).items():
        for kind in ("weight", "bias"):
            shapes = [_expected(role, kind, family, fields, sizes) for role in roles]
            known = [shape for shape in shapes if shape is not None]
            if not known:
                continue
            path = f"{prefix}{name}.{kind}"
            rows = sum(shape[0] for shape in known)
            turned = family.transposed and len(known[0]) > 1 and _kind(roles[0]) in LINEAR
            whole = (rows, *known[0][1:])
            expected[path] = whole[::-1] if turned else whole
            start = 0
            for place, role in enumerate(roles):
                cut = slice(start, start + known[place][0]) if len(roles) > 1 else None
                start += known[place][0]
                by_head = (place, sizes["heads"]) if family.by_head and cut else None
                parts[f"{role}.{kind}"] = Part(path, cut, turned, by_head)
    for path, shape in expected.items():
        if stored.get(path) != shape:
            raise NotUnderstoodError(f"{path} is {stored.get(path)}, where {shape} is expected")
    for path in sorted(stored.keys() - expected.keys()):
        if not re.fullmatch(family.unused, path.removeprefix(prefix)):
            raise NotUnderstoodError(f"no description of the tensor {path}")
    return prefix, parts


def _by_name(family: Family, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """The roles that each stored name holds."""
    found: dict[str, list[str]] = {}
    for role, name in family.tensors.items():
        if role == "embedding_projection" and sizes["embedding"] == sizes["d_model"]:
            continue
        for layer in range(sizes["layers"] if "N" in role.split(".") else 1):
            number = str(layer)
            stored = ".".join(number if part == "N" else part for part in name.split("."))
            held = ".".join(number if part == "N" else part for part in role.split("."))
            found.setdefault(stored, []).append(held)
    return found


def _kind(role: str) -> str:
    return role.rpartition(".")[2]


def _expected(
    role: str,
    kind: str,
    family: Family,
    fields: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> tuple[int, ...] | None:
    """The shape of a role's weight or bias; None for a bias that it has not."""
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


# The library's own decoder --------------------------------------------------------------------


def llama_stack(
    config: DecoderConfig,
    tensors: Mapping[str, NDArray[np.floating]],
    dtype: DTypeLike = np.float32,
) -> NumpyStack:
    """The decoder of a configuration in NumPy, over tensors by Llama's names.

    tensors: each is read from the mapping when it is first needed.
    """
    shape = StackShape(
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocabulary,
        context=config.context,
        norm=LLAMA.norm,
        norm_eps=config.norm_eps,
        order=LLAMA.order,
        activation="silu",
        causal=LLAMA.causal,
        rotary=Rotary(config.rope_theta),
    )
    names = {"unembedding.weight": "lm_head.weight"}
    for stored, (role,) in _by_name(LLAMA, vars(config)).items():
        for kind in ("weight", "bias"):
            names[f"{role}.{kind}"] = f"{LLAMA.prefixes[0]}{stored}.{kind}"
    return NumpyStack(shape, _Renamed(tensors, names), dtype)


class _Renamed(Mapping[str, NDArray[np.floating]]):
    """Those tensors that there are, by other names."""

    def __init__(
        self, tensors: Mapping[str, NDArray[np.floating]], names: Mapping[str, str]
    ) -> None:
        there = set(tensors)
        self._tensors = tensors
        self._names = {ours: stored for ours, stored in names.items() if stored in there}

    def __getitem__(self, name: str) -> NDArray[np.floating]:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
