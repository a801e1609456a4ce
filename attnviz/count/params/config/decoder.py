"""Turns the configs of decoders into specs.

Most have rotary positions and a norm before each part, and ``families.toml`` says how each differs;
then follow GPT-2 and the open GPTs after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from attnviz.count.params import specs
from attnviz.count.params.config import adapter
from attnviz.reading import damaged, repeated

Purpose = Literal["bare", "generating"]
"""Whether a class is the layers alone, or has the head that predicts tokens too."""

NormKind = Literal["rms", "layer", "scale", "none"]
"""RMS norm; layer norm; layer norm without bias; layer norm without parameters."""

Slides = Literal["", "every", "pattern", "late", "early even", "unrotated"]
"""Which layers slide where a config does not list them: none; all (Mistral); all but every n-th
(Gemma 2 and 3, OLMo 3, Cohere 2); from one on (Qwen 2 and 3); every second one up to one (Qwen 2
with experts); those without rotary positions (SmolLM 3)."""

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers")


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
    purpose: Purpose,
    experts: Mapping[str, Any] | None = None,
    **switches: Any,
) -> specs.ModelSpec:
    row = DecoderFamily(**switches, experts=None if experts is None else ExpertsRow(**experts))
    width, vocab = fields.wholes("hidden_size", "vocab_size")
    stack = specs.StackSpec(
        name="decoder",
        groups=_groups(fields, row),
        embeddings=adapter.tables(vocab, width),
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
    if not (window := fields.optional("sliding_window", least=0)):
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
    width, norms = fields.whole("hidden_size"), row.layer_norms
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
    width, heads = fields.wholes("hidden_size", "num_attention_heads")
    plain = adapter.square_attention(
        fields,
        width,
        heads,
        bias=fields.flag(row.qkv_bias or row.bias),
        kv_heads=fields.optional("num_key_value_heads"),
        dim=_head_dim(fields, width, heads) if row.own_head_dim else None,
    )
    spans = [plain.head_dim] * 2
    if row.query_norm_span != "head":
        spans = [heads * plain.head_dim, plain.kv_heads * plain.head_dim]
    parts: list[specs.Part] = []
    if fields.flag(row.query_norm):
        named = zip(("query norm", "key norm"), spans, strict=True)
        parts += [_norm(label, span, row.query_norm_kind) for label, span in named]
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
    width, heads = fields.wholes("hidden_size", "num_attention_heads")
    bias = fields.flag("attention_bias")
    latent = specs.LatentSpec(
        kv_lora=fields.whole("kv_lora_rank"),
        rope_dim=fields.whole("qk_rope_head_dim", least=0),
        nope_dim=fields.whole("qk_nope_head_dim", least=0),
        q_lora=fields.optional("q_lora_rank"),
        down_bias=bias,
    )
    spans = {"key and value norm": latent.kv_lora, "query norm": latent.q_lora}
    dim, value_dim = latent.rope_dim + latent.nope_dim, fields.whole("v_head_dim")
    return specs.AttentionSpec(
        *(width, heads, heads, dim, value_dim),
        output_bias=bias,
        latent=latent,
        parts=tuple(specs.Norm(label, span) for label, span in spans.items() if span is not None),
    )


def _feed_forward(
    fields: adapter.Fields, row: DecoderFamily, mixture: ExpertsRow | None
) -> specs.FeedForwardSpec | specs.ExpertsSpec:
    """Return a layer's feed-forward part; ``mixture`` has its experts, None for one without."""
    width, bias = fields.whole("hidden_size"), fields.flag(row.ffn_bias)
    part = specs.FeedForwardSpec(width, 0, row.gated, bias, bias)
    if mixture is None:
        return part._replace(d_ff=fields.whole("intermediate_size"))
    inner, experts = fields.wholes(mixture.width, mixture.experts)
    shared = None
    if mixture.shared and fields.get(mixture.shared) is not None:
        together = fields.whole(mixture.shared, least=0) * inner
        shared = part._replace(d_ff=together) if together else None
    if mixture.shared_width:
        shared = specs.FeedForwardSpec(width, fields.whole(mixture.shared_width), row.gated)
    return specs.ExpertsSpec(
        expert=specs.FeedForwardSpec(width, inner, row.gated, mixture.bias, mixture.bias),
        experts=experts,
        active=min(fields.whole(mixture.active), experts),
        shared=shared,
        router_bias=mixture.router_bias,
        parts=(specs.Dense("shared expert gate", width, 1),) * mixture.shared_gate,
        buffers=(specs.Buffer("router correction", experts),) * mixture.corrected,
    )


def _norm(label: str, width: int, kind: NormKind) -> specs.Norm:
    return specs.Norm(label, width, scale=kind != "none", shift=kind == "layer")


# GPT-2 and after ------------------------------------------------------------------------------


class _GptRow(NamedTuple):
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


