"""Turns the configs of decoders into specs; ``families.toml`` says how each family differs.

Before it stands what all families share: the fields of a config, attention, layers, the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from attnviz.count.params import specs
from attnviz.errors import LoadError
from attnviz.reading import damaged, repeated

Purpose = Literal["bare", "generating"]
"""Whether a class is the layers alone, or has the head that predicts tokens too."""

NormKind = Literal["rms", "layer", "scale", "none"]
"""RMS norm; layer norm; layer norm without bias; layer norm without parameters."""

Slides = Literal["", "every", "pattern", "late", "early even", "unrotated", "typed"]
"""Which layers slide where a config does not list them: none; all (Mistral); all but every n-th
(Gemma 2 and 3, OLMo 3, Cohere 2); from one on (Qwen 2 and 3); every second one up to one (Qwen 2
with experts); those without rotary positions (SmolLM 3); those of a local type (GPT-Neo)."""

MOST_LAYERS = 100_000
"""The most layers that are distinguished."""

_SIMILAR = 0.85
_FULL, _SLIDING = "full_attention", "sliding_attention"


class UnclaimedError(Exception):
    """Raised if a config has a setting that the counts do not cover."""


class Fields:
    """The fields of a config; records which names were asked for, to find misspelt ones.

    config: the fields as its file has them. name: of the model. defaults: the values of missing
        fields. spellings: other names that a field may have.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        defaults: Mapping[str, Any],
        spellings: Mapping[str, Sequence[str]],
    ) -> None:
        self.name = name
        self._config = config
        self._defaults = defaults
        self._spellings = spellings
        self._asked: set[str] = set()

    def get(self, key: str) -> Any:
        """Return the value of a field, or its default if it is missing; None for null."""
        for spelling in (*self._spellings.get(key, ()), key):
            self._asked.add(spelling)
            if spelling in self._config:
                return self._config[spelling]
        return self._defaults.get(key)

    def whole(self, key: str, least: int = 1) -> int:
        """Return the integer in field ``key``; raise LoadError unless it is at least ``least``."""
        value = self.get(key)
        if type(value) is not int or not least <= value <= specs.MOST:
            raise self.wrong(
                f"{key} = {value!r}: expected a whole number of {least} or more, "
                f"{specs.MOST:,} at most"
            )
        return value

    def wholes(self, *keys: str) -> list[int]:
        """Return the integers in several fields, each at least 1."""
        return [self.whole(key) for key in keys]

    def optional(self, key: str, least: int = 1) -> int | None:
        """Return the integer in a field, as ``whole`` does, or None if it is null or missing."""
        return None if self.get(key) is None else self.whole(key, least)

    def flag(self, key: bool | str) -> bool:
        """Return ``key`` itself if it is a bool; else the field of that name, as a bool."""
        return key if isinstance(key, bool) else bool(self.get(key))

    def listed(self, key: str, length: int) -> list[Any] | None:
        """Return the field ``key``, a list with an entry per layer; None if it is missing.

        length: the number of layers. Raises LoadError for another type or a shorter list.
        """
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise self.wrong(f"{key} = {value!r}: expected a list of {length}")
        return value[:length]

    def wrong(self, words: str) -> LoadError:
        """Return the error which says that the config has an invalid value, in ``words``."""
        return LoadError(f"the config of {self.name!r} has {words}")

    def misspelt(self) -> tuple[str, str] | None:
        """Return a probably misspelt field and the field that was meant; None if all are known."""
        import difflib  # only a config that is read from a file can have misspelt fields

        for key in self._config:
            if key not in self._asked:
                close = difflib.get_close_matches(key, self._asked, n=1, cutoff=_SIMILAR)
                if close and close[0] not in self._config:
                    return key, close[0]
        return None


# Parts that families share --------------------------------------------------------------------


