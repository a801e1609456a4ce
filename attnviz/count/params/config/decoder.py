"""Specs of decoders that differ only in field names and switches.

All have rotary positions and a norm before each part; ``families.toml`` says how each differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from attnviz.count.params import specs
from attnviz.count.params.config import adapter

NormKind = Literal["rms", "layer", "scale", "none"]
"""RMS norm; layer norm; layer norm without bias; layer norm without parameters."""

Slides = Literal["", "every", "pattern", "late", "early even", "unrotated"]
"""Which layers slide where a config does not list them: none; all (Mistral); all but every n-th
(Gemma 2 and 3, OLMo 3, Cohere 2); from one on (Qwen 2 and 3); every second one up to one (Qwen 2
with experts); those without rotary positions (SmolLM 3)."""

_FULL, _SLIDING = "full_attention", "sliding_attention"


class ExpertsRow(NamedTuple):
    """The names of the config fields of a family's mixture of experts, and its biases.

    experts, active, width: the fields with the number of experts, the number that a token passes,
        and their inner width.
    shared: the field with the number of shared experts of that width. shared_width: the field with
        the width of a single shared expert. shared_gate: whether that one has a gate.
    bias, router_bias: whether experts and router have biases.
    corrected: whether the router stores a correction for each expert that is not trained.
    every: field of which layers have experts: ``first_k_dense_replace`` or
        ``decoder_sparse_step`` with ``mlp_only_layers``; empty for all.
    """

    experts: str = "num_local_experts"
    active: str = "num_experts_per_tok"
    width: str = "intermediate_size"
    shared: str = ""
    shared_width: str = ""
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    corrected: bool = False
    every: Literal["", "first_k_dense_replace", "decoder_sparse_step"] = ""


class DecoderFamily(NamedTuple):
    """The switches of one family of decoders, as ``families.toml`` sets them.

    norm, layer_norms: the kind of its norms, and how many a layer has.
    qkv_bias, output_bias, ffn_bias, head_bias: whether these biases exist, or the field that says
        so. bias: the first two together. gated: whether the feed-forward part is gated.
    query_norm: whether queries and keys are normed, or the field that says so. query_norm_span:
        ``head`` (over a head's width), ``all`` (all heads together), ``each`` (each head its own).
    query_norm_kind: the kind of these norms.
    slides: which layers have a sliding window if the config does not list them.
    slides_switched: whether they have it only if ``use_sliding_window`` is true.
    own_head_dim: whether a field may state the width of a head.
    sinks: whether each head has a learned sink. latent: whether the attention is latent.
    experts: the mixture of experts, or None.
    """

    norm: NormKind = "rms"
    layer_norms: int | Literal["parallel"] = 2
    bias: bool | str = False
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    ffn_bias: bool | str = False
    head_bias: bool | str = False
    gated: bool = True
    query_norm: bool | str = False
    query_norm_span: Literal["head", "all", "each"] = "head"
    query_norm_kind: NormKind = "rms"
    slides: Slides = ""
    slides_switched: bool = False
    own_head_dim: bool = True
    sinks: bool = False
    latent: bool = False
    experts: ExpertsRow | None = None


def _read_decoder(
    fields: adapter.Fields,
    *,
    purpose: Literal["bare", "generating"],
    experts: Mapping[str, Any] | None = None,
    **switches: Any,
) -> specs.ModelSpec:
    row = DecoderFamily(**switches, experts=None if experts is None else ExpertsRow(**experts))
    width, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    stack = specs.StackSpec(
        name="decoder",
        groups=_groups(fields, row),
        embeddings=(specs.LookupTable("token embedding", vocab, width),),
        norms=(_norm("final norm", width, row.norm),),
        head=adapter.head(fields, width, row.head_bias) if purpose == "generating" else None,
        max_positions=fields.optional("max_position_embeddings"),
    )
    return adapter.model(fields, stack)


def _groups(fields: adapter.Fields, row: DecoderFamily) -> tuple[specs.LayerGroup, ...]:
    layers = fields.whole("num_hidden_layers")
    windows, sparse = _windows(fields, row, layers), _sparse(fields, row, layers)
    if windows is None and isinstance(sparse, bool):
        return (specs.LayerGroup(_layer(fields, row, None, sparse), layers),)
    every = [sparse] * layers if isinstance(sparse, bool) else sparse
    kinds = list(zip(windows or [None] * layers, every, strict=True))
    made = {kind: _layer(fields, row, *kind) for kind in dict.fromkeys(kinds)}
    return specs.group_layers([made[kind] for kind in kinds])


def _windows(fields: adapter.Fields, row: DecoderFamily, layers: int) -> list[int | None] | None:
    """Return each layer's window in tokens, None for all keys; None if no layer has a window."""
    if not row.slides or (row.slides_switched and not fields.flag("use_sliding_window")):
        return None
    window = fields.optional("sliding_window", least=0)
    if not window:
        return None
    _bounded(layers)
    types = fields.listed("layer_types", layers)
    if types is None:
        return [window if _slides(fields, row.slides, layer) else None for layer in range(layers)]
    if set(types) - {_FULL, _SLIDING}:
        raise adapter.UnclaimedError
    return [window if kind == _SLIDING else None for kind in types]


def _slides(fields: adapter.Fields, slides: Slides, layer: int) -> bool:
    match slides:
        case "pattern":
            return (layer + 1) % fields.whole("sliding_window_pattern") != 0
        case "late":
            return layer >= fields.whole("max_window_layers", least=0)
        case "early even":
            return layer % 2 == 0 and layer < fields.whole("max_window_layers", least=0)
        case "unrotated":
            listed = fields.listed("no_rope_layers", layer + 1)
            if listed is not None:
                return not listed[layer]
            return (layer + 1) % fields.whole("no_rope_layer_interval") == 0
    return slides == "every"


def _sparse(fields: adapter.Fields, row: DecoderFamily, layers: int) -> list[bool] | bool:
    """Return for each layer whether it has experts; a single bool if all layers are alike."""
    mixture = row.experts
    if mixture is None:
        return False
    if mixture.every == "first_k_dense_replace":
        if fields.get(mixture.experts) is None:
            return False
        dense = fields.whole(mixture.every, least=0)
        if dense in (0, layers) or dense > layers:
            return dense == 0
        _bounded(layers)
        return [layer >= dense for layer in range(layers)]
    if mixture.every == "decoder_sparse_step":
        step = fields.whole(mixture.every)
        left_out = fields.get("mlp_only_layers") or []
        if fields.get(mixture.experts) == 0:
            return False
        if step == 1 and not left_out:
            return True
        _bounded(layers)
        return [layer not in left_out and (layer + 1) % step == 0 for layer in range(layers)]
    return True


def _bounded(layers: int) -> None:
    if layers > adapter.MOST_LAYERS:
        raise adapter.UnclaimedError


def _layer(
    fields: adapter.Fields, row: DecoderFamily, window: int | None, sparse: bool
) -> specs.LayerSpec:
    width = fields.whole("hidden_size")
    norms = row.layer_norms
    if norms == "parallel":
        norms = 1 if fields.flag("use_parallel_residual") else 2
    labels = ("attention norm", "feed-forward norm", "after attention", "after feed-forward")
    return specs.LayerSpec(
        attentions=(_latent(fields) if row.latent else _attention(fields, row, window),),
        feed_forward=_feed_forward(fields, row, row.experts if sparse else None),
        norms=tuple(_norm(label, width, row.norm) for label in labels[:norms]),
    )


def _attention(
    fields: adapter.Fields, row: DecoderFamily, window: int | None
) -> specs.AttentionSpec:
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    plain = adapter.square_attention(
        fields,
        width,
        heads,
        bias=fields.flag(row.qkv_bias or row.bias),
        kv_heads=fields.optional("num_key_value_heads"),
        dim=_head_dim(fields, width, heads) if row.own_head_dim else None,
    )
    dim = plain.head_dim
    parts: list[specs.Part] = []
    if fields.flag(row.query_norm):
        spans = {"head": (dim, dim)}.get(row.query_norm_span, (heads * dim, plain.kv_heads * dim))
        labels = ("query norm", "key norm")
        parts += [
            _norm(label, span, row.query_norm_kind)
            for label, span in zip(labels, spans, strict=True)
        ]
    if row.sinks:
        parts.append(specs.LookupTable("sinks", 1, heads))
    output_bias = fields.flag(row.output_bias or row.bias)
    return plain._replace(output_bias=output_bias, window=window, parts=tuple(parts))


def _head_dim(fields: adapter.Fields, width: int, heads: int) -> int:
    """Return the width of a head: the config's ``head_dim``, else width / heads."""
    own = fields.optional("head_dim")
    if own is None and width % heads:
        raise adapter.UnclaimedError  # the library may round, or refuse
    return own or width // heads


def _latent(fields: adapter.Fields) -> specs.AttentionSpec:
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    bias = fields.flag("attention_bias")
    latent = specs.LatentSpec(
        kv_lora=fields.whole("kv_lora_rank"),
        rope_dim=fields.whole("qk_rope_head_dim", least=0),
        nope_dim=fields.whole("qk_nope_head_dim", least=0),
        q_lora=fields.optional("q_lora_rank"),
        down_bias=bias,
    )
    norms = [specs.Norm("key and value norm", latent.kv_lora)]
    if latent.q_lora is not None:
        norms.append(specs.Norm("query norm", latent.q_lora))
    return specs.AttentionSpec(
        d_model=width,
        heads=heads,
        kv_heads=heads,
        head_dim=latent.rope_dim + latent.nope_dim,
        value_dim=fields.whole("v_head_dim"),
        output_bias=bias,
        latent=latent,
        parts=tuple(norms),
    )


def _feed_forward(
    fields: adapter.Fields, row: DecoderFamily, mixture: ExpertsRow | None
) -> specs.FeedForwardSpec | specs.ExpertsSpec:
    """Return the spec of a layer's feed-forward part, with or without experts.

    fields: of the config. row: the family. mixture: its experts; None for a layer without.
    """
    width, bias = fields.whole("hidden_size"), fields.flag(row.ffn_bias)
    if mixture is None:
        inner = fields.whole("intermediate_size")
        return specs.FeedForwardSpec(width, inner, row.gated, bias, bias)
    inner, experts = fields.whole(mixture.width), fields.whole(mixture.experts)
    shared = None
    if mixture.shared and fields.get(mixture.shared) is not None:
        together = fields.whole(mixture.shared, least=0) * inner
        shared = specs.FeedForwardSpec(width, together, row.gated, bias, bias) if together else None
    if mixture.shared_width:
        shared = specs.FeedForwardSpec(width, fields.whole(mixture.shared_width), row.gated)
    gate = specs.Dense("shared expert gate", width, 1)
    corrections = specs.Buffer("router correction", experts)
    return specs.ExpertsSpec(
        expert=specs.FeedForwardSpec(width, inner, row.gated, mixture.bias, mixture.bias),
        experts=experts,
        active=min(fields.whole(mixture.active), experts),
        shared=shared,
        router_bias=mixture.router_bias,
        parts=(gate,) if mixture.shared_gate else (),
        buffers=(corrections,) if mixture.corrected else (),
    )


def _norm(label: str, width: int, kind: NormKind) -> specs.Norm:
    return specs.Norm(label, width, scale=kind != "none", shift=kind == "layer")


READERS: dict[str, adapter.Reader] = {"decoder": _read_decoder}
