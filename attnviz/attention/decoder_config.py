"""The shape of the small decoder: Llama's architecture (Touvron et al. 2023, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnviz.errors import UsageError

__all__ = ["GROWING", "DecoderConfig", "require_growth"]

GROWING = ("layers", "d_model", "head_dim", "d_ff")
"""What may become larger in a decoder that is trained, see ``attention.growth``."""


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
        for name in (
            "vocabulary",
            "d_model",
            "layers",
            "heads",
            "kv_heads",
            "head_dim",
            "d_ff",
            "context",
        ):
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
    """Refuse with UsageError what ``growth.grown`` cannot do.

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
