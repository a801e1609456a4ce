"""Compares the config and the tensors of a checkpoint with the description of its family."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.families import (
    ACTIVATIONS,
    FAMILIES,
    LINEAR,
    MUST_BE,
    SILENT,
    Family,
    NotUnderstoodError,
)
from attnviz.attention.numpy_stack import LazyTensors, StackShape
from attnviz.attention.rotary import Linear, Llama3, LongRope, Rotary, Stretch, Yarn
from attnviz.reading import repeated

Shapes = Mapping[str, tuple[int, ...]]  # shapes of stored tensors by name


@dataclass(frozen=True)
class TensorPart:
    """The position of a role's tensor in the checkpoint's files.

    name: of the stored tensor. rows: the role's rows in it, in the layout (out, in).
    transposed: whether it is stored (in, out). by_head: if queries, keys and values alternate head
        by head, the role's index among the three and the number of heads; else None.
    """

    name: str
    rows: slice | None = None
    transposed: bool = False
    by_head: tuple[int, int] | None = None


class StoredParameters(NamedTuple):
    """A model's parameters, tied ones counted once, and whether its config allows fewer heads."""

    number: int
    fewer: bool


@dataclass(frozen=True)
class CheckpointLayout:
    """The computation that a checkpoint describes, and where each role's tensor is stored.

    parameters: how many; None if the files have other tensors too, or only transformers knows.
    """

    shape: StackShape
    parts: Mapping[str, TensorPart]
    architecture: str
    predicts: bool
    parameters: StoredParameters | None


def checkpoint_layout(fields: Mapping[str, Any], stored: Shapes) -> CheckpointLayout:
    """Return the computation that a checkpoint describes, and where its tensors are stored.

    fields: those of its ``config.json``. stored: the shapes of its tensors. Raises
    NotUnderstoodError, with the reason, if the family's description does not cover everything.
    """
    kind = fields.get("model_type")
    family = next((family for family in FAMILIES if kind in family.model_types), None)
    if family is None:
        raise NotUnderstoodError(f"no description of the model type {kind!r}")
    used = {family.activation}
    sizes = _sizes(family, fields, used)
    _check_settings(family, fields, used)
    named = str(fields.get(family.activation))
    activation = family.activations.get(named, ACTIVATIONS.get(named))
    if activation is None:
        raise NotUnderstoodError(f"{family.activation} is {named!r}")
    scale = family.embedding_scale
    turned: Any = []
    if family.turned is not None:
        used.add(family.turned)
        turned = fields.get(family.turned)
        layers = sizes["layers"]
        if not isinstance(turned, list) or len(turned) != layers or not {0, 1}.issuperset(turned):
            raise NotUnderstoodError(f"{family.turned} is {turned!r}")
    shape = StackShape(
        **{name: sizes[name] for name in ("layers", "heads", "kv_heads", "head_dim", "vocabulary")},
        context=sizes["context"] - (0 if family.padding is None else family.padding + 1),
        norm=family.norm,
        norm_eps=_number(fields, family.norm_eps, used),
        order=family.order,
        activation=activation,
        causal=family.causal,
        rotary=_rotary(family, fields, sizes, used),
        unturned=frozenset(layer for layer, turns in enumerate(turned) if not turns),
        windows=_windows(family, fields, sizes["layers"], used),
        scaled=family.scaled,
        embedding_scale=1.0 if scale is None else math.sqrt(sizes[scale]),
        padding=family.padding,
        head_activation=family.head_activation or activation,
    )
    _check_silent(fields, shape.vocabulary)
    strange = sorted(fields.keys() - used - SILENT - MUST_BE.keys() - {*family.silent})
    if strange:
        raise NotUnderstoodError(f"no description of {strange[0]} = {fields[strange[0]]!r}")
    names = {}
    for name in stored:  # in old BERT checkpoints norms have other names
        weight = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        names[weight.replace("LayerNorm.beta", "LayerNorm.bias")] = name
    shapes = {ours: stored[name] for ours, name in names.items()}
    prefix, parts = parts_of(family, fields, sizes, shapes)
    architecture = str((fields.get("architectures") or [None])[0])
    head = head_tensors(family, architecture, fields, sizes, shapes, prefix)
    every = {**parts, **head}
    known = {part.name for part in every.values()}
    known |= {start + name for name in family.heads[architecture] for start in ("", prefix)}
    twice = fields.get("tie_word_embeddings", family.tied) and (
        head.get("unembedding.weight", parts["tokens.weight"]).name != parts["tokens.weight"].name
    )
    parameters = None
    if family.cut is not None and known >= shapes.keys() and not twice:
        parameters = StoredParameters(sum(map(math.prod, shapes.values())), family.cut)
    return CheckpointLayout(
        shape,
        {role: replace(part, name=names[part.name]) for role, part in every.items()},
        architecture,
        "unembedding.weight" in head,
        parameters,
    )


