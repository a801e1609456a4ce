"""The feed-forward part of each layer of a decoder: dense, or a mixture of experts."""

from __future__ import annotations

from attnviz.designs import Buffer, Dense, ExpertsDesign, FeedForwardDesign
from attnviz.models.config_design.fields import Fields, UnclaimedError
from attnviz.models.config_design.row import ExpertsRow, Row

__all__ = ["feed_forward", "sparse_layers"]

_MOST_LAYERS = 100_000


def feed_forward(fields: Fields, row: Row, sparse: bool) -> FeedForwardDesign | ExpertsDesign:
    """The feed-forward part of a layer with or without experts."""
    bias = fields.flag(row.ffn_bias)
    width = fields.whole("hidden_size")
    if not sparse or row.experts is None:
        inner = fields.whole("intermediate_size")
        return FeedForwardDesign(width, inner, row.gated, bias, bias)
    return _mixture(fields, row, row.experts, bias)


def sparse_layers(fields: Fields, row: Row, layers: int) -> list[bool] | bool:
    """Whether each layer has experts; one answer where it is the same for all."""
    spec = row.experts
    if spec is None:
        return False
    if spec.every == "first_k_dense_replace":
        if fields.get(spec.count) is None:
            return False
        dense = fields.whole(spec.every, least=0)
        if dense in (0, layers) or dense > layers:
            return dense == 0
        _bounded(layers)
        return [layer >= dense for layer in range(layers)]
    if spec.every == "decoder_sparse_step":
        step = fields.whole(spec.every)
        left_out = fields.get("mlp_only_layers") or []
        if fields.get(spec.count) == 0:
            return False
        if step == 1 and not left_out:
            return True
        _bounded(layers)
        return [layer not in left_out and (layer + 1) % step == 0 for layer in range(layers)]
    return True


def _bounded(layers: int) -> None:
    if layers > _MOST_LAYERS:
        raise UnclaimedError


def _mixture(fields: Fields, row: Row, spec: ExpertsRow, bias: bool) -> ExpertsDesign:
    width, inner = fields.whole("hidden_size"), fields.whole(spec.width)
    experts = fields.whole(spec.count)
    shared = None
    if spec.shared and fields.get(spec.shared) is not None:
        together = fields.whole(spec.shared, least=0) * inner
        shared = FeedForwardDesign(width, together, row.gated, bias, bias) if together else None
    if spec.shared_width:
        shared = FeedForwardDesign(width, fields.whole(spec.shared_width), row.gated)
    gate = Dense("shared expert gate", width, 1)
    corrections = Buffer("router correction", experts)
    return ExpertsDesign(
        expert=FeedForwardDesign(width, inner, row.gated, spec.bias, spec.bias),
        experts=experts,
        active=min(fields.whole(spec.active), experts),
        shared=shared,
        router_bias=spec.router_bias,
        parts=(gate,) if spec.shared_gate else (),
        buffers=(corrections,) if spec.corrected else (),
    )
