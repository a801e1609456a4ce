"""The design behind a named shape: from its config, or from its tables of options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from attnviz.errors import LoadError, UsageError
from attnviz.models.option_rules import check_options, nearest
from attnviz.models.shapes import Shape
from attnviz.params.config.read import misspelt_field, spec_from_config
from attnviz.params.design_options import OPTIONS, ShapeOptions, stack_from_options
from attnviz.params.specs import (
    Dense,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    Norm,
    StackSpec,
    Table,
)

__all__ = ["spec_from_shape"]

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
"""What a stack may tell beside the options of the command line."""

_TABLE_KEYS = {"label": str, "rows": int, "width": int}
_MATRIX_KEYS = {
    "label": str, "inputs": int, "outputs": int, "bias": bool, "places": int, "tied": bool,
}  # fmt: skip
_NORM_KEYS = {"label": str, "width": int, "shift": bool}
_HEAD_KEYS = {"outputs": int, "bias": bool, "tied": bool}


def spec_from_shape(shape: Shape) -> ModelSpec | None:
    """The design of a named shape; None where the arithmetic does not claim its config's class.

    Raises:
        LoadError: an unknown key, with the nearest known one, or numbers that do not fit together.
    """
    if shape.config:
        return _from_config(shape)
    try:
        stacks = tuple(_stack(shape, options) for options in shape.stacks)
    except UsageError as error:
        raise LoadError(f"the shape {shape.name!r} cannot be counted: {error}") from error
    return ModelSpec(
        name=shape.name,
        source=shape.source,
        stacks=stacks,
        embeddings=tuple(_table(shape, item) for item in shape.tables),
        parts=tuple(_matrix(shape, item) for item in shape.matrices),
        notes=shape.notes,
    )


def _from_config(shape: Shape) -> ModelSpec | None:
    spec = spec_from_config(
        shape.config, name=shape.name, source=shape.source, architecture=shape.counts or None
    )
    if (wrong := misspelt_field(shape.config)) is not None:
        raise LoadError(
            f"the shape {shape.name!r} has an unknown field {wrong[0]!r}; did you mean "
            f"{wrong[1]!r}?"
        )
    return None if spec is None else replace(spec, notes=(*shape.notes, *spec.notes))


def _stack(shape: Shape, table: Mapping[str, Any]) -> StackSpec:
    known = (*OPTIONS, *_STACK_KEYS)
    for key in table:
        if key.replace("-", "_") not in known:
            spelt = [name.replace("_", "-") for name in known] if "-" in key else known
            raise LoadError(
                f"the shape {shape.name!r} has an unknown key {key!r}{nearest(key, spelt)}"
            )
    told = {key.replace("-", "_"): value for key, value in table.items()}
    own = {key: value for key, value in told.items() if key in _STACK_KEYS}
    _checked(shape, own, _STACK_KEYS)
    options = {key: value for key, value in told.items() if key in OPTIONS}
    check_options(options, OPTIONS)
    made = stack_from_options(
        ShapeOptions(**options),
        name=own.get("name", "decoder"),
        causal=own.get("causal", True),
        cross_width=own.get("cross_width"),
        final_norm=own.get("final_norm"),
    )
    return _completed(shape, made, own, options["d_model"])


def _completed(shape: Shape, stack: StackSpec, own: Mapping[str, Any], width: int) -> StackSpec:
    """The stack with what the options of the command line cannot say."""
    if own.get("reads", "target") not in ("target", "source"):
        raise LoadError(f"the shape {shape.name!r} has reads = {own['reads']!r}: target or source")
    groups = tuple(replace(group, layer=_layer(group.layer, own, width)) for group in stack.groups)
    tables = (_table(shape, item) for item in own.get("tables", []))
    matrices = tuple(_matrix(shape, item) for item in own.get("matrices", []))
    patches = tuple(item for item in matrices if "embedding" in item.label)
    return replace(
        stack,
        groups=groups,
        embeddings=(*patches, *stack.embeddings, *tables),
        norms=(*stack.norms, *(_norm(shape, item) for item in own.get("norms", []))),
        parts=tuple(item for item in matrices if item not in patches),
        head=_head(shape, own["head"], width) if "head" in own else stack.head,
        tokens=own.get("tokens"),
        reads=own.get("reads", "target"),
    )


def _layer(layer: LayerSpec, own: Mapping[str, Any], width: int) -> LayerSpec:
    """The layer with learned scales, or with biases in the feed-forward part alone."""
    if own.get("scaled"):
        places = ("attention", "feed-forward")
        layer = replace(layer, parts=tuple(Table(f"{place} scale", 1, width) for place in places))
    if own.get("ffn_bias") and isinstance(layer.feed_forward, FeedForwardSpec):
        feed_forward = replace(layer.feed_forward, up_bias=True, down_bias=True)
        layer = replace(layer, feed_forward=feed_forward)
    return layer


def _table(shape: Shape, item: Mapping[str, Any]) -> Table:
    _checked(shape, item, _TABLE_KEYS, needed=_TABLE_KEYS)
    return Table(**item)


def _matrix(shape: Shape, item: Mapping[str, Any]) -> Dense:
    _checked(shape, item, _MATRIX_KEYS, needed=("label", "inputs", "outputs"))
    return Dense(**item)


def _norm(shape: Shape, item: Mapping[str, Any]) -> Norm:
    _checked(shape, item, _NORM_KEYS, needed=("label", "width"))
    return Norm(**item)


def _head(shape: Shape, item: Mapping[str, Any], width: int) -> Dense:
    _checked(shape, item, _HEAD_KEYS, needed=("outputs",))
    return Dense("head", width, **item)


def _checked(
    shape: Shape, item: object, kinds: Mapping[str, type], needed: Iterable[str] = ()
) -> None:
    """Raise LoadError for a key that is unknown, missing, or of the wrong kind."""
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