def _sizes(family: Family, fields: Mapping[str, Any], used: set[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for ours, stated in family.sizes.items():
        field, _, otherwise = stated.partition("=")
        name = field.removesuffix("?")
        used.add(name)
        value = fields.get(name)
        if otherwise and (name not in fields or (value is None and name != field)):
            first, sign, second = re.split(r"([*/]|$)", otherwise, maxsplit=1)
            value, by = (sizes.get(part) or int(part or 1) for part in (first, second))
            value = value * by if sign == "*" else value // by
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise NotUnderstoodError(f"{name} is {value!r}")
        sizes[ours] = value
    if sizes["d_model"] % sizes["heads"] and "head_dim" not in sizes:
        raise NotUnderstoodError(f"{sizes['heads']} heads do not divide {sizes['d_model']}")
    sizes.setdefault("head_dim", sizes["d_model"] // sizes["heads"])
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("embedding", sizes["d_model"])
    labels = fields.get("id2label")
    sizes["labels"] = len(labels) if isinstance(labels, Mapping) else fields.get("num_labels", 2)
    if sizes["heads"] % sizes["kv_heads"]:
        raise NotUnderstoodError(f"{sizes['heads']} heads over {sizes['kv_heads']} key/value heads")
    return sizes


def _check_settings(family: Family, fields: Mapping[str, Any], used: set[str]) -> None:
    for name in family.required:
        if name not in fields:
            raise NotUnderstoodError(f"{name} is missing")
    for name, values in {**MUST_BE, **family.settings}.items():
        used.add(name)
        value = fields.get(name, values[0])
        if (type(value), value) not in [(type(known), known) for known in values]:
            raise NotUnderstoodError(f"{name} is {value!r}")
    biases = [field for field in family.biases.values() if isinstance(field, str)]
    used.update(field.partition("=")[0] for field in biases)


_TYPES: Mapping[str, tuple[type, ...]] = {
    r"eos_token_id": (int, list, type(None)),
    r"(bos|pad|sep|cls|decoder_start)_token_id": (int, type(None)),
    r"use_cache|use_sliding_window|tie_word_embeddings|\w+_bias|output_\w+|return_dict": (bool,),
    r"reorder_and_upcast_attn|summary_use_proj|summary_proj_to_labels": (bool,),
    r"summary_type": (str,),
    r"pretraining_tp|max_window_layers|no_rope_layer_interval": (int,),
    r"sliding_window": (int, type(None)),
    r"id2label|label2id": (dict, type(None)),
    r"classifier_dropout": (int, float, type(None)),
    r"initializer_range|\w*dropout(_prob)?|\w+_pdrop": (int, float),
}
"""The types of config fields that transformers checks even if they affect no computation."""


def _check_silent(fields: Mapping[str, Any], vocabulary: int) -> None:
    """Raise NotUnderstoodError for config fields with which no model can be built."""
    for name in ("dtype", "torch_dtype"):
        if fields.get(name) not in (None, "float32", "float16", "bfloat16"):
            raise NotUnderstoodError(f"{name} is {fields[name]!r}")
    padding = fields.get("pad_token_id")
    if padding is not None and padding not in range(vocabulary):
        raise NotUnderstoodError(f"pad_token_id is {padding!r}")
    for name, value in fields.items():
        types = next((types for names, types in _TYPES.items() if re.fullmatch(names, name)), None)
        share = "drop" in name and isinstance(value, int | float)
        if (types and type(value) not in types) or (share and not 0 <= value <= 1):
            raise NotUnderstoodError(f"{name} is {value!r}")


def _number(fields: Mapping[str, Any], stated: str, used: set[str]) -> float:
    name, _, otherwise = stated.partition("=")
    used.add(name)
    value = fields.get(name, float(otherwise) if otherwise else None)
    if not isinstance(value, float) or not 0 <= value < 1:
        raise NotUnderstoodError(f"{name} is {value!r}")
    return value


# Layers that differ ---------------------------------------------------------------------------

# Fields that list the attention of each layer, the second as ``[[[kind, …], times], …]``.
_LISTS = ("layer_types", "attention_types")
_WHOLE, _WINDOWED = ("full_attention", "global"), ("sliding_attention", "local")


def _windows(
    family: Family, fields: Mapping[str, Any], layers: int, used: set[str]
) -> tuple[int | None, ...]:
    used.update(_LISTS)
    width = None
    if family.windows != "none":
        used.update((family.window, "use_sliding_window"))
        width = fields.get(family.window) if fields.get("use_sliding_window", True) else None
    if width is not None and (type(width) is not int or width < 1):
        raise NotUnderstoodError(f"{family.window} is {width!r}")
    usual = _WHOLE[0] if width is None else _WINDOWED[0]
    listed, folded = (fields.get(name) or [] for name in _LISTS)
    try:
        listed = [*listed, *repeated(folded, layers)]
    except (TypeError, ValueError) as error:
        raise NotUnderstoodError(f"attention_types is {folded!r}") from error
    if fields.get("attention_layers", listed) != listed:
        raise NotUnderstoodError("attention_layers are not those of attention_types")
    kinds = listed or [usual] * layers
    known = {*_WHOLE, *(_WINDOWED if width is not None else ())}
    alike = family.windows == "listed" or {*kinds} == {usual}
    if len(kinds) != layers or not known.issuperset(kinds) or not alike:
        raise NotUnderstoodError(f"layers of {' and '.join(sorted({*map(str, kinds)}))}")
    if family.windows == "listed" and width is not None and not listed:
        raise NotUnderstoodError(f"{family.window} is {width}, of layers that are not listed")
    windows = tuple(width if kind in _WINDOWED else None for kind in kinds)
    return windows if any(windows) else ()


# Rotary positions, as transformers 4 or 5 writes them -----------------------------------------

_CONTEXT = "original_max_position_embeddings"

_FIELDS: Mapping[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, set()),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, {_CONTEXT}),
    "yarn": (
        {"factor"},
        {_CONTEXT, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
        | {"truncate"},
    ),
    "longrope": ({"short_factor", "long_factor"}, {_CONTEXT, "factor", "attention_factor"}),
}
"""Fields of each way of stretching besides base and share: the required and the optional ones."""


def _rotary(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], used: set[str]
) -> Rotary | None:
    """Return the rotary positions of a config, or None; the fields read are added to ``used``."""
    if family.rotary is None:
        return None
    (base, usual_base), (share, usual_share) = family.theta.split("="), family.share.split("=")
    used.update((base, share, "rope_parameters", "rope_scaling"))
    stated = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(stated, Mapping):
        raise NotUnderstoodError(f"rope_parameters is {stated!r}")
    rope = dict(stated)
    kind = str(rope.pop("rope_type", rope.get("type", "default")))
    rope.pop("type", None)
    always, at_will = _FIELDS.get(kind, (set[str](), set[str]()))
    rope = {name: rope[name] for name in rope if rope[name] is not None or name not in at_will}
    theta = _positive(rope.pop("rope_theta", fields.get(base, float(usual_base))))
    part = _positive(rope.pop("partial_rotary_factor", fields.get(share, float(usual_share))))
    if part > 1 or (part < 1 and family.rotary == "whole"):
        raise NotUnderstoodError(f"rotary positions of a part of each head, of {part}")
    dims = int(sizes["head_dim"] * part)
    if dims < 2 or dims % 2 or (kind == "dynamic" and dims == 2):
        raise NotUnderstoodError(f"rotary positions of {dims} dimensions")
    described = kind in _FIELDS and (family.stretches is None or kind in family.stretches)
    if not described or not always <= rope.keys() <= always | at_will:
        raise NotUnderstoodError(f"rotary positions of type {kind!r} with {sorted(rope)}")
    if "original_context" in sizes:  # if both are present, this one decides
        rope[_CONTEXT] = sizes["original_context"]
    return Rotary(theta, dims, _stretch(kind, rope, theta, sizes["context"], dims))


def _stretch(
    kind: str, rope: Mapping[str, Any], theta: float, longest: int, dims: int
) -> Stretch | None:
    """Return how rotary wavelengths are stretched, or None. longest: text in tokens."""
    # "dynamic" stretches only for texts longer than the longest
    if kind in ("default", "dynamic"):
        return None
    context = rope.get(_CONTEXT, longest)
    if not isinstance(context, int) or context < 2 or theta <= 1:
        raise NotUnderstoodError(f"rotary positions of a context of {context!r}")
    factor = _positive(rope.get("factor", longest / context))
    if kind == "linear":
        return Linear(factor)
    if kind == "llama3":
        low, high = (_positive(rope[f"{end}_freq_factor"]) for end in ("low", "high"))
        if low >= high:
            raise NotUnderstoodError(f"rotary positions stretched from {high} to {low}")
        return Llama3(factor, low, high, context)
    if kind == "yarn":
        fast, slow = _positive(rope.get("beta_fast", 32.0)), _positive(rope.get("beta_slow", 1.0))
        whole = bool(rope.get("truncate", True))
        return Yarn(factor, context, _yarn_scale(factor, rope), fast, slow, whole)
    factors = []
    for listed in (rope["short_factor"], rope["long_factor"]):
        if not isinstance(listed, list) or len(listed) != dims // 2:
            raise NotUnderstoodError(f"no list of {dims // 2} factors of rotary positions")
        factors.append(tuple(map(_positive, listed)))
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))
    short, long = factors
    return LongRope(short, long, context, _positive(rope.get("attention_factor", usual)))


