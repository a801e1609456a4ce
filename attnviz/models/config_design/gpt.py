"""Decoders of the GPT-2 generation, each with its own spellings and biases."""

from __future__ import annotations

from attnviz.designs import (
    Dense,
    Design,
    LayerDesign,
    LayerGroup,
    Norm,
    Part,
    StackDesign,
    group_layers,
)
from attnviz.models.config_design.blocks import (
    block,
    layer_norm,
    plain_feed_forward,
    square_attention,
    tables,
)
from attnviz.models.config_design.fields import Fields
from attnviz.models.config_design.windows import UnclaimedError

__all__ = ["bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt"]


def gpt2(fields: Fields, *, with_head: bool) -> Design:
    """GPT-2: learned positions, biases everywhere, the head tied (Radford et al. 2019)."""
    if fields.flag("add_cross_attention"):
        raise UnclaimedError
    width, heads, layers = _shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    attention = square_attention(fields, width, heads)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=2)
    positions = fields.whole("max_position_embeddings")
    return _design(fields, layer, layers, with_head=with_head, table=positions)


def gpt_bigcode(fields: Fields, *, with_head: bool) -> Design:
    """GPT-2 with a single key/value head (SantaCoder: Ben Allal et al. 2023)."""
    if fields.flag("add_cross_attention"):
        raise UnclaimedError
    width, heads, layers = _shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    groups = 1 if fields.flag("multi_query") else heads
    attention = square_attention(fields, width, heads, kv_heads=groups)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=2)
    positions = fields.whole("max_position_embeddings")
    return _design(fields, layer, layers, with_head=with_head, table=positions)


def gpt_neo(fields: Fields, *, with_head: bool) -> Design:
    """GPT-Neo: global and local attention take turns."""
    width, heads, layers = _shape(fields)
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
            ),
            feed_forward=feed_forward,
            norms=2,
        )
        for kind in dict.fromkeys(kinds)
    }
    positions = fields.whole("max_position_embeddings")
    groups = group_layers([made[kind] for kind in kinds])
    return _stack(fields, groups, width, with_head=with_head, table=positions)


def gptj(fields: Fields, *, with_head: bool) -> Design:
    """GPT-J and CodeGen: one norm before two parallel parts, a head with a bias."""
    width, heads, layers = _shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    attention = square_attention(fields, width, heads, bias=False)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=1)
    return _design(fields, layer, layers, with_head=with_head, head_bias=True)


def gpt_neox(fields: Fields, *, with_head: bool) -> Design:
    """GPT-NeoX and Pythia: rotary positions, an untied head (Black et al. 2022)."""
    width, heads, layers = _shape(fields)
    attention = square_attention(fields, width, heads, bias=fields.flag("attention_bias"))
    feed_forward = plain_feed_forward(width, fields.whole("intermediate_size"))
    layer = block(attention, feed_forward=feed_forward, norms=2)
    return _design(fields, layer, layers, with_head=with_head)


def bloom(fields: Fields, *, with_head: bool) -> Design:
    """BLOOM: slopes instead of positions, a norm behind the token table."""
    width, heads, layers = _shape(fields)
    attention = square_attention(fields, width, heads)
    layer = block(attention, feed_forward=plain_feed_forward(width, 4 * width), norms=2)
    first = layer_norm("embedding norm", width)
    return _design(fields, layer, layers, with_head=with_head, norms=(first,), limited=False)


def falcon(fields: Fields, *, with_head: bool) -> Design:
    """Falcon: a single key/value head, or grouped ones in the newer shape."""
    width, heads, layers = _shape(fields)
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
    return _design(fields, layer, layers, with_head=with_head, limited=limited)


def mpt(fields: Fields, *, with_head: bool) -> Design:
    """MPT: slopes instead of positions, no biases at all."""
    nested = fields.get("attn_config") or {}
    if nested.get("kv_n_heads") or nested.get("qk_ln"):
        raise UnclaimedError
    width, heads, layers = _shape(fields)
    attention = square_attention(fields, width, heads, bias=False)
    inner = plain_feed_forward(width, 4 * width, bias=False)
    layer = block(attention, feed_forward=inner, norms=2, shift=False)
    return _design(
        fields, layer, layers, with_head=with_head, limited=False, final=Norm("final norm", width)
    )


def opt(fields: Fields, *, with_head: bool) -> Design:
    """OPT: learned positions with two rows to spare, token vectors of another width."""
    width, heads, layers = _shape(fields)
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
        head=_head(fields, narrow) if with_head else None,
        max_positions=positions,
    )
    return Design(name=fields.name, source="", stacks=(stack,))


def _shape(fields: Fields) -> tuple[int, int, int]:
    return (
        fields.whole("hidden_size"),
        fields.whole("num_attention_heads"),
        fields.whole("num_hidden_layers"),
    )


def _repeated(fields: Fields, layers: int) -> list[str]:
    """GPT-Neo's short form of its layers: ``[[["global", "local"], 12]]``."""
    kinds = [kind for names, times in fields.get("attention_types") for kind in names * times]
    if len(kinds) != layers:
        raise UnclaimedError
    return kinds


def _falcon_norms(fields: Fields, new: bool) -> int:
    if not fields.flag("parallel_attn"):
        return 2
    count = fields.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    return count if new else 1


def _design(
    fields: Fields,
    layer: LayerDesign,
    layers: int,
    *,
    with_head: bool,
    table: int | None = None,
    norms: tuple[Norm, ...] = (),
    head_bias: bool = False,
    limited: bool = True,
    final: Norm | None = None,
) -> Design:
    return _stack(
        fields,
        (LayerGroup(layer, layers),),
        layer.attentions[0].d_model,
        with_head=with_head,
        table=table,
        norms=norms,
        head_bias=head_bias,
        limited=limited,
        final=final,
    )


def _stack(
    fields: Fields,
    groups: tuple[LayerGroup, ...],
    width: int,
    *,
    with_head: bool,
    table: int | None = None,
    norms: tuple[Norm, ...] = (),
    head_bias: bool = False,
    limited: bool = True,
    final: Norm | None = None,
) -> Design:
    stack = StackDesign(
        name="decoder",
        groups=groups,
        embeddings=tables(fields.whole("vocab_size"), width, table),
        norms=(*norms, final or layer_norm("final norm", width)),
        head=_head(fields, width, head_bias) if with_head else None,
        max_positions=fields.optional("max_position_embeddings") if limited else None,
    )
    return Design(name=fields.name, source="", stacks=(stack,))


def _head(fields: Fields, width: int, bias: bool = False) -> Dense:
    vocab, tied = fields.whole("vocab_size"), fields.flag("tie_word_embeddings")
    return Dense("head", width, vocab, bias=bias, tied=tied)
