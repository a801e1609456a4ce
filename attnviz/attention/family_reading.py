"""Compares the config and the tensors of a checkpoint with the description of its family."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnviz.attention.decoder_config import DecoderConfig, config_from_llama, config_to_llama
from attnviz.attention.families import (
    ACTIVATIONS,
    FAMILIES,
    MUST_BE,
    SILENT,
    Family,
    NotUnderstoodError,
)
from attnviz.attention.family_tensors import Shapes, TensorPart, by_role, head_tensors, parts_of
from attnviz.attention.numpy_stack import NumpyStack, StackShape
from attnviz.attention.rotary import Linear, Llama3, LongRope, Rotary, Stretch, Yarn
from attnviz.errors import LoadError, UsageError
from attnviz.reading import repeated


class StoredParameters(NamedTuple):
    """The number of parameters of a model, and whether it can have fewer heads.

    number: with tied parameters counted once.
    fewer: whether its config can say that there are fewer heads of the same width.
    """

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
    family = next((one for one in FAMILIES if fields.get("model_type") in one.model_types), None)
    if family is None:
        raise NotUnderstoodError(f"no description of the model type {fields.get('model_type')!r}")
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
        layers=sizes["layers"],
        heads=sizes["heads"],
        kv_heads=sizes["kv_heads"],
        head_dim=sizes["head_dim"],
        vocabulary=sizes["vocabulary"],
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
    for ours, said in family.sizes.items():
        field, _, otherwise = said.partition("=")
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
        if not any(type(value) is type(one) and value == one for one in values):
            raise NotUnderstoodError(f"{name} is {value!r}")
    used.update(said.partition("=")[0] for said in family.biases.values() if isinstance(said, str))


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


def _number(fields: Mapping[str, Any], said: str, used: set[str]) -> float:
    name, _, otherwise = said.partition("=")
    used.add(name)
    value = fields.get(name, float(otherwise) if otherwise else None)
    if not isinstance(value, float) or not 0 <= value < 1:
        raise NotUnderstoodError(f"{name} is {value!r}")
    return value


# Layers that differ ---------------------------------------------------------------------------

_LISTS = ("layer_types", "attention_types")
"""Fields that list the attention of each layer, the second as ``[[[kind, …], times], …]``."""

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
    listed = _kinds(fields, layers)
    kinds = listed or [usual] * layers
    known = {*_WHOLE, *(_WINDOWED if width is not None else ())}
    alike = family.windows == "listed" or {*kinds} == {usual}
    if len(kinds) != layers or not known.issuperset(kinds) or not alike:
        raise NotUnderstoodError(f"layers of {' and '.join(sorted({*map(str, kinds)}))}")
    if family.windows == "listed" and width is not None and not listed:
        raise NotUnderstoodError(f"{family.window} is {width}, of layers that are not listed")
    windows = tuple(width if kind in _WINDOWED else None for kind in kinds)
    return windows if any(windows) else ()


def _kinds(fields: Mapping[str, Any], layers: int) -> list[Any]:
    """Return the attention kind of each layer, or an empty list if the config does not list it."""
    listed, folded = (fields.get(name) or [] for name in _LISTS)
    try:
        kinds = [*listed, *repeated(folded, layers)]
    except (TypeError, ValueError) as error:
        raise NotUnderstoodError(f"attention_types is {folded!r}") from error
    if fields.get("attention_layers", kinds) != kinds:
        raise NotUnderstoodError("attention_layers are not those of attention_types")
    return kinds


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
    (base, usual_base), (share, usual_share) = (
        said.split("=") for said in (family.theta, family.share)
    )
    used.update((base, share, "rope_parameters", "rope_scaling"))
    said = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(said, Mapping):
        raise NotUnderstoodError(f"rope_parameters is {said!r}")
    rope = dict(said)
    kind = str(rope.pop("rope_type", rope.get("type", "default")))
    rope.pop("type", None)
    always, at_will = _FIELDS.get(kind, (set[str](), set[str]()))
    rope = {name: said for name, said in rope.items() if said is not None or name not in at_will}
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
    for said in (rope["short_factor"], rope["long_factor"]):
        if not isinstance(said, list) or len(said) != dims // 2:
            raise NotUnderstoodError(f"no list of {dims // 2} factors of rotary positions")
        factors.append(tuple(map(_positive, said)))
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


def _positive(said: object) -> float:
    """Return a positive number as a float; raise NotUnderstoodError for anything else."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said < math.inf:
        raise NotUnderstoodError(f"rotary positions of {said!r}")
    return float(said)


# The library's own decoder --------------------------------------------------------------------


def read_decoder(fields: Mapping[str, Any], stored: Shapes) -> DecoderConfig:
    """Return the configuration of what ``save_checkpoint`` wrote; LoadError for anything else."""
    try:
        found = checkpoint_layout(fields, stored)
        config = config_from_llama(fields, found.shape)
        expected = config.tensor_shapes()
        for name in sorted(stored.keys() - expected.keys()):
            raise NotUnderstoodError(f"the tensor {name} has no place")
        if checkpoint_layout(config_to_llama(config, "float32"), expected) != found:
            raise NotUnderstoodError("config.json asks for more than a plain Llama")
    except (NotUnderstoodError, UsageError) as error:
        raise LoadError(str(error)) from error
    return config


def llama_stack(
    config: DecoderConfig,
    tensors: Mapping[str, NDArray[np.floating]],
    dtype: DTypeLike = np.float32,
) -> NumpyStack:
    """Return a NumPy decoder over tensors by Llama's names, each read when it is first needed."""
    found = checkpoint_layout(config_to_llama(config, "float32"), config.tensor_shapes())
    return NumpyStack(found.shape, by_role(tensors, found.parts), dtype)