def _yarn_scale(factor: float, rope: Mapping[str, Any]) -> float:
    """Return the factor of cosines and sines in YaRN (Peng et al. 2023, section 3.4)."""

    def usual(share: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1

    if "attention_factor" in rope:
        return _positive(rope["attention_factor"])
    if "mscale" in rope and "mscale_all_dim" in rope:
        return usual(_positive(rope["mscale"])) / usual(_positive(rope["mscale_all_dim"]))
    return usual(1.0)


def _positive(number: object) -> float:
    """Return a positive number as a float; raise NotUnderstoodError for anything else."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        raise NotUnderstoodError(f"rotary positions of {number!r}")
    return float(number)


# Tensors -----------------------------------------------------------------------------------------


def parts_of(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], stored: Shapes
) -> tuple[str, dict[str, TensorPart]]:
    """Return the prefix of stored names, and where each role is stored; or NotUnderstoodError."""
    first = f"{family.tensors['tokens']}.weight"
    prefix = next((start for start in family.prefixes if start + first in stored), None)
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
    by_name: dict[str, list[str]] = {}  # the roles that share a tensor, first those of no layer
    for number in (None, *range(sizes["layers"])):
        for role, name in family.tensors.items():
            if role == "embedding_projection" and sizes["embedding"] == sizes["d_model"]:
                continue
            if role.startswith("layers.") == (number is not None):
                stored, held = (text.replace(".N.", f".{number}.") for text in (name, role))
                by_name.setdefault(stored, []).append(held)
    parts: dict[str, TensorPart] = {}
    expected: dict[str, tuple[int, ...]] = {}
    for name, roles in by_name.items():
        for kind in ("weight", "bias"):
            shapes = [_expected(role, kind, family, fields, sizes) for role in roles]
            known = [shape for shape in shapes if shape is not None]
            if not known:
                continue
            path = f"{name}.{kind}"
            rows = sum(shape[0] for shape in known)
            is_linear = roles[0].rpartition(".")[2] in LINEAR
            turned = family.transposed and len(known[0]) > 1 and is_linear
            whole = (rows, *known[0][1:])
            expected[path] = whole[::-1] if turned else whole
            start = 0
            for index, role in enumerate(roles):
                cut = slice(start, start + known[index][0]) if len(roles) > 1 else None
                start += known[index][0]
                by_head = (index, sizes["heads"]) if family.by_head and cut else None
                parts[f"{role}.{kind}"] = TensorPart(path, cut, turned, by_head)
    return parts, expected


def _expected(
    role: str, kind: str, family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[int, ...] | None:
    """Return the shape of a role's tensor of a kind; None for a bias that it does not have."""
    name, width, inner = role.rpartition(".")[2], sizes["d_model"], sizes["d_ff"]
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
    biased: bool | str = family.biases.get(name, False)
    if name.endswith("_norm"):
        biased = family.norm == "layer"
    elif name == "embedding_projection":
        biased = True
    if isinstance(biased, str):
        field_name, _, otherwise = biased.partition("=")
        biased = bool(fields.get(field_name, otherwise == "true"))
    return shape[:1] if biased else None


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
    for name, description in family.heads[architecture].items():
        role, _, shape = description.removeprefix("?").rpartition(": ")
        path = name if name in stored else prefix + name
        expected = tuple(sizes.get(word) or int(word) for word in shape.split())
        if path in stored:
            if stored[path] != expected:
                raise NotUnderstoodError(f"{path} is {stored[path]}, where {expected} is expected")
            if role:
                parts[role] = TensorPart(path)
        elif not description.startswith("?") and not (tied and role == "unembedding.weight"):
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
            third, heads = part.by_head
            rows = np.arange(len(tensor)).reshape(heads, 3, -1)[:, third].ravel()
            tensor = tensor[rows]
        elif part.rows is not None:
            tensor = tensor[part.rows]
        return tensor

    return LazyTensors(parts, cut)