def square_attention(
    fields: Fields,
    width: int,
    heads: int,
    *,
    bias: bool = True,
    kv_heads: int | None = None,
    dim: int | None = None,
) -> specs.AttentionSpec:
    """Return attention whose heads divide the model's width equally, or have the width ``dim``.

    bias: True if all four projections have biases. kv_heads: as many as ``heads`` if None.
    dim: the width of a head; None for its share of the model's.
    """
    kv_heads = kv_heads or heads
    if dim is None and width % heads:
        raise fields.wrong(f"{heads} heads, which do not divide its width {width}")
    if heads % kv_heads:
        raise fields.wrong(f"{kv_heads} key/value heads, which do not divide its {heads} heads")
    dim = dim or width // heads
    return specs.AttentionSpec(width, heads, kv_heads, dim, dim, *(bias, bias, bias, bias))


def layer_of(
    *attentions: specs.AttentionSpec,
    inner: int = 0,
    feed_forward: specs.FeedForwardSpec | specs.ExpertsSpec | None = None,
    norms: int = 2,
    norm: NormKind = "layer",
    parts: tuple[specs.Part, ...] = (),
) -> specs.LayerSpec:
    """Return a layer with ``norms`` norms of the model's width, and with ``parts``.

    inner: the width of a feed-forward part of two matrices with biases, unless one is given.
    """
    width, last = attentions[0].d_model, "cross attention norm"
    labels = ["attention norm", "feed-forward norm", "after attention", "after feed-forward"]
    labels[2:] = [last] if len(attentions) > 1 else labels[2:]
    plain = specs.FeedForwardSpec(width, inner, up_bias=True, down_bias=True)
    made = tuple(norm_of(label, width, norm) for label in labels[:norms])
    return specs.LayerSpec(attentions, feed_forward or plain, made, parts)


def norm_of(label: str, width: int, kind: NormKind = "layer") -> specs.Norm:
    return specs.Norm(label, width, scale=kind != "none", shift=kind == "layer")


def head_of(fields: Fields, width: int, bias: bool | str = False) -> specs.Dense:
    """Return the spec of the LM head, a matrix onto the vocabulary, tied if the config says so.

    width: of the model. bias: whether it has a bias, or the name of the field that says so.
    """
    vocab, tied = fields.whole("vocab_size"), fields.flag("tie_word_embeddings")
    return specs.Dense("head", width, vocab, bias=fields.flag(bias), tied=tied)


