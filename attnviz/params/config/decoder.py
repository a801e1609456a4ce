"""A decoder of the table into a design: rotary positions, and a norm before each part."""

from __future__ import annotations

from attnviz.params.config.fields import Fields, UnclaimedError
from attnviz.params.config.row import ExpertsRow, NormKind, Row
from attnviz.params.specs import (
    AttentionSpec,
    Buffer,
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
    group_layers,
)

__all__ = ["decoder", "feed_forward", "head_dim", "sparse_layers", "windows"]


def feed_forward(fields: Fields, row: Row, sparse: bool) -> FeedForwardSpec | ExpertsSpec:
    """The feed-forward part of a layer with or without experts."""
    bias = fields.flag(row.ffn_bias)
    width = fields.whole("hidden_size")
    if not sparse or row.experts is None:
        inner = fields.whole("intermediate_size")
        return FeedForwardSpec(width, inner, row.gated, bias, bias)
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


def _mixture(fields: Fields, row: Row, spec: ExpertsRow, bias: bool) -> ExpertsSpec:
    width, inner = fields.whole("hidden_size"), fields.whole(spec.width)
    experts = fields.whole(spec.count)
    shared = None
    if spec.shared and fields.get(spec.shared) is not None:
        together = fields.whole(spec.shared, least=0) * inner
        shared = FeedForwardSpec(width, together, row.gated, bias, bias) if together else None
    if spec.shared_width:
        shared = FeedForwardSpec(width, fields.whole(spec.shared_width), row.gated)
    gate = Dense("shared expert gate", width, 1)
    corrections = Buffer("router correction", experts)
    return ExpertsSpec(
        expert=FeedForwardSpec(width, inner, row.gated, spec.bias, spec.bias),
        experts=experts,
        active=min(fields.whole(spec.active), experts),
        shared=shared,
        router_bias=spec.router_bias,
        parts=(gate,) if spec.shared_gate else (),
        buffers=(corrections,) if spec.corrected else (),
    )


_FULL, _SLIDING = "full_attention", "sliding_attention"
_MOST_LAYERS = 100_000


def windows(fields: Fields, row: Row, layers: int) -> list[int | None] | None:
    """The window of each layer, None for all keys; None as a whole where no layer slides."""
    if row.windows is None or (row.windows_switched and not fields.flag("use_sliding_window")):
        return None
    window = fields.optional("sliding_window", least=0)
    if not window:
        return None
    if layers > _MOST_LAYERS:
        raise UnclaimedError
    types = fields.listed("layer_types", layers)
    if types is None:
        return [window if row.windows(layer, fields) else None for layer in range(layers)]
    if set(types) - {_FULL, _SLIDING}:
        raise UnclaimedError
    return [window if kind == _SLIDING else None for kind in types]


def decoder(fields: Fields, row: Row, *, with_head: bool) -> ModelSpec:
    """The design of a decoder; ``with_head`` for the class that predicts tokens."""
    width, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    stack = StackSpec(
        name="decoder",
        groups=_groups(fields, row),
        embeddings=(Table("token embedding", vocab, width),),
        norms=(_norm("final norm", width, row.norm),),
        head=_head(fields, row, width, vocab) if with_head else None,
        max_positions=fields.optional("max_position_embeddings"),
    )
    return ModelSpec(name=fields.name, source="", stacks=(stack,))


def head_dim(fields: Fields, width: int, heads: int) -> int:
    """The width of a head: its own field, else the model's width divided by the heads."""
    own = fields.optional("head_dim")
    if own is None and width % heads:
        raise UnclaimedError  # the library may round, or refuse
    return own or width // heads


def _groups(fields: Fields, row: Row) -> tuple[LayerGroup, ...]:
    layers = fields.whole("num_hidden_layers")
    slide, sparse = windows(fields, row, layers), sparse_layers(fields, row, layers)
    if slide is None and isinstance(sparse, bool):
        return (LayerGroup(_layer(fields, row, None, sparse), layers),)
    every = [sparse] * layers if isinstance(sparse, bool) else sparse
    each = slide or [None] * layers
    kinds = {
        kind: _layer(fields, row, *kind) for kind in dict.fromkeys(zip(each, every, strict=True))
    }
    return group_layers([kinds[kind] for kind in zip(each, every, strict=True)])


def _layer(fields: Fields, row: Row, window: int | None, sparse: bool) -> LayerSpec:
    width = fields.whole("hidden_size")
    count = row.layer_norms
    if count == "parallel":
        count = 1 if fields.flag("use_parallel_residual") else 2
    labels = ("attention norm", "feed-forward norm", "after attention", "after feed-forward")
    return LayerSpec(
        attentions=(_latent(fields) if row.latent else _attention(fields, row, window),),
        feed_forward=feed_forward(fields, row, sparse),
        norms=tuple(_norm(label, width, row.norm) for label in labels[:count]),
    )


def _attention(fields: Fields, row: Row, window: int | None) -> AttentionSpec:
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads = fields.grouped(heads, fields.optional("num_key_value_heads") or heads)
    dim = head_dim(fields, width, heads) if row.own_head_dim else fields.divided(width, heads)
    bias = fields.flag(row.qkv_bias)
    parts: list[Part] = []
    if fields.flag(row.query_norm):
        parts += _query_norms(row, heads, kv_heads, dim)
    if row.sinks:
        parts.append(Table("sinks", 1, heads))
    return AttentionSpec(
        d_model=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        value_dim=dim,
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=fields.flag(row.output_bias),
        window=window,
        parts=tuple(parts),
    )


def _query_norms(row: Row, heads: int, kv_heads: int, dim: int) -> list[Part]:
    spans = {"head": (dim, dim)}.get(row.query_norm_span, (heads * dim, kv_heads * dim))
    labels = ("query norm", "key norm")
    return [
        _norm(label, span, row.query_norm_kind) for label, span in zip(labels, spans, strict=True)
    ]


def _latent(fields: Fields) -> AttentionSpec:
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    bias = fields.flag("attention_bias")
    latent = LatentSpec(
        kv_lora=fields.whole("kv_lora_rank"),
        rope_dim=fields.whole("qk_rope_head_dim", least=0),
        nope_dim=fields.whole("qk_nope_head_dim", least=0),
        q_lora=fields.optional("q_lora_rank"),
        down_bias=bias,
    )
    norms = [Norm("key and value norm", latent.kv_lora)]
    if latent.q_lora is not None:
        norms.append(Norm("query norm", latent.q_lora))
    return AttentionSpec(
        d_model=width,
        heads=heads,
        kv_heads=heads,
        head_dim=latent.rope_dim + latent.nope_dim,
        value_dim=fields.whole("v_head_dim"),
        output_bias=bias,
        latent=latent,
        parts=tuple(norms),
    )


def _head(fields: Fields, row: Row, width: int, vocab: int) -> Dense:
    tied = fields.flag("tie_word_embeddings")
    return Dense("head", width, vocab, bias=fields.flag(row.head_bias), tied=tied)


def _norm(label: str, width: int, kind: NormKind) -> Norm:
    return Norm(label, width, scale=kind != "none", shift=kind == "layer")
