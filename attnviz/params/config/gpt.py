"""GPT-2 and the open GPTs after it: their configs, and the specs of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from attnviz.params.config import adapter
from attnviz.params.specs import Dense, LayerGroup, ModelSpec, Norm, Part, StackSpec, group_layers


class _Row(NamedTuple):
    """How a family differs from GPT-2 in switches only (Radford et al. 2019).

    bias: whether the attention has biases.
    inner: the field of the feed-forward part's width, which is four times the model's without.
    norms: in a layer. head_bias: whether the head has one.
    shares: a single key/value head where ``multi_query`` says so (SantaCoder: Ben Allal 2023).
    positions: a table of them. limited: they end; not so where slopes take their place.
    first_norm: a norm behind the token table.
    """

    bias: bool = True
    inner: str = "n_inner"
    norms: int = 2
    head_bias: bool = False
    shares: bool = False
    positions: bool = False
    limited: bool = True
    first_norm: bool = False


_GPT2 = _Row(positions=True)
_BIGCODE = _Row(positions=True, shares=True)
_GPTJ = _Row(bias=False, norms=1, head_bias=True)
_BLOOM = _Row(inner="", limited=False, first_norm=True)


def _gpt(fields: adapter.Fields, *, with_head: bool, row: _Row) -> ModelSpec:
    if row.positions and fields.flag("add_cross_attention"):
        raise adapter.UnclaimedError
    width, heads, layers = _shape(fields)
    kv_heads = 1 if row.shares and fields.flag("multi_query") else heads
    attention = adapter.square_attention(fields, width, heads, bias=row.bias, kv_heads=kv_heads)
    inner = (fields.optional(row.inner) if row.inner else None) or 4 * width
    layer = adapter.block(
        attention, feed_forward=adapter.plain_feed_forward(width, inner), norms=row.norms
    )
    return _stacked(
        fields,
        (LayerGroup(layer, layers),),
        with_head=with_head,
        table=fields.whole("max_position_embeddings") if row.positions else None,
        norms=(adapter.layer_norm("embedding norm", width),) if row.first_norm else (),
        head_bias=row.head_bias,
        limited=row.limited,
    )


def _shape(fields: adapter.Fields) -> tuple[int, int, int]:
    """Width, heads and layers."""
    return (
        fields.whole("hidden_size"),
        fields.whole("num_attention_heads"),
        fields.whole("num_hidden_layers"),
    )


def _stacked(
    fields: adapter.Fields,
    groups: tuple[LayerGroup, ...],
    *,
    with_head: bool,
    table: int | None = None,
    norms: tuple[Norm, ...] = (),
    head_bias: bool = False,
    limited: bool = True,
    final: Norm | None = None,
) -> ModelSpec:
    """A decoder of these layers.

    table: rows of its position table; None without one.
    norms: what stands behind the token table.
    limited: whether its positions end.
    final: the norm behind the last layer; None for a layer norm.
    """
    width = groups[0].layer.attentions[0].d_model
    stack = StackSpec(
        name="decoder",
        groups=groups,
        embeddings=adapter.tables(fields.whole("vocab_size"), width, table),
        norms=(*norms, final or adapter.layer_norm("final norm", width)),
        head=adapter.head(fields, width, head_bias) if with_head else None,
        max_positions=fields.optional("max_position_embeddings") if limited else None,
    )
    return adapter.model(fields, stack)


def _falcon(fields: adapter.Fields, *, with_head: bool) -> ModelSpec:
    """Falcon: a single key/value head, or grouped ones in the newer shape."""
    width, heads, layers = _shape(fields)
    new = fields.flag("new_decoder_architecture")
    if new:
        groups = fields.optional("num_kv_heads") or heads
    else:
        groups = 1 if fields.flag("multi_query") else heads
    bias = fields.flag("bias")
    attention = adapter.square_attention(fields, width, heads, bias=bias, kv_heads=groups)
    inner = fields.optional("ffn_hidden_size") or 4 * width
    layer = adapter.block(
        attention,
        feed_forward=adapter.plain_feed_forward(width, inner, bias),
        norms=_falcon_norms(fields, new),
    )
    limited = not fields.flag("alibi")
    return _stacked(fields, (LayerGroup(layer, layers),), with_head=with_head, limited=limited)


def _falcon_norms(fields: adapter.Fields, new: bool) -> int:
    if not fields.flag("parallel_attn"):
        return 2
    count = fields.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    return count if new else 1


def _mpt(fields: adapter.Fields, *, with_head: bool) -> ModelSpec:
    """MPT: slopes instead of positions, no biases at all."""
    nested = fields.get("attn_config") or {}
    if nested.get("kv_n_heads") or nested.get("qk_ln"):
        raise adapter.UnclaimedError
    width, heads, layers = _shape(fields)
    attention = adapter.square_attention(fields, width, heads, bias=False)
    inner = adapter.plain_feed_forward(width, 4 * width, bias=False)
    layer = adapter.block(attention, feed_forward=inner, norms=2, shift=False)
    return _stacked(
        fields,
        (LayerGroup(layer, layers),),
        with_head=with_head,
        limited=False,
        final=Norm("final norm", width),
    )


def _opt(fields: adapter.Fields, *, with_head: bool) -> ModelSpec:
    """OPT: learned positions with two rows to spare, token vectors of another width."""
    width, heads, layers = _shape(fields)
    bias, affine = fields.flag("enable_bias"), fields.flag("layer_norm_elementwise_affine")
    layer = adapter.block(
        adapter.square_attention(fields, width, heads, bias=bias),
        feed_forward=adapter.plain_feed_forward(width, fields.whole("ffn_dim"), bias),
        norms=2 if affine else 0,
    )
    narrow = fields.optional("word_embed_proj_dim") or width
    vocab, positions = fields.whole("vocab_size"), fields.whole("max_position_embeddings")
    closing = fields.flag("do_layer_norm_before") and not fields.flag("_remove_final_layer_norm")
    outwards = () if narrow == width else (Dense("projection out", width, narrow),)
    token, _ = adapter.tables(vocab, narrow, 1)
    _, position = adapter.tables(vocab, width, positions + 2)
    inwards: tuple[Part, ...] = () if narrow == width else (Dense("projection in", narrow, width),)
    stack = StackSpec(
        name="decoder",
        groups=(LayerGroup(layer, layers),),
        embeddings=(token, position, *inwards),
        norms=(adapter.layer_norm("final norm", width),) if closing and affine else (),
        parts=outwards,
        head=adapter.head(fields, narrow) if with_head else None,
        max_positions=positions,
    )
    return adapter.model(fields, stack)


def _gpt_neo(fields: adapter.Fields, *, with_head: bool) -> ModelSpec:
    """GPT-Neo: global and local attention take turns."""
    width, heads, layers = _shape(fields)
    inner = fields.optional("intermediate_size") or 4 * width
    kinds = fields.listed("attention_layers", layers) or _repeated(fields, layers)
    window = fields.whole("window_size")
    plain = adapter.square_attention(fields, width, heads, bias=False)
    attention = plain._replace(output_bias=True, keeps_all=True)
    feed_forward = adapter.plain_feed_forward(width, inner)
    made = {
        kind: adapter.block(
            attention._replace(window=window if kind == "local" else None),
            feed_forward=feed_forward,
            norms=2,
        )
        for kind in dict.fromkeys(kinds)
    }
    positions = fields.whole("max_position_embeddings")
    groups = group_layers([made[kind] for kind in kinds])
    return _stacked(fields, groups, with_head=with_head, table=positions)


def _gpt_neox(fields: adapter.Fields, *, with_head: bool) -> ModelSpec:
    """GPT-NeoX and Pythia: rotary positions, an untied head (Black et al. 2022)."""
    width, heads, layers = _shape(fields)
    attention = adapter.square_attention(fields, width, heads, bias=fields.flag("attention_bias"))
    feed_forward = adapter.plain_feed_forward(width, fields.whole("intermediate_size"))
    layer = adapter.block(attention, feed_forward=feed_forward, norms=2)
    return _stacked(fields, (LayerGroup(layer, layers),), with_head=with_head)


def _repeated(fields: adapter.Fields, layers: int) -> list[str]:
    """GPT-Neo's short form of its layers: ``[[["global", "local"], 12]]``."""
    kinds = [kind for names, times in fields.get("attention_types") for kind in names * times]
    if len(kinds) != layers:
        raise adapter.UnclaimedError
    return kinds