# Decoders -------------------------------------------------------------------------------------


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

    norm, layer_norms: the kind of its norms, and how many a layer has. first_norm, final_norm:
        whether a norm follows the token table, and the last layer.
    qkv_bias, output_bias, ffn_bias, head_bias: whether these biases exist, or the field that says
        so. bias: the first two together. gated: whether the feed-forward part is gated.
    inner: the field of its width. widened: whether that is four times the model's without a field.
    kv_heads: the number of key/value heads, or its field; empty for as many as query heads.
    query_norm: whether queries and keys are normed, or the field that says so. query_norm_span:
        ``head`` (over a head's width), ``all`` (all heads together), ``each`` (each head its own).
    query_norm_kind: the kind of these norms.
    slides: which layers have a sliding window if the config does not list them.
    slides_switched: whether they have it only if ``use_sliding_window`` is true.
    keeps_all: whether all tokens are cached although a window hides some.
    own_head_dim: whether a field may state the width of a head.
    positions: whether there is a table of positions; it has ``spare_positions`` rows more.
    limited: whether texts have a longest length, which models with slopes (ALiBi) lack.
    narrow: another width of the token table, with matrices to and from the model's; 0 for none.
    sinks: whether each head has a learned sink. latent: whether the attention is latent.
    experts: the mixture of experts, or None.
    """

    norm: NormKind = "rms"
    layer_norms: int | Literal["parallel"] = 2
    first_norm: bool = False
    final_norm: bool = True
    bias: bool | str = False
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    ffn_bias: bool | str = False
    head_bias: bool | str = False
    gated: bool = True
    inner: str = "intermediate_size"
    widened: bool = False
    kv_heads: int | str = "num_key_value_heads"
    query_norm: bool | str = False
    query_norm_span: Literal["head", "all", "each"] = "head"
    query_norm_kind: NormKind = "rms"
    slides: Slides = ""
    slides_switched: bool = False
    keeps_all: bool = False
    own_head_dim: bool = True
    positions: bool = False
    spare_positions: int = 0
    limited: bool = True
    narrow: int = 0
    sinks: bool = False
    latent: bool = False
    experts: ExpertsRow | None = None


def read_decoder(
    fields: Fields,
    *,
    purpose: Purpose,
    experts: Mapping[str, Any] | None = None,
    rule: Literal["", "falcon", "opt", "multi query"] = "",
    **switches: Any,
) -> specs.ModelSpec:
    """Return the spec of a decoder. switches: see ``DecoderFamily``; ``rule`` names others."""
    own = {"falcon": _falcon, "opt": _opt, "multi query": _multi_query}
    switches |= own[rule](fields) if rule else {}
    row = DecoderFamily(**switches, experts=None if experts is None else ExpertsRow(**experts))
    nested = fields.get("attn_config") or {}  # of MPT
    crossed = row.positions and fields.flag("add_cross_attention")
    if nested.get("kv_n_heads") or nested.get("qk_ln") or crossed:
        raise UnclaimedError
    width, vocab = fields.wholes("hidden_size", "vocab_size")
    narrow = row.narrow or width
    embeddings: list[specs.Part] = [specs.LookupTable("token embedding", vocab, narrow)]
    if row.positions:
        rows = fields.whole("max_position_embeddings") + row.spare_positions
        embeddings.append(specs.LookupTable("position embedding", rows, width))
    if narrow != width:
        embeddings.append(specs.Dense("projection in", narrow, width))
    norms = ["embedding norm"] * row.first_norm + ["final norm"] * row.final_norm
    stack = specs.StackSpec(
        name="decoder",
        groups=_groups(fields, row),
        embeddings=tuple(embeddings),
        norms=tuple(norm_of(label, width, row.norm) for label in norms),
        parts=(specs.Dense("projection out", width, narrow),) * (narrow != width),
        head=head_of(fields, narrow, row.head_bias) if purpose == "generating" else None,
        max_positions=fields.optional("max_position_embeddings") if row.limited else None,
    )
    return specs.ModelSpec(fields.name, "", (stack,))


def _falcon(fields: Fields) -> dict[str, Any]:
    """Return the switches of a Falcon: one key/value head for all, or several in newer ones."""
    new, norms = fields.flag("new_decoder_architecture"), 2
    if fields.flag("parallel_attn"):
        norms = (fields.optional("num_ln_in_parallel_attn") or 2) if new else 1
    heads = {"kv_heads": "num_kv_heads"} if new else _multi_query(fields)
    return {**heads, "layer_norms": norms, "limited": not fields.flag("alibi")}


def _multi_query(fields: Fields) -> dict[str, Any]:
    """Return the switches of a GPT with one key/value head (SantaCoder: Ben Allal 2023)."""
    return {"kv_heads": 1 if fields.flag("multi_query") else ""}


def _opt(fields: Fields) -> dict[str, Any]:
    """Return the switches of an OPT: learned positions with two spare rows, its own token width."""
    affine = fields.flag("layer_norm_elementwise_affine")
    closing = fields.flag("do_layer_norm_before") and not fields.flag("_remove_final_layer_norm")
    narrow = fields.optional("word_embed_proj_dim") or 0
    return {"layer_norms": 2 * affine, "final_norm": closing and affine, "narrow": narrow}


def _groups(fields: Fields, row: DecoderFamily) -> tuple[specs.LayerGroup, ...]:
    layers = fields.whole("num_hidden_layers")
    windows, sparse = _windows(fields, row, layers), _sparse(fields, row, layers)
    if windows is None and isinstance(sparse, bool):
        return (specs.LayerGroup(_decoder_layer(fields, row, None, sparse), layers),)
    every = [sparse] * layers if isinstance(sparse, bool) else sparse
    kinds = list(zip(windows or [None] * layers, every, strict=True))
    made = {kind: _decoder_layer(fields, row, *kind) for kind in dict.fromkeys(kinds)}
    return specs.group_layers([made[kind] for kind in kinds])


def _windows(fields: Fields, row: DecoderFamily, layers: int) -> list[int | None] | None:
    """Return each layer's window in tokens, None for all keys; None if no layer has a window."""
    if not row.slides or (row.slides_switched and not fields.flag("use_sliding_window")):
        return None
    if row.slides == "typed":
        window, local = fields.whole("window_size"), "local"
        # Listed, or folded as [[["global", "local"], 12]].
        if not (types := fields.listed("attention_layers", layers)):
            with damaged(f"attention_types of {fields.name!r}"):
                types = repeated(fields.get("attention_types"), layers)
            if len(types) != layers:
                raise UnclaimedError
    else:
        if not (window := fields.optional("sliding_window", least=0) or 0):
            return None
        _bounded(layers)
        listed, local = fields.listed("layer_types", layers), _SLIDING
        if listed is None:
            slides = [_slides(fields, row.slides, layer) for layer in range(layers)]
            types = [_SLIDING if slide else _FULL for slide in slides]
        elif set(listed) - {_FULL, _SLIDING}:
            raise UnclaimedError
        else:
            types = listed
    return [window if kind == local else None for kind in types]


def _slides(fields: Fields, slides: Slides, layer: int) -> bool:
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


def _sparse(fields: Fields, row: DecoderFamily, layers: int) -> list[bool] | bool:
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
    if layers > MOST_LAYERS:
        raise UnclaimedError


def _decoder_layer(
    fields: Fields, row: DecoderFamily, window: int | None, sparse: bool
) -> specs.LayerSpec:
    norms = row.layer_norms
    if norms == "parallel":
        norms = 1 if fields.flag("use_parallel_residual") else 2
    attention = _latent(fields) if row.latent else _attention(fields, row, window)
    inner = _feed_forward(fields, row, row.experts if sparse else None)
    return layer_of(attention, feed_forward=inner, norms=norms, norm=row.norm)


def _attention(fields: Fields, row: DecoderFamily, window: int | None) -> specs.AttentionSpec:
    width, heads = fields.wholes("hidden_size", "num_attention_heads")
    own, dim = row.kv_heads, None
    if row.own_head_dim:
        dim = fields.optional("head_dim")
        if dim is None and width % heads:
            raise UnclaimedError  # the library may round, or refuse
    plain = square_attention(
        fields,
        width,
        heads,
        bias=fields.flag(row.qkv_bias or row.bias),
        kv_heads=own if isinstance(own, int) else fields.optional(own) if own else None,
        dim=dim,
    )
    spans = [plain.head_dim] * 2
    if row.query_norm_span != "head":
        spans = [heads * plain.head_dim, plain.kv_heads * plain.head_dim]
    parts: list[specs.Part] = []
    if fields.flag(row.query_norm):
        named = zip(("query norm", "key norm"), spans, strict=True)
        parts += [norm_of(label, span, row.query_norm_kind) for label, span in named]
    if row.sinks:
        parts.append(specs.LookupTable("sinks", 1, heads))
    return plain._replace(
        output_bias=fields.flag(row.output_bias or row.bias),
        window=window,
        keeps_all=row.keeps_all,
        parts=tuple(parts),
    )


def _latent(fields: Fields) -> specs.AttentionSpec:
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
    fields: Fields, row: DecoderFamily, mixture: ExpertsRow | None
) -> specs.FeedForwardSpec | specs.ExpertsSpec:
    """Return a layer's feed-forward part; ``mixture`` has its experts, None for one without."""
    width, bias = fields.whole("hidden_size"), fields.flag(row.ffn_bias)
    part = specs.FeedForwardSpec(width, 0, row.gated, bias, bias)
    if mixture is None:
        inner = fields.optional(row.inner) if row.widened else fields.whole(row.inner)
        return part._replace(d_ff=inner or 4 * width)
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
        buffers=(("router correction", experts),) * mixture.corrected,
    )
