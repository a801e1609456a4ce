"""Builds a ``ModelSpec`` from options of ``attnviz params`` or from a built-in configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast, get_type_hints

from attnviz.count.params import specs
from attnviz.count.params.request import SHAPE, ShapeOptions, check_options
from attnviz.errors import LoadError, UsageError
from attnviz.models.shapes import Shape, nearest

_Part = TypeVar("_Part", specs.Dense, specs.LookupTable, specs.Norm)

_GATED = {"relu": False, "gelu": False, "swiglu": True, "geglu": True}

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
    "tables": list,
    "matrices": list,
    "norms": list,
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
    return specs.ModelSpec(name=name, source="", stacks=(_stack_of(shape),))


def _stack_of(
    shape: ShapeOptions,
    *,
    name: str = "decoder",
    causal: bool = True,
    cross_width: int | None = None,
    final_norm: bool | None = None,
) -> specs.StackSpec:
    """Return the spec of a stack of layers with the given sizes.

    shape: the sizes. name: of the stack. causal: True if a token sees only earlier ones.
    cross_width: the width of the stack that each layer's cross attention attends to; None without.
    final_norm: whether a norm follows the last layer; None for if there is more than one layer.
    """
    layer = _layer(shape, cross_width)
    closing = shape.layers is not None if final_norm is None else final_norm
    return specs.StackSpec(
        name=name,
        groups=(specs.LayerGroup(layer, shape.layers or 1),),
        causal=causal,
        embeddings=_embeddings(shape),
        norms=_norms(shape, "final") if closing else (),
        head=_head(shape),
        max_positions=shape.max_positions,
    )


def _layer(shape: ShapeOptions, cross_width: int | None) -> specs.LayerSpec:
    attention = _attention(shape)
    attentions = [attention]
    if cross_width is not None:
        cross = attention._replace(cross=True, source_width=cross_width)
        attentions.append(cross._replace(window=None, latent=None, linear=False))
    feed_forward = _feed_forward(shape)
    labels = ["attention", *(["cross attention"] if cross_width is not None else [])]
    labels += ["feed-forward"] if feed_forward is not None else []
    norms = tuple(norm for label in labels for norm in _norms(shape, label))
    return specs.LayerSpec(tuple(attentions), feed_forward, norms)


def _attention(shape: ShapeOptions) -> specs.AttentionSpec:
    latent = None
    if shape.kv_lora is not None:
        rope, nope = shape.rope_dim or 0, shape.nope_dim or 0
        latent = specs.LatentSpec(shape.kv_lora, rope, nope, shape.q_lora)
        head_dim, value_dim = rope + nope, shape.v_head_dim or nope
    else:
        head_dim = shape.head_dim or shape.d_model // shape.heads
        value_dim = shape.v_head_dim or head_dim
    # Keys and values of latent attention are rebuilt without biases.
    inner = shape.bias and latent is None
    return specs.AttentionSpec(
        d_model=shape.d_model,
        heads=shape.heads,
        kv_heads=shape.kv_heads or shape.heads,
        head_dim=head_dim,
        value_dim=value_dim,
        query_bias=inner,
        key_bias=inner,
        value_bias=inner,
        output_bias=shape.bias,
        window=shape.window,
        latent=latent,
        linear=shape.linear,
    )


def _feed_forward(shape: ShapeOptions) -> specs.FeedForwardSpec | specs.ExpertsSpec | None:
    if shape.experts is None:
        return None if shape.d_ff is None else _plain(shape, shape.d_ff)
    width = shape.d_expert or shape.d_ff or 0
    shared = shape.shared_experts or 0
    return specs.ExpertsSpec(
        expert=_plain(shape, width),
        experts=shape.experts,
        active=shape.active_experts or 0,
        shared=_plain(shape, shared * width) if shared else None,
    )


def _plain(shape: ShapeOptions, width: int) -> specs.FeedForwardSpec:
    kind = shape.ffn or "gelu"
    return specs.FeedForwardSpec(shape.d_model, width, _GATED[kind], shape.bias, shape.bias, kind)


def _norms(shape: ShapeOptions, label: str) -> tuple[specs.Norm, ...]:
    if shape.norm is None:
        return ()
    return (specs.Norm(f"{label} norm", shape.d_model, shift=shape.norm == "layernorm"),)


def _embeddings(shape: ShapeOptions) -> tuple[specs.Part, ...]:
    tables = []
    if shape.vocab is not None:
        tables.append(specs.LookupTable("token embedding", shape.vocab, shape.d_model))
    if shape.positions == "learned" and shape.max_positions is not None:
        tables.append(specs.LookupTable("position embedding", shape.max_positions, shape.d_model))
    return tuple(tables)


def _head(shape: ShapeOptions) -> specs.Dense | None:
    if shape.vocab is None:
        return None
    return specs.Dense("head", shape.d_model, shape.vocab, tied=shape.tied is not False)


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
    from attnviz.count.params.config.read import misspelt_field, spec_from_config

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
    options_by_name = {key.replace("-", "_"): value for key, value in table.items()}
    own = {key: value for key, value in options_by_name.items() if key in _STACK_KEYS}
    _checked(shape, own, _STACK_KEYS)
    options = {key: value for key, value in options_by_name.items() if key in SHAPE}
    check_options(options)
    made = _stack_of(
        ShapeOptions(**options),
        name=own.get("name", "decoder"),
        causal=own.get("causal", True),
        cross_width=own.get("cross_width"),
        final_norm=own.get("final_norm"),
    )
    return _completed(shape, made, own, options["d_model"])


def _completed(
    shape: Shape, stack: specs.StackSpec, own: Mapping[str, Any], width: int
) -> specs.StackSpec:
    """Return the stack with those settings of a configuration that the command line does not have.

    shape: the configuration, for messages. own: the table of this stack. width: of the model.
    """
    if own.get("reads", "target") not in ("target", "source"):
        raise LoadError(f"the shape {shape.name!r} has reads = {own['reads']!r}: target or source")
    groups = tuple(
        group._replace(layer=_completed_layer(group.layer, own, width)) for group in stack.groups
    )
    tables = (_part(shape, specs.LookupTable, item) for item in own.get("tables", []))
    matrices = tuple(_part(shape, specs.Dense, item) for item in own.get("matrices", []))
    patches = tuple(item for item in matrices if "embedding" in item.label)
    head = stack.head
    if "head" in own:
        head = _part(shape, specs.Dense, own["head"], label="head", inputs=width)
    return stack._replace(
        groups=groups,
        embeddings=(*patches, *stack.embeddings, *tables),
        norms=(*stack.norms, *(_part(shape, specs.Norm, item) for item in own.get("norms", []))),
        parts=tuple(item for item in matrices if item not in patches),
        head=head,
        tokens=own.get("tokens"),
        reads=own.get("reads", "target"),
    )


def _completed_layer(layer: specs.LayerSpec, own: Mapping[str, Any], width: int) -> specs.LayerSpec:
    """Return the layer with learned scales or feed-forward biases, if the table sets them."""
    if own.get("scaled"):
        places = ("attention", "feed-forward")
        layer = layer._replace(
            parts=tuple(specs.LookupTable(f"{place} scale", 1, width) for place in places)
        )
    if own.get("ffn_bias") and isinstance(layer.feed_forward, specs.FeedForwardSpec):
        feed_forward = layer.feed_forward._replace(up_bias=True, down_bias=True)
        layer = layer._replace(feed_forward=feed_forward)
    return layer


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
