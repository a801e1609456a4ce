"""Builds a ``ModelSpec`` from options of ``attnviz params`` or from a built-in configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast, get_type_hints

from attnviz.count.params import specs
from attnviz.count.params.request import SHAPE, ShapeOptions, check_options
from attnviz.errors import LoadError, UsageError
from attnviz.models.shapes import Shape, nearest

_Part = TypeVar("_Part", specs.Dense, specs.LookupTable, specs.Norm)

_GATED = ("swiglu", "geglu")

_LISTS: dict[str, Any] = {
    "tables": specs.LookupTable,
    "matrices": specs.Dense,
    "norms": specs.Norm,
}
_STACK_KEYS = {
    "name": str,
    "causal": bool,
    "reads": str,
    "tokens": int,
    "cross_width": int,
    "final_norm": bool,
    "ffn_bias": bool,
    "scaled": bool,
    "head": dict,
    **dict.fromkeys(_LISTS, list),
}
"""What a stack in a file may state in addition to the options of the command line."""


def spec_from_options(*, name: str = "", **options: object) -> specs.ModelSpec:
    """Return the spec of the architecture that options describe; None means not given.

    Raises UsageError for invalid numbers, heads that do not divide, options that contradict each
    other or lack their partner, and an unknown name.
    """
    given = {key: value for key, value in options.items() if value is not None}
    check_options(given)
    shape = ShapeOptions(**cast("dict[str, Any]", given))
    return specs.ModelSpec(name=name, source="", stacks=(_stack(shape, {}),))


def _stack(shape: ShapeOptions, own: Mapping[str, Any]) -> specs.StackSpec:
    """Return the spec of a stack of layers.

    shape: its sizes. own: what only a file states, by the names of ``_STACK_KEYS``, made of specs.
    """
    width, tables = shape.d_model, []
    if shape.vocab is not None:
        tables.append(specs.LookupTable("token embedding", shape.vocab, width))
    if shape.positions == "learned" and shape.max_positions is not None:
        tables.append(specs.LookupTable("position embedding", shape.max_positions, width))
    head = None
    if shape.vocab is not None:
        head = specs.Dense("head", width, shape.vocab, tied=shape.tied is not False)
    closing = own.get("final_norm", shape.layers is not None)
    matrices = own.get("matrices", ())
    patches = tuple(item for item in matrices if "embedding" in item.label)
    return specs.StackSpec(
        name=own.get("name", "decoder"),
        groups=(specs.LayerGroup(_layer(shape, own), shape.layers or 1),),
        causal=own.get("causal", True),
        embeddings=(*patches, *tables, *own.get("tables", ())),
        norms=(*(_norms(shape, "final") if closing else ()), *own.get("norms", ())),
        parts=tuple(item for item in matrices if item not in patches),
        head=own.get("head", head),
        tokens=own.get("tokens"),
        max_positions=shape.max_positions,
        reads=own.get("reads", "target"),
    )


def _layer(shape: ShapeOptions, own: Mapping[str, Any]) -> specs.LayerSpec:
    attentions, feed_forward = [_attention(shape)], _feed_forward(shape)
    labels = ["attention"]
    if "cross_width" in own:
        cross = attentions[0]._replace(cross=True, source_width=own["cross_width"])
        attentions.append(cross._replace(window=None, latent=None, linear=False))
        labels.append("cross attention")
    if feed_forward is not None:
        labels.append("feed-forward")
    if own.get("ffn_bias") and isinstance(feed_forward, specs.FeedForwardSpec):
        feed_forward = feed_forward._replace(up_bias=True, down_bias=True)
    norms = tuple(norm for label in labels for norm in _norms(shape, label))
    scaled = ("attention", "feed-forward") if own.get("scaled") else ()
    parts = tuple(specs.LookupTable(f"{part} scale", 1, shape.d_model) for part in scaled)
    return specs.LayerSpec(tuple(attentions), feed_forward, norms, parts)


def _attention(shape: ShapeOptions) -> specs.AttentionSpec:
    latent = None
    head_dim = shape.head_dim or shape.d_model // shape.heads
    value_dim = shape.v_head_dim or head_dim
    if shape.kv_lora is not None:
        rope, nope = shape.rope_dim or 0, shape.nope_dim or 0
        latent = specs.LatentSpec(shape.kv_lora, rope, nope, shape.q_lora)
        head_dim, value_dim = rope + nope, shape.v_head_dim or nope
    inner = shape.bias and latent is None  # latent keys and values are rebuilt without biases
    return specs.AttentionSpec(
        *(shape.d_model, shape.heads, shape.kv_heads or shape.heads, head_dim, value_dim),
        *(inner, inner, inner, shape.bias),
        window=shape.window,
        latent=latent,
        linear=shape.linear,
    )


def _feed_forward(shape: ShapeOptions) -> specs.FeedForwardSpec | specs.ExpertsSpec | None:
    width, gated = shape.d_expert or shape.d_ff or 0, shape.ffn in _GATED
    expert = specs.FeedForwardSpec(shape.d_model, width, gated, shape.bias, shape.bias)
    if shape.experts is None:
        return None if shape.d_ff is None else expert._replace(d_ff=shape.d_ff)
    shared = shape.shared_experts or 0
    return specs.ExpertsSpec(
        expert=expert,
        experts=shape.experts,
        active=shape.active_experts or 0,
        shared=expert._replace(d_ff=shared * width) if shared else None,
    )


def _norms(shape: ShapeOptions, label: str) -> tuple[specs.Norm, ...]:
    if shape.norm is None:
        return ()
    return (specs.Norm(f"{label} norm", shape.d_model, shift=shape.norm == "layernorm"),)


def spec_from_shape(shape: Shape) -> specs.ModelSpec | None:
    """Return the spec of a built-in configuration; None if its model class cannot be counted.

    Raises LoadError for an unknown key, with the nearest known one, or numbers that do not fit.
    """
    if shape.config:
        return _from_config(shape)
    try:
        stacks = tuple(_table_stack(shape, options) for options in shape.stacks)
    except UsageError as error:
        raise LoadError(f"the shape {shape.name!r} cannot be counted: {error}") from error
    return specs.ModelSpec(
        name=shape.name,
        source=shape.source,
        stacks=stacks,
        embeddings=tuple(_part(shape, specs.LookupTable, item) for item in shape.tables),
        parts=tuple(_part(shape, specs.Dense, item) for item in shape.matrices),
        notes=shape.notes,
    )


def _from_config(shape: Shape) -> specs.ModelSpec | None:
    from attnviz.count.params.families import misspelt_field, spec_from_config

    spec = spec_from_config(
        shape.config, name=shape.name, source=shape.source, architecture=shape.counts or None
    )
    if (wrong := misspelt_field(shape.config)) is not None:
        raise LoadError(
            f"the shape {shape.name!r} has an unknown field {wrong[0]!r}; did you mean "
            f"{wrong[1]!r}?"
        )
    return None if spec is None else spec._replace(notes=(*shape.notes, *spec.notes))


def _table_stack(shape: Shape, table: Mapping[str, Any]) -> specs.StackSpec:
    known = (*SHAPE, *_STACK_KEYS)
    for key in table:
        if key.replace("-", "_") not in known:
            spelt = [name.replace("_", "-") for name in known] if "-" in key else known
            raise LoadError(
                f"the shape {shape.name!r} has an unknown key {key!r}{nearest(key, spelt)}"
            )
    given = {key.replace("-", "_"): value for key, value in table.items()}
    own = {key: value for key, value in given.items() if key in _STACK_KEYS}
    _checked(shape, own, _STACK_KEYS)
    if own.get("reads", "target") not in ("target", "source"):
        raise LoadError(f"the shape {shape.name!r} has reads = {own['reads']!r}: target or source")
    options = {key: value for key, value in given.items() if key in SHAPE}
    check_options(options)
    for key, kind in _LISTS.items():
        own[key] = tuple(_part(shape, kind, item) for item in own.get(key, ()))
    if "head" in own:
        width = options["d_model"]
        own["head"] = _part(shape, specs.Dense, own["head"], label="head", inputs=width)
    return _stack(ShapeOptions(**options), own)


def _part(shape: Shape, kind: type[_Part], item: object, **given: Any) -> _Part:
    """Return a matrix, table or norm from the fields that a configuration file gives for it.

    item: these fields, a table. kind: the class of the part. given: fields that the file omits.
    """
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in given}
    kinds = {name: int if hint == int | None else hint for name, hint in hints.items()}
    needed = [name for name in kinds if name not in kind._field_defaults]
    return kind(**given, **_checked(shape, item, kinds, needed))


def _checked(
    shape: Shape, item: object, kinds: Mapping[str, type], needed: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the table ``item`` of a configuration file unchanged, if it is valid.

    shape: the configuration, for messages.
    kinds: the types of the allowed keys. needed: keys that must be present.
    Raises LoadError for a key that is unknown, missing, or of another type.
    """
    if not isinstance(item, dict):
        raise LoadError(f"the shape {shape.name!r} has {item!r} where a table was expected")
    for key, value in item.items():
        if key not in kinds:
            raise LoadError(
                f"the shape {shape.name!r} has an unknown key {key!r}{nearest(key, kinds)}"
            )
        if type(value) is not kinds[key] or (type(value) is int and value < 1):
            wanted = {int: "a whole number of 1 or more", bool: "true or false"}
            raise LoadError(
                f"the shape {shape.name!r} has {key} = {value!r}: expected "
                f"{wanted.get(kinds[key], f'a {kinds[key].__name__}')}"
            )
    for key in needed:
        if key not in item:
            raise LoadError(f"the shape {shape.name!r} has a part without {key!r}: {item!r}")
    return item
