"""Turns the configs of GPT-2 and the open GPTs after it into specs."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from attnviz.count.params.config import adapter
from attnviz.count.params.specs import (
    Dense,
    LayerGroup,
    ModelSpec,
    Norm,
    Part,
    StackSpec,
    group_layers,
)
from attnviz.reading import damaged, repeated


class _Row(NamedTuple):
    """The switches by which a family of decoders differs from GPT-2 (Radford et al. 2019).

    bias: whether the attention has biases, or the field that says so.
    inner: the field of the feed-forward width, which is four times the model's width without it.
    norms: the number of norms in a layer. head_bias: whether the language-model head has a bias.
    shares: whether ``multi_query`` may ask for one key/value head (SantaCoder: Ben Allal 2023).
    positions: whether there is a table of positions. limited: whether texts have a longest length,
        which models with slopes (ALiBi) in place of positions lack.
    first_norm: whether a norm follows the token table.
    biased: whether feed-forward parts and norms have biases.
    """

    bias: bool | str = True
    inner: str = "n_inner"
    norms: int = 2
    head_bias: bool = False
    shares: bool = False
    positions: bool = False
    limited: bool = True
    first_norm: bool = False
    biased: bool = True


_Purpose = Literal["bare", "generating"]


def _gpt(fields: adapter.Fields, *, purpose: _Purpose, **switches: Any) -> ModelSpec:
    row = _Row(**switches)
    nested = fields.get("attn_config") or {}  # of MPT
    if nested.get("kv_n_heads") or nested.get("qk_ln"):
        raise adapter.UnclaimedError
    if row.positions and fields.flag("add_cross_attention"):
        raise adapter.UnclaimedError
    width, heads, layers = _shape(fields)
    kv_heads = 1 if row.shares and fields.flag("multi_query") else heads
    bias = fields.flag(row.bias)
    attention = adapter.square_attention(fields, width, heads, bias=bias, kv_heads=kv_heads)
    inner = (fields.optional(row.inner) if row.inner else None) or 4 * width
    layer = adapter.block(
        attention,
        feed_forward=adapter.plain_feed_forward(width, inner, row.biased),
        norms=row.norms,
        shift=row.biased,
    )
    return _stacked(
        fields,
        (LayerGroup(layer, layers),),
        purpose=purpose,
        table=fields.whole("max_position_embeddings") if row.positions else None,
        norms=(adapter.layer_norm("embedding norm", width),) if row.first_norm else (),
        head_bias=row.head_bias,
        limited=row.limited,
        final=Norm("final norm", width, shift=row.biased),
    )


def _shape(fields: adapter.Fields) -> tuple[int, int, int]:
    """Return a model's width, number of heads and number of layers."""
    return (
        fields.whole("hidden_size"),
        fields.whole("num_attention_heads"),
        fields.whole("num_hidden_layers"),
    )


def _stacked(
    fields: adapter.Fields,
    groups: tuple[LayerGroup, ...],
    *,
    purpose: _Purpose,
    table: int | None = None,
    norms: tuple[Norm, ...] = (),
    head_bias: bool = False,
    limited: bool = True,
    final: Norm | None = None,
) -> ModelSpec:
    """Return the spec of a decoder with these layers.

    fields: of the config. groups: the layers, equal ones together. purpose: which head follows.
    table: the rows of the position table; None without one. norms: those after the token table.
    head_bias: True if the head has a bias. limited: True if the positions limit the length.
    final: the norm after the last layer; None for a layer norm.
    """
    width = groups[0].layer.attentions[0].d_model
    stack = StackSpec(
        name="decoder",
        groups=groups,
        embeddings=adapter.tables(fields.whole("vocab_size"), width, table),
        norms=(*norms, final or adapter.layer_norm("final norm", width)),
        head=adapter.head(fields, width, head_bias) if purpose == "generating" else None,
        max_positions=fields.optional("max_position_embeddings") if limited else None,
    )
    return adapter.model(fields, stack)


def _falcon(fields: adapter.Fields, *, purpose: _Purpose) -> ModelSpec:
    """Return the spec of a Falcon, whose heads share one key/value head, or several in newer ones.

    purpose: which head follows the layers.
    """
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
    return _stacked(fields, (LayerGroup(layer, layers),), purpose=purpose, limited=limited)


def _falcon_norms(fields: adapter.Fields, new: bool) -> int:
    if not fields.flag("parallel_attn"):
        return 2
    count = fields.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    return count if new else 1


def _opt(fields: adapter.Fields, *, purpose: _Purpose) -> ModelSpec:
    """Return the spec of an OPT: learned positions with two spare rows, its own token width."""
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
        head=adapter.head(fields, narrow) if purpose == "generating" else None,
        max_positions=positions,
    )
    return adapter.model(fields, stack)


def _gpt_neo(fields: adapter.Fields, *, purpose: _Purpose) -> ModelSpec:
    """Return the spec of a GPT-Neo, in which global and local attention take turns."""
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
    return _stacked(fields, groups, purpose=purpose, table=positions)


def _repeated(fields: adapter.Fields, layers: int) -> list[str]:
    """Return each layer's kind of attention, from GPT-Neo's ``[[["global", "local"], 12]]``."""
    with damaged(f"attention_types of {fields.name!r}"):
        kinds = repeated(fields.get("attention_types"), layers)
    if len(kinds) != layers:
        raise adapter.UnclaimedError
    return kinds


READERS: dict[str, adapter.Reader] = {
    "gpt": _gpt,
    "gpt_neo": _gpt_neo,
    "falcon": _falcon,
    "opt": _opt,
}
