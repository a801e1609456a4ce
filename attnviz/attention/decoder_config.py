"""The shape of the small decoder: Llama's architecture (Touvron et al. 2023, section 2.2).

It is read from and written as a Hugging Face Llama ``config.json``, of transformers 4 or 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.families import LLAMA
from attnviz.attention.family_tensors import expected_tensors
from attnviz.attention.numpy_stack import StackShape
from attnviz.errors import UsageError

GROWING = ("layers", "d_model", "head_dim", "d_ff")
"""The sizes that ``torch_decoder.grown`` can enlarge in a trained decoder."""

LLAMA_PROJECTIONS = {
    "query_projection": "q_proj",
    "key_projection": "k_proj",
    "value_projection": "v_proj",
    "output_projection": "o_proj",
}
"""The projections' names in ``MultiHeadAttention``, and the names in Llama checkpoints."""


@dataclass(frozen=True)
class DecoderConfig:
    """The configuration of a decoder: all sizes and settings that its computation depends on.

    vocabulary: number of tokens in the vocabulary.
    d_model: width of the residual stream; a multiple of ``heads``, as Llama demands.
    layers, heads, kv_heads: ``heads // kv_heads`` query heads share a key/value head.
    head_dim: width of one head; even, and need not equal ``d_model / heads``.
    d_ff: width inside the gated feed-forward.
    context: the longest sequence of tokens that the decoder accepts.
    norm_eps: added to the mean square under the norm's root.
    rope_theta: base of the rotary wavelengths.
    tied: whether the vocabulary projection is the embedding.
    attention_bias, mlp_bias: whether the projections of attention and feed-forward have biases.
    attention_dropout: share of attention weights dropped in training, in [0, 1).
    initializer_range: standard deviation of initial parameters.
    bos, eos: ids of the tokens that begin and end a text, None if there is none.

    Raises UsageError if the sizes do not fit together.
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
            raise UsageError(f"d_model {self.d_model} is not a multiple of {self.heads} heads")
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
        """Return the name and shape of every tensor of a Llama checkpoint of this configuration."""
        _, shapes = expected_tensors(LLAMA, vars(self), {**vars(self), "embedding": self.d_model})
        named = {f"model.{name}": shape for name, shape in shapes.items()}
        return named if self.tied else {**named, "lm_head.weight": (self.vocabulary, self.d_model)}

    def require_tensors(self, tensors: Mapping[str, NDArray[np.floating]]) -> None:
        """Raise ValueError unless ``tensors`` have the names and shapes of ``tensor_shapes``."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if wrong := sorted(shapes.items() ^ self.tensor_shapes().items()):
            raise ValueError(f"the tensors are not those of the configuration: {wrong}")


def require_growth(small: DecoderConfig, large: DecoderConfig) -> None:
    """Raise UsageError if ``torch_decoder.grown`` cannot enlarge ``small`` to ``large``.

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


def config_from_llama(fields: Mapping[str, Any], shape: StackShape) -> DecoderConfig:
    """Return the decoder configuration of the fields of a Llama ``config.json``.

    shape: the sizes of the same model. Raises UsageError if sizes do not fit together.
    """
    sizes = ("vocabulary", "layers", "heads", "kv_heads", "head_dim", "context", "norm_eps")
    eos = fields.get("eos_token_id")
    return DecoderConfig(
        **{name: getattr(shape, name) for name in sizes},
        d_model=fields["hidden_size"],
        d_ff=fields["intermediate_size"],
        rope_theta=10_000.0 if shape.rotary is None else shape.rotary.theta,
        tied=fields.get("tie_word_embeddings", False),
        attention_bias=fields.get("attention_bias", False),
        mlp_bias=fields.get("mlp_bias", False),
        attention_dropout=float(fields.get("attention_dropout", 0)),
        initializer_range=float(fields.get("initializer_range", 0.02)),
        bos=fields.get("bos_token_id"),
        eos=tuple(eos) if isinstance(eos, list) else eos,
    )


def config_to_llama(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """Return the fields of a Llama ``config.json``. dtype: the number type of the tensors."""
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
