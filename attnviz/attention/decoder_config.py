"""The shape of the small decoder: Llama's architecture (Touvron et al. 2023, section 2.2).

It is read from and written as a Hugging Face Llama ``config.json``, of transformers 4 or 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnviz.errors import LoadError, UsageError

GROWING = ("layers", "d_model", "head_dim", "d_ff")
"""What may become larger in a decoder that is trained, see ``torch_decoder.grown``."""

LLAMA_PROJECTIONS = {
    "query_projection": "q_proj",
    "key_projection": "k_proj",
    "value_projection": "v_proj",
    "output_projection": "o_proj",
}
"""Our attention's names of its projections, and Llama's."""


@dataclass(frozen=True)
class DecoderConfig:
    """Everything that decides what the decoder computes.

    vocabulary: number of tokens it knows.
    d_model: width of the residual stream; a multiple of ``heads``, as Llama demands.
    layers, heads, kv_heads: ``heads // kv_heads`` query heads share a key/value head.
    head_dim: width of one head; even, and free of ``d_model / heads``.
    d_ff: width inside the gated feed-forward.
    context: the longest sequence of tokens it takes.
    norm_eps: added to the mean square under the norm's root.
    rope_theta: base of the rotary wavelengths.
    tied: whether the vocabulary projection is the embedding.
    attention_bias, mlp_bias: whether those projections have biases.
    attention_dropout: share of attention weights dropped in training, in [0, 1).
    initializer_range: standard deviation of fresh weights.
    bos, eos: ids of the tokens that begin and end a text, None where there is none.

    Raises UsageError where the sizes do not fit together.
    """

    vocabulary: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    context: int = 2048
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "heads", "kv_heads", "context", *GROWING):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.d_model % self.heads:
            raise UsageError(f"d_model {self.d_model} is no multiple of {self.heads} heads")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly"
            )
        if self.head_dim % 2:
            raise UsageError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if self.rope_theta <= 0:
            raise UsageError(f"rope_theta must be above 0, got {self.rope_theta}")
        if not 0 <= self.attention_dropout < 1:
            raise UsageError(f"attention_dropout must be in [0, 1), got {self.attention_dropout}")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of a Llama checkpoint of this configuration."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.d_model)
        }
        for layer in range(self.layers):
            for name, shape in self._layer_shapes().items():
                shapes[f"model.layers.{layer}.{name}"] = shape
        shapes["model.norm.weight"] = (self.d_model,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocabulary, self.d_model)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        projections = {
            "self_attn.q_proj": (query, self.d_model),
            "self_attn.k_proj": (key, self.d_model),
            "self_attn.v_proj": (key, self.d_model),
            "self_attn.o_proj": (self.d_model, query),
            "mlp.gate_proj": (self.d_ff, self.d_model),
            "mlp.up_proj": (self.d_ff, self.d_model),
            "mlp.down_proj": (self.d_model, self.d_ff),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.d_model,),
            "post_attention_layernorm.weight": (self.d_model,),
        }
        for name, shape in projections.items():
            shapes[f"{name}.weight"] = shape
            if self.mlp_bias if name.startswith("mlp") else self.attention_bias:
                shapes[f"{name}.bias"] = shape[:1]
        return shapes


def require_growth(small: DecoderConfig, large: DecoderConfig) -> None:
    """Refuse with UsageError what ``torch_decoder.grown`` cannot do.

    Layers, d_model, head_dim and d_ff may grow, head_dim by a whole factor, so that every rotary
    wavelength of the small decoder is one of the large decoder's; all else must be equal.
    """
    for name in GROWING:
        before, after = getattr(small, name), getattr(large, name)
        if before > after:
            raise UsageError(f"{name} must not shrink, got {before:,} and then {after:,}")
    if large.head_dim % small.head_dim:
        raise UsageError(
            f"head_dim must grow by a whole factor, got {small.head_dim} and then {large.head_dim}"
        )
    sizes = {name: getattr(large, name) for name in GROWING}
    if replace(small, **sizes) != large:
        raise UsageError(f"only {', '.join(GROWING)} may grow")


def config_from_llama(values: Mapping[str, Any]) -> DecoderConfig:
    """Read the values of a Llama ``config.json``, of transformers 4 or 5.

    Raises LoadError, naming the key, for what is missing, malformed or not computed here.
    """
    _refuse_other_architectures(values)
    heads = _count(values, "num_attention_heads")
    d_model = _count(values, "hidden_size")
    try:
        return DecoderConfig(
            vocabulary=_count(values, "vocab_size"),
            d_model=d_model,
            layers=_count(values, "num_hidden_layers"),
            heads=heads,
            kv_heads=_count(values, "num_key_value_heads", heads),
            head_dim=_count(values, "head_dim", d_model // heads),
            d_ff=_count(values, "intermediate_size"),
            context=_count(values, "max_position_embeddings", 2048),
            norm_eps=_number(values, "rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(values),
            tied=_switch(values, "tie_word_embeddings"),
            attention_bias=_switch(values, "attention_bias"),
            mlp_bias=_switch(values, "mlp_bias"),
            attention_dropout=_number(values, "attention_dropout", 0.0),
            initializer_range=_number(values, "initializer_range", 0.02),
            bos=_token(values, "bos_token_id"),
            eos=_tokens(values, "eos_token_id"),
        )
    except UsageError as error:
        raise LoadError(
            "hidden_size, num_attention_heads, num_key_value_heads, head_dim, rope_theta or "
            f"attention_dropout cannot be computed: {error}"
        ) from error


def config_to_llama(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The values of a Llama ``config.json``; ``dtype`` is what the tensors are stored in."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.d_ff,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        # transformers 5 reads the first, 4 the second
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "bos_token_id": config.bos,
        "eos_token_id": list(config.eos) if isinstance(config.eos, tuple) else config.eos,
        "dtype": dtype,
    }


def _refuse_other_architectures(values: Mapping[str, Any]) -> None:
    """LoadError where the file asks for something that the decoder would silently leave out."""
    for key, computed in {
        "model_type": ("llama",),
        "architectures": (None, ["LlamaForCausalLM"]),
        "hidden_act": (None, "silu", "swish"),
        "partial_rotary_factor": (None, 1),
        "quantization_config": (None,),
    }.items():
        if values.get(key) not in computed:
            raise LoadError(
                f"{key} is {values.get(key)!r}, but this decoder computes only {computed[-1]!r}"
            )


def _rope_theta(values: Mapping[str, Any]) -> float:
    """The rotary base, from ``rope_parameters`` (transformers 5) or ``rope_theta`` (4)."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = values.get(key)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            raise LoadError(f"{key} must be an object or null, got {rope!r}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default" or rope.get("partial_rotary_factor", 1) != 1:
            raise LoadError(
                f"{key} asks for rotary positions of type {kind!r}, "
                "but this decoder computes only whole, unscaled ones ('default')"
            )
        if "rope_theta" in rope:
            return _number(rope, "rope_theta", 10_000.0)
    return _number(values, "rope_theta", 10_000.0)


def _count(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = default if values.get(key) is None else values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LoadError(f"{key} must be a positive integer, got {value!r}")
    return value


def _number(values: Mapping[str, Any], key: str, default: float) -> float:
    value = default if values.get(key) is None else values[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (math.isfinite(value) and value >= 0)
    ):
        raise LoadError(f"{key} must be a finite number of at least 0, got {value!r}")
    return float(value)


def _switch(values: Mapping[str, Any], key: str) -> bool:
    value = False if values.get(key) is None else values[key]
    if not isinstance(value, bool):
        raise LoadError(f"{key} must be true or false, got {value!r}")
    return value


def _token(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise LoadError(f"{key} must be a token id or null, got {value!r}")
    return value


def _tokens(values: Mapping[str, Any], key: str) -> int | tuple[int, ...] | None:
    value = values.get(key)
    if not isinstance(value, list):
        return _token(values, key)
    return tuple(one for item in value if (one := _token({key: item}, key)) is not None)
