"""A design from the options of ``attnviz params``, or from the same names in a TOML table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from attnviz.models.option_rules import check_options
from attnviz.params.specs import (
    AttentionSpec,
    Dense,
    ExpertsSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerGroup,
    LayerSpec,
    ModelSpec,
    Norm,
    Part,
    StackSpec,
    Table,
)

__all__ = ["OPTIONS", "ShapeOptions", "spec_from_options", "stack_from_options"]

_GATED = {"relu": False, "gelu": False, "swiglu": True, "geglu": True}


@dataclass(frozen=True)
class ShapeOptions:
    """The shape of a stack, named as on the command line with ``_`` for ``-``.

    d_model, heads, kv_heads, head_dim, v_head_dim: of the attention; kv_heads is heads where it is
        not given, head_dim d_model / heads, v_head_dim head_dim.
    bias: biases in the projections and in the feed-forward part.
    layers: how many; None counts a single one.
    d_ff, ffn: width and kind of the feed-forward part, ``gelu`` where only the width is given;
        without a width there is none.
    vocab, tied: rows of the token table, and whether the head is the same matrix (it is, unless
        said otherwise).
    norm: two in a layer and one behind the last; None for none.
    positions, max_positions: ``learned`` makes a table, the others have no parameters.
    window: tokens that a query sees.
    experts, active_experts, shared_experts, d_expert: a mixture of experts in every layer.
    q_lora, kv_lora, rope_dim, nope_dim: latent attention.
    linear: a running state takes the place of the attention weights.
    """

    d_model: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    bias: bool = False
    layers: int | None = None
    d_ff: int | None = None
    ffn: str | None = None
    vocab: int | None = None
    tied: bool | None = None
    norm: str | None = None
    positions: str | None = None
    max_positions: int | None = None
    window: int | None = None
    experts: int | None = None
    active_experts: int | None = None
    shared_experts: int | None = None
    d_expert: int | None = None
    q_lora: int | None = None
    kv_lora: int | None = None
    rope_dim: int | None = None
    nope_dim: int | None = None
    linear: bool = False


OPTIONS = tuple(field.name for field in fields(ShapeOptions))
"""The names that ``design_from_options`` takes beside ``name``."""


def spec_from_options(*, name: str = "", **options: object) -> ModelSpec:
    """The design that the options of ``ShapeOptions`` describe; None means not given.

    Raises:
        UsageError: numbers that are none or not positive, heads that do not divide, options that
            contradict each other or miss their partner, a name that is no option.
    """
    given = {key: value for key, value in options.items() if value is not None}
    check_options(given, OPTIONS)
    shape = ShapeOptions(**cast("dict[str, Any]", given))
    return ModelSpec(name=name, source="", stacks=(stack_from_options(shape),))


def stack_from_options(
    shape: ShapeOptions,
    *,
    name: str = "decoder",
    causal: bool = True,
    cross_width: int | None = None,
    final_norm: bool | None = None,
) -> StackSpec:
    """The stack of a checked shape.

    cross_width: width of the stack that each layer's cross attention reads; None without one.
    final_norm: whether a norm stands behind the last layer; None where there is more than one.
    """
    layer = _layer(shape, cross_width)
    closing = shape.layers is not None if final_norm is None else final_norm
    return StackSpec(
        name=name,
        groups=(LayerGroup(layer, shape.layers or 1),),
        causal=causal,
        embeddings=_embeddings(shape),
        norms=_norms(shape, "final") if closing else (),
        head=_head(shape),
        max_positions=shape.max_positions,
    )


def _layer(shape: ShapeOptions, cross_width: int | None) -> LayerSpec:
    attention = _attention(shape)
    attentions = [attention]
    if cross_width is not None:
        attentions.append(_cross(attention, cross_width))
    feed_forward = _feed_forward(shape)
    labels = ["attention", *(["cross attention"] if cross_width is not None else [])]
    labels += ["feed-forward"] if feed_forward is not None else []
    norms = tuple(norm for label in labels for norm in _norms(shape, label))
    return LayerSpec(tuple(attentions), feed_forward, norms)


def _attention(shape: ShapeOptions) -> AttentionSpec:
    latent = None
    if shape.kv_lora is not None:
        rope, nope = shape.rope_dim or 0, shape.nope_dim or 0
        latent = LatentSpec(shape.kv_lora, rope, nope, shape.q_lora)
        head_dim, value_dim = rope + nope, shape.v_head_dim or nope
    else:
        head_dim = shape.head_dim or shape.d_model // shape.heads
        value_dim = shape.v_head_dim or head_dim
    # Keys and values of latent attention are rebuilt without biases.
    inner = shape.bias and latent is None
    return AttentionSpec(
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


def _cross(attention: AttentionSpec, width: int) -> AttentionSpec:
    return AttentionSpec(
        d_model=attention.d_model,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        value_dim=attention.value_dim,
        query_bias=attention.query_bias,
        key_bias=attention.key_bias,
        value_bias=attention.value_bias,
        output_bias=attention.output_bias,
        cross=True,
        source_width=width,
    )


def _feed_forward(shape: ShapeOptions) -> FeedForwardSpec | ExpertsSpec | None:
    if shape.experts is None:
        return None if shape.d_ff is None else _plain(shape, shape.d_ff)
    width = shape.d_expert or shape.d_ff or 0
    shared = shape.shared_experts or 0
    return ExpertsSpec(
        expert=_plain(shape, width),
        experts=shape.experts,
        active=shape.active_experts or 0,
        shared=_plain(shape, shared * width) if shared else None,
    )


def _plain(shape: ShapeOptions, width: int) -> FeedForwardSpec:
    kind = shape.ffn or "gelu"
    return FeedForwardSpec(shape.d_model, width, _GATED[kind], shape.bias, shape.bias, kind)


def _norms(shape: ShapeOptions, label: str) -> tuple[Norm, ...]:
    if shape.norm is None:
        return ()
    return (Norm(f"{label} norm", shape.d_model, shift=shape.norm == "layernorm"),)


def _embeddings(shape: ShapeOptions) -> tuple[Part, ...]:
    tables = []
    if shape.vocab is not None:
        tables.append(Table("token embedding", shape.vocab, shape.d_model))
    if shape.positions == "learned" and shape.max_positions is not None:
        tables.append(Table("position embedding", shape.max_positions, shape.d_model))
    return tuple(tables)


def _head(shape: ShapeOptions) -> Dense | None:
    if shape.vocab is None:
        return None
    return Dense("head", shape.d_model, shape.vocab, tied=shape.tied is not False)