_GPT_NAMES = {
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "num_hidden_layers": ("n_layer",),
    "max_position_embeddings": ("n_positions",),
}


def _adapter(
    read: Callable[..., ModelSpec],
    bare: str,
    causal: str,
    defaults: Mapping[str, Any],
    spellings: Mapping[str, tuple[str, ...]],
) -> adapter.Adapter:
    classes = {bare: partial(read, with_head=False), causal: partial(read, with_head=True)}
    return adapter.Adapter(classes, causal, defaults, spellings)


def _sizes(
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


GPT_ADAPTERS = {
    "gpt2": _adapter(
        *(partial(_gpt, row=_GPT2), "GPT2Model", "GPT2LMHeadModel"),
        _sizes(50257, 1024, 768, 12, 12, tied=True),
        _GPT_NAMES,
    ),
    "gpt_bigcode": _adapter(
        *(partial(_gpt, row=_BIGCODE), "GPTBigCodeModel", "GPTBigCodeForCausalLM"),
        _sizes(50257, 1024, 768, 12, 12, tied=True, multi_query=True),
        _GPT_NAMES,
    ),
    "gpt_neo": _adapter(
        *(_gpt_neo, "GPTNeoModel", "GPTNeoForCausalLM"),
        _sizes(
            *(50257, 2048, 2048, 24, 16),
            tied=True,
            window_size=256,
            attention_types=[[["global", "local"], 12]],
        ),
        {"num_attention_heads": ("num_heads",), "num_hidden_layers": ("num_layers",)},
    ),
    "gptj": _adapter(
        *(partial(_gpt, row=_GPTJ), "GPTJModel", "GPTJForCausalLM"),
        _sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "codegen": _adapter(
        *(partial(_gpt, row=_GPTJ), "CodeGenModel", "CodeGenForCausalLM"),
        _sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "gpt_neox": _adapter(
        *(_gpt_neox, "GPTNeoXModel", "GPTNeoXForCausalLM"),
        _sizes(
            *(50432, 2048, 6144, 44, 64), tied=False, intermediate_size=24576, attention_bias=True
        ),
        {},
    ),
    "bloom": _adapter(
        *(partial(_gpt, row=_BLOOM), "BloomModel", "BloomForCausalLM"),
        _sizes(250880, 2048, 64, 2, 8, tied=True),
        {
            "hidden_size": ("n_embed",),
            "num_attention_heads": ("n_head",),
            "num_hidden_layers": ("n_layer",),
        },
    ),
    "falcon": _adapter(
        *(_falcon, "FalconModel", "FalconForCausalLM"),
        _sizes(65024, 2048, 4544, 32, 71, tied=True, multi_query=True, parallel_attn=True),
        {"num_attention_heads": ("n_head",), "num_hidden_layers": ("n_layer",)},
    ),
    "mpt": _adapter(
        *(_mpt, "MptModel", "MptForCausalLM"),
        _sizes(50368, 2048, 2048, 24, 16, tied=True),
        {
            "hidden_size": ("d_model",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
            "max_position_embeddings": ("max_seq_len",),
        },
    ),
    "opt": _adapter(
        *(_opt, "OPTModel", "OPTForCausalLM"),
        _sizes(
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
