"""What the older families are built of: square attention with biases, plain feed-forward parts."""

from __future__ import annotations

from attnviz.params.config.fields import Fields
from attnviz.params.specs import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    Norm,
    Part,
    Table,
)

__all__ = ["block", "layer_norm", "plain_feed_forward", "square_attention", "tables"]


def layer_norm(label: str, width: int) -> Norm:
    """A layer norm with scale and shift."""
    return Norm(label, width, shift=True)


def square_attention(
    fields: Fields,
    width: int,
    heads: int,
    *,
    bias: bool = True,
    output_bias: bool | None = None,
    key_bias: bool | None = None,
    kv_heads: int | None = None,
    window: int | None = None,
    keeps_all: bool = False,
    source_width: int | None = None,
    parts: tuple[Part, ...] = (),
) -> AttentionSpec:
    """Attention whose heads share the model's width; ``source_width`` makes it cross attention."""
    dim = fields.divided(width, heads)
    return AttentionSpec(
        d_model=width,
        heads=heads,
        kv_heads=fields.grouped(heads, kv_heads or heads),
        head_dim=dim,
        value_dim=dim,
        query_bias=bias,
        key_bias=bias if key_bias is None else key_bias,
        value_bias=bias,
        output_bias=bias if output_bias is None else output_bias,
        window=window,
        keeps_all=keeps_all,
        cross=source_width is not None,
        source_width=source_width,
        parts=parts,
    )


def plain_feed_forward(width: int, inner: int, bias: bool = True) -> FeedForwardSpec:
    """Two matrices with one activation in between."""
    return FeedForwardSpec(width, inner, up_bias=bias, down_bias=bias)


def block(
    *attentions: AttentionSpec,
    feed_forward: FeedForwardSpec,
    norms: int,
    shift: bool = True,
    parts: tuple[Part, ...] = (),
) -> LayerSpec:
    """A layer with so many norms of the model's width."""
    width = attentions[0].d_model
    labels = ("attention norm", "feed-forward norm", "cross attention norm")
    return LayerSpec(
        attentions,
        feed_forward,
        tuple(Norm(label, width, shift=shift) for label in labels[:norms]),
        parts,
    )


def tables(vocab: int, width: int, positions: int | None = None) -> tuple[Table, ...]:
    """A token table, and a position table of so many rows."""
    token = Table("token embedding", vocab, width)
    if positions is None:
        return (token,)
    return (token, Table("position embedding", positions, width))
