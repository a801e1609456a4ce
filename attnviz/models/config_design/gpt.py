"""GPT-2 and its descendants, each with its own biases."""

from __future__ import annotations

from attnviz.designs import Design, LayerGroup, group_layers
from attnviz.models.config_design.blocks import (
    block,
    plain_feed_forward,
    square_attention,
)
from attnviz.models.config_design.fields import Fields, UnclaimedError
from attnviz.models.config_design.gpt_stack import shape, stacked

__all__ = ["gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj"]


def gpt2(fields: Fields, *, with_head: bool) -> Design:
    """GPT-2: learned positions, biases everywhere, the head tied (Radford et al. 2019)."""
    if fields.flag("add_cross_attention"):
        raise UnclaimedError
    width, heads, layers = shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    attention = square_attention(fields, width, heads)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=2)
    positions = fields.whole("max_position_embeddings")
    return stacked(fields, (LayerGroup(layer, layers),), with_head=with_head, table=positions)


def gpt_bigcode(fields: Fields, *, with_head: bool) -> Design:
    """GPT-2 with a single key/value head (SantaCoder: Ben Allal et al. 2023)."""
    if fields.flag("add_cross_attention"):
        raise UnclaimedError
    width, heads, layers = shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    groups = 1 if fields.flag("multi_query") else heads
    attention = square_attention(fields, width, heads, kv_heads=groups)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=2)
    positions = fields.whole("max_position_embeddings")
    return stacked(fields, (LayerGroup(layer, layers),), with_head=with_head, table=positions)


def gpt_neo(fields: Fields, *, with_head: bool) -> Design:
    """GPT-Neo: global and local attention take turns."""
    width, heads, layers = shape(fields)
    inner = fields.optional("intermediate_size") or 4 * width
    kinds = fields.listed("attention_layers", layers) or _repeated(fields, layers)
    window = fields.whole("window_size")
    feed_forward = plain_feed_forward(width, inner)
    made = {
        kind: block(
            square_attention(
                fields,
                width,
                heads,
                bias=False,
                output_bias=True,
                window=window if kind == "local" else None,
                keeps_all=True,
            ),
            feed_forward=feed_forward,
            norms=2,
        )
        for kind in dict.fromkeys(kinds)
    }
    positions = fields.whole("max_position_embeddings")
    groups = group_layers([made[kind] for kind in kinds])
    return stacked(fields, groups, with_head=with_head, table=positions)


def gptj(fields: Fields, *, with_head: bool) -> Design:
    """GPT-J and CodeGen: one norm before two parallel parts, a head with a bias."""
    width, heads, layers = shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    attention = square_attention(fields, width, heads, bias=False)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=1)
    return stacked(fields, (LayerGroup(layer, layers),), with_head=with_head, head_bias=True)


def gpt_neox(fields: Fields, *, with_head: bool) -> Design:
    """GPT-NeoX and Pythia: rotary positions, an untied head (Black et al. 2022)."""
    width, heads, layers = shape(fields)
    attention = square_attention(fields, width, heads, bias=fields.flag("attention_bias"))
    feed_forward = plain_feed_forward(width, fields.whole("intermediate_size"))
    layer = block(attention, feed_forward=feed_forward, norms=2)
    return stacked(fields, (LayerGroup(layer, layers),), with_head=with_head)


def _repeated(fields: Fields, layers: int) -> list[str]:
    """GPT-Neo's short form of its layers: ``[[["global", "local"], 12]]``."""
    kinds = [kind for names, times in fields.get("attention_types") for kind in names * times]
    if len(kinds) != layers:
        raise UnclaimedError
    return kinds
