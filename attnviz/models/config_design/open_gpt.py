"""BLOOM, Falcon, MPT and OPT: open decoders with layer norms and a tied head."""

from __future__ import annotations

from attnviz.designs import Dense, Design, LayerGroup, Norm, Part, StackDesign
from attnviz.models.config_design.blocks import (
    block,
    layer_norm,
    plain_feed_forward,
    square_attention,
    tables,
)
from attnviz.models.config_design.fields import Fields, UnclaimedError
from attnviz.models.config_design.gpt_stack import head, shape, stacked

__all__ = ["bloom", "falcon", "mpt", "opt"]


def bloom(fields: Fields, *, with_head: bool) -> Design:
    """BLOOM: slopes instead of positions, a norm behind the token table."""
    width, heads, layers = shape(fields)
    attention = square_attention(fields, width, heads)
    layer = block(attention, feed_forward=plain_feed_forward(width, 4 * width), norms=2)
    first = layer_norm("embedding norm", width)
    return stacked(
        fields, (LayerGroup(layer, layers),), with_head=with_head, norms=(first,), limited=False
    )


def falcon(fields: Fields, *, with_head: bool) -> Design:
    """Falcon: a single key/value head, or grouped ones in the newer shape."""
    width, heads, layers = shape(fields)
    new = fields.flag("new_decoder_architecture")
    if new:
        groups = fields.optional("num_kv_heads") or heads
    else:
        groups = 1 if fields.flag("multi_query") else heads
    bias = fields.flag("bias")
    attention = square_attention(fields, width, heads, bias=bias, kv_heads=groups)
    inner = fields.optional("ffn_hidden_size") or 4 * width
    layer = block(
        attention,
        feed_forward=plain_feed_forward(width, inner, bias),
        norms=_falcon_norms(fields, new),
    )
    limited = not fields.flag("alibi")
    return stacked(fields, (LayerGroup(layer, layers),), with_head=with_head, limited=limited)


def mpt(fields: Fields, *, with_head: bool) -> Design:
    """MPT: slopes instead of positions, no biases at all."""
    nested = fields.get("attn_config") or {}
    if nested.get("kv_n_heads") or nested.get("qk_ln"):
        raise UnclaimedError
    width, heads, layers = shape(fields)
    attention = square_attention(fields, width, heads, bias=False)
    inner = plain_feed_forward(width, 4 * width, bias=False)
    layer = block(attention, feed_forward=inner, norms=2, shift=False)
    return stacked(
        fields,
        (LayerGroup(layer, layers),),
        with_head=with_head,
        limited=False,
        final=Norm("final norm", width),
    )


def opt(fields: Fields, *, with_head: bool) -> Design:
    """OPT: learned positions with two rows to spare, token vectors of another width."""
    width, heads, layers = shape(fields)
    bias, affine = fields.flag("enable_bias"), fields.flag("layer_norm_elementwise_affine")
    layer = block(
        square_attention(fields, width, heads, bias=bias),
        feed_forward=plain_feed_forward(width, fields.whole("ffn_dim"), bias),
        norms=2 if affine else 0,
    )
    narrow = fields.optional("word_embed_proj_dim") or width
    vocab, positions = fields.whole("vocab_size"), fields.whole("max_position_embeddings")
    closing = fields.flag("do_layer_norm_before") and not fields.flag("_remove_final_layer_norm")
    outwards = () if narrow == width else (Dense("projection out", width, narrow),)
    token, _ = tables(vocab, narrow, 1)
    _, position = tables(vocab, width, positions + 2)
    inwards: tuple[Part, ...] = () if narrow == width else (Dense("projection in", narrow, width),)
    stack = StackDesign(
        name="decoder",
        groups=(LayerGroup(layer, layers),),
        embeddings=(token, position, *inwards),
        norms=(layer_norm("final norm", width),) if closing and affine else (),
        parts=outwards,
        head=head(fields, narrow) if with_head else None,
        max_positions=positions,
    )
    return Design(name=fields.name, source="", stacks=(stack,))


def _falcon_norms(fields: Fields, new: bool) -> int:
    if not fields.flag("parallel_attn"):
        return 2
    count = fields.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    return count if new else 1