def _read_gpt(fields: adapter.Fields, *, purpose: Purpose, **switches: Any) -> specs.ModelSpec:
    row = _GptRow(**switches)
    nested = fields.get("attn_config") or {}  # of MPT
    crossed = row.positions and fields.flag("add_cross_attention")
    if nested.get("kv_n_heads") or nested.get("qk_ln") or crossed:
        raise adapter.UnclaimedError
    width, heads, layers = fields.wholes(*_SIZES)
    kv_heads = 1 if row.shares and fields.flag("multi_query") else heads
    bias = fields.flag(row.bias)
    attention = adapter.square_attention(fields, width, heads, bias=bias, kv_heads=kv_heads)
    inner = (fields.optional(row.inner) if row.inner else None) or 4 * width
    feed_forward = adapter.plain_feed_forward(width, inner, row.biased)
    layer = adapter.block(attention, feed_forward=feed_forward, norms=row.norms, shift=row.biased)
    return _stacked(
        fields,
        (specs.LayerGroup(layer, layers),),
        purpose=purpose,
        table=fields.whole("max_position_embeddings") if row.positions else None,
        norms=(
            *(adapter.layer_norm("embedding norm", width),) * row.first_norm,
            specs.Norm("final norm", width, shift=row.biased),
        ),
        head_bias=row.head_bias,
        limited=row.limited,
    )


def _stacked(
    fields: adapter.Fields,
    groups: tuple[specs.LayerGroup, ...],
    *,
    purpose: Purpose,
    table: int | None = None,
    norms: tuple[specs.Norm, ...] = (),
    head_bias: bool = False,
    limited: bool = True,
) -> specs.ModelSpec:
    """Return the spec of a decoder with these layers.

    table: the rows of the position table; None without one. norms: those outside the layers; empty
    for a layer norm after the last. limited: True if the positions limit the length.
    """
    width = groups[0].layer.attentions[0].d_model
    stack = specs.StackSpec(
        name="decoder",
        groups=groups,
        embeddings=adapter.tables(fields.whole("vocab_size"), width, table),
        norms=norms or (adapter.layer_norm("final norm", width),),
        head=adapter.head(fields, width, head_bias) if purpose == "generating" else None,
        max_positions=fields.optional("max_position_embeddings") if limited else None,
    )
    return adapter.model(fields, stack)


def _read_falcon(fields: adapter.Fields, *, purpose: Purpose) -> specs.ModelSpec:
    """Return the spec of a Falcon: one key/value head for all, or several in newer ones."""
    width, heads, layers = fields.wholes(*_SIZES)
    new, norms = fields.flag("new_decoder_architecture"), 2
    groups = 1 if fields.flag("multi_query") else heads
    if new:
        groups = fields.optional("num_kv_heads") or heads
    if fields.flag("parallel_attn"):
        norms = (fields.optional("num_ln_in_parallel_attn") or 2) if new else 1
    bias = fields.flag("bias")
    attention = adapter.square_attention(fields, width, heads, bias=bias, kv_heads=groups)
    inner = fields.optional("ffn_hidden_size") or 4 * width
    feed_forward = adapter.plain_feed_forward(width, inner, bias)
    layer = adapter.block(attention, feed_forward=feed_forward, norms=norms)
    limited = not fields.flag("alibi")
    return _stacked(fields, (specs.LayerGroup(layer, layers),), purpose=purpose, limited=limited)


def _read_opt(fields: adapter.Fields, *, purpose: Purpose) -> specs.ModelSpec:
    """Return the spec of an OPT: learned positions with two spare rows, its own token width."""
    width, heads, layers = fields.wholes(*_SIZES)
    bias, affine = fields.flag("enable_bias"), fields.flag("layer_norm_elementwise_affine")
    layer = adapter.block(
        adapter.square_attention(fields, width, heads, bias=bias),
        feed_forward=adapter.plain_feed_forward(width, fields.whole("ffn_dim"), bias),
        norms=2 * affine,
    )
    narrow = fields.optional("word_embed_proj_dim") or width
    vocab, positions = fields.wholes("vocab_size", "max_position_embeddings")
    closing = fields.flag("do_layer_norm_before") and not fields.flag("_remove_final_layer_norm")
    projected = narrow != width
    stack = specs.StackSpec(
        name="decoder",
        groups=(specs.LayerGroup(layer, layers),),
        embeddings=(
            specs.LookupTable("token embedding", vocab, narrow),
            specs.LookupTable("position embedding", positions + 2, width),
            *(specs.Dense("projection in", narrow, width),) * projected,
        ),
        norms=(adapter.layer_norm("final norm", width),) * (closing and affine),
        parts=(specs.Dense("projection out", width, narrow),) * projected,
        head=adapter.head(fields, narrow) if purpose == "generating" else None,
        max_positions=positions,
    )
    return adapter.model(fields, stack)


def _read_gpt_neo(fields: adapter.Fields, *, purpose: Purpose) -> specs.ModelSpec:
    """Return the spec of a GPT-Neo, in which global and local attention take turns."""
    width, heads, layers = fields.wholes(*_SIZES)
    inner = fields.optional("intermediate_size") or 4 * width
    kinds = fields.listed("attention_layers", layers)
    if not kinds:  # [[["global", "local"], 12]]
        with damaged(f"attention_types of {fields.name!r}"):
            kinds = repeated(fields.get("attention_types"), layers)
        if len(kinds) != layers:
            raise adapter.UnclaimedError
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
    groups = specs.group_layers([made[kind] for kind in kinds])
    return _stacked(fields, groups, purpose=purpose, table=positions)


READERS: dict[str, adapter.Reader] = {
    "decoder": _read_decoder,
    "gpt": _read_gpt,
    "gpt_neo": _read_gpt_neo,
    "falcon": _read_falcon,
    "opt": _read_opt,
}
