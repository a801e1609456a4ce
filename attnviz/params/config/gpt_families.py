"""GPT-2 and the open GPTs after it: their configs, and the designs of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attnviz.params.config.blocks import (
    block,
    layer_norm,
    plain_feed_forward,
    square_attention,
    tables,
)
from attnviz.params.config.family import Adapter
from attnviz.params.config.fields import Fields, UnclaimedError
from attnviz.params.config.gpt_stack import head, shape, stacked
from attnviz.params.specs import Dense, LayerGroup, ModelSpec, Norm, Part, StackSpec, group_layers

__all__ = [
    "GPT_FAMILIES",
    "bloom",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "mpt",
    "opt",
]


def bloom(fields: Fields, *, with_head: bool) -> ModelSpec:
    """BLOOM: slopes instead of positions, a norm behind the token table."""
    width, heads, layers = shape(fields)
    attention = square_attention(fields, width, heads)
    layer = block(attention, feed_forward=plain_feed_forward(width, 4 * width), norms=2)
    first = layer_norm("embedding norm", width)
    return stacked(
        fields, (LayerGroup(layer, layers),), with_head=with_head, norms=(first,), limited=False
    )


def falcon(fields: Fields, *, with_head: bool) -> ModelSpec:
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


def mpt(fields: Fields, *, with_head: bool) -> ModelSpec:
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


def opt(fields: Fields, *, with_head: bool) -> ModelSpec:
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
    stack = StackSpec(
        name="decoder",
        groups=(LayerGroup(layer, layers),),
        embeddings=(token, position, *inwards),
        norms=(layer_norm("final norm", width),) if closing and affine else (),
        parts=outwards,
        head=head(fields, narrow) if with_head else None,
        max_positions=positions,
    )
    return ModelSpec(name=fields.name, source="", stacks=(stack,))


def _falcon_norms(fields: Fields, new: bool) -> int:
    if not fields.flag("parallel_attn"):
        return 2
    count = fields.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    return count if new else 1


def gpt2(fields: Fields, *, with_head: bool) -> ModelSpec:
    """GPT-2: learned positions, biases everywhere, the head tied (Radford et al. 2019)."""
    if fields.flag("add_cross_attention"):
        raise UnclaimedError
    width, heads, layers = shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    attention = square_attention(fields, width, heads)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=2)
    positions = fields.whole("max_position_embeddings")
    return stacked(fields, (LayerGroup(layer, layers),), with_head=with_head, table=positions)


def gpt_bigcode(fields: Fields, *, with_head: bool) -> ModelSpec:
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


def gpt_neo(fields: Fields, *, with_head: bool) -> ModelSpec:
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


def gptj(fields: Fields, *, with_head: bool) -> ModelSpec:
    """GPT-J and CodeGen: one norm before two parallel parts, a head with a bias."""
    width, heads, layers = shape(fields)
    inner = fields.optional("n_inner") or 4 * width
    attention = square_attention(fields, width, heads, bias=False)
    layer = block(attention, feed_forward=plain_feed_forward(width, inner), norms=1)
    return stacked(fields, (LayerGroup(layer, layers),), with_head=with_head, head_bias=True)


def gpt_neox(fields: Fields, *, with_head: bool) -> ModelSpec:
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


_GPT_NAMES = {
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "num_hidden_layers": ("n_layer",),
    "max_position_embeddings": ("n_positions",),
}


def _gpt(
    read: Callable[..., ModelSpec],
    bare: str,
    causal: str,
    defaults: Mapping[str, Any],
    spellings: Mapping[str, tuple[str, ...]],
) -> Adapter:
    classes = {bare: partial(read, with_head=False), causal: partial(read, with_head=True)}
    return Adapter(classes, causal, defaults, spellings)


def _gpt_sizes(
    vocab: int, positions: int, width: int, layers: int, heads: int, *, tied: bool, **more: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
        **more,
    }


GPT_FAMILIES = {
    "gpt2": _gpt(
        *(gpt2, "GPT2Model", "GPT2LMHeadModel"),
        _gpt_sizes(50257, 1024, 768, 12, 12, tied=True),
        _GPT_NAMES,
    ),
    "gpt_bigcode": _gpt(
        *(gpt_bigcode, "GPTBigCodeModel", "GPTBigCodeForCausalLM"),
        _gpt_sizes(50257, 1024, 768, 12, 12, tied=True, multi_query=True),
        _GPT_NAMES,
    ),
    "gpt_neo": _gpt(
        *(gpt_neo, "GPTNeoModel", "GPTNeoForCausalLM"),
        _gpt_sizes(
            *(50257, 2048, 2048, 24, 16),
            tied=True,
            window_size=256,
            attention_types=[[["global", "local"], 12]],
        ),
        {"num_attention_heads": ("num_heads",), "num_hidden_layers": ("num_layers",)},
    ),
    "gptj": _gpt(
        *(gptj, "GPTJModel", "GPTJForCausalLM"),
        _gpt_sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "codegen": _gpt(
        *(gptj, "CodeGenModel", "CodeGenForCausalLM"),
        _gpt_sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "gpt_neox": _gpt(
        *(gpt_neox, "GPTNeoXModel", "GPTNeoXForCausalLM"),
        _gpt_sizes(
            *(50432, 2048, 6144, 44, 64), tied=False, intermediate_size=24576, attention_bias=True
        ),
        {},
    ),
    "bloom": _gpt(
        *(bloom, "BloomModel", "BloomForCausalLM"),
        _gpt_sizes(250880, 2048, 64, 2, 8, tied=True),
        {
            "hidden_size": ("n_embed",),
            "num_attention_heads": ("n_head",),
            "num_hidden_layers": ("n_layer",),
        },
    ),
    "falcon": _gpt(
        *(falcon, "FalconModel", "FalconForCausalLM"),
        _gpt_sizes(65024, 2048, 4544, 32, 71, tied=True, multi_query=True, parallel_attn=True),
        {"num_attention_heads": ("n_head",), "num_hidden_layers": ("n_layer",)},
    ),
    "mpt": _gpt(
        *(mpt, "MptModel", "MptForCausalLM"),
        _gpt_sizes(50368, 2048, 2048, 24, 16, tied=True),
        {
            "hidden_size": ("d_model",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
            "max_position_embeddings": ("max_seq_len",),
        },
    ),
    "opt": _gpt(
        *(opt, "OPTModel", "OPTForCausalLM"),
        _gpt_sizes(
            *(50272, 2048, 768, 12, 12),
            tied=True,
            ffn_dim=3072,
            do_layer_norm_before=True,
            enable_bias=True,
            layer_norm_elementwise_affine=True,
        ),
        {},
    ),
}
