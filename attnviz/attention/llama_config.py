"""The decoder's configuration as a Hugging Face Llama ``config.json``, of transformers 4 or 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attnviz.attention.decoder_config import DecoderConfig
from attnviz.errors import LoadError, UsageError

__all__ = ["LLAMA_PROJECTIONS", "config_from_llama", "config_to_llama"]

LLAMA_PROJECTIONS = {
    "query_projection": "q_proj",
    "key_projection": "k_proj",
    "value_projection": "v_proj",
    "output_projection": "o_proj",
}
"""Our attention's names of its projections, and Llama's."""


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
