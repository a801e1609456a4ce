"""T5 and its descendants: two stacks, relative positions, no biases (Raffel et al. 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from attnviz.designs import (
    AttentionDesign,
    Dense,
    Design,
    FeedForwardDesign,
    LayerDesign,
    LayerGroup,
    Norm,
    StackDesign,
    Table,
)
from attnviz.models.config_design.blocks import tables
from attnviz.models.config_design.fields import Fields, UnclaimedError

__all__ = ["t5"]

_MOST_LISTED = 100_000


def t5(
    fields: Fields, purpose: Literal["bare", "generating", "encoder"], *, biased_layers: bool
) -> Design:
    """The design of both stacks, or of the encoder alone.

    biased_layers: each layer has its own table of position biases (UMT5), not the first alone.
    """
    width = fields.whole("d_model")
    towers = [_stack(fields, decoder=False, biased_layers=biased_layers)]
    if purpose != "encoder":
        towers.append(_stack(fields, decoder=True, biased_layers=biased_layers))
    if purpose == "generating":
        head = Dense("head", width, fields.whole("vocab_size"), tied=True)
        towers[-1] = replace(towers[-1], head=head)
    if purpose == "encoder":
        towers[0] = replace(towers[0], reads="target")
    return Design(
        name=fields.name,
        source="",
        stacks=tuple(towers),
        embeddings=tables(fields.whole("vocab_size"), width),
    )


def _stack(fields: Fields, *, decoder: bool, biased_layers: bool) -> StackDesign:
    width, layers = fields.whole("d_model"), fields.whole("num_layers")
    if decoder:
        layers = fields.optional("num_decoder_layers") or layers
    first = _layer(fields, decoder=decoder, biased=True)
    later = first if biased_layers else _layer(fields, decoder=decoder, biased=False)
    if biased_layers or layers == 1:
        groups: tuple[LayerGroup, ...] = (LayerGroup(first, layers),)
    else:
        rest = tuple(range(1, layers)) if layers <= _MOST_LISTED else None
        groups = (LayerGroup(first, 1, (0,)), LayerGroup(later, layers - 1, rest))
    return StackDesign(
        name="decoder" if decoder else "encoder",
        groups=groups,
        causal=decoder,
        norms=(Norm("final norm", width),),
        reads="target" if decoder else "source",
    )


def _layer(fields: Fields, *, decoder: bool, biased: bool) -> LayerDesign:
    width = fields.whole("d_model")
    own = _attention(fields, biased=biased)
    if not decoder:
        return LayerDesign((own,), _feed_forward(fields), _norms(width, 2))
    cross = replace(_attention(fields, biased=False), cross=True, source_width=width)
    return LayerDesign((own, cross), _feed_forward(fields), _norms(width, 3))


def _attention(fields: Fields, *, biased: bool) -> AttentionDesign:
    heads, dim = fields.whole("num_heads"), fields.whole("d_kv")
    buckets = fields.whole("relative_attention_num_buckets")
    return AttentionDesign(
        d_model=fields.whole("d_model"),
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        value_dim=dim,
        parts=(Table("relative positions", buckets, heads),) if biased else (),
    )


def _feed_forward(fields: Fields) -> FeedForwardDesign:
    kind = fields.get("feed_forward_proj")
    if not isinstance(kind, str):
        raise UnclaimedError
    stored = fields.get("is_gated_act")  # where it is there, the library takes it
    gated = kind.split("-")[0] == "gated" if stored is None else bool(stored)
    return FeedForwardDesign(
        fields.whole("d_model"), fields.whole("d_ff"), gated, activation=kind.split("-")[-1]
    )


def _norms(width: int, count: int) -> tuple[Norm, ...]:
    labels = ("attention norm", "feed-forward norm", "cross attention norm")
    return tuple(Norm(label, width) for label in labels[:count])
