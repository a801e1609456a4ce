"""The small decoder in torch, for training and for the removal of heads.

The same Llama layer as ``numpy_decoder``, over the library's own ``MultiHeadAttention``: hooks on
``decoder.layers[i].self_attn.weights_point`` and ``heads_point`` read and replace.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnviz.attention.decoder_config import LLAMA_PROJECTIONS, DecoderConfig
from attnviz.attention.module import MultiHeadAttention
from attnviz.errors import UsageError

__all__ = ["TorchDecoder"]


class TorchDecoder(nn.Module):
    """A decoder language model with fresh weights: N(0, ``initializer_range``), biases zero."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.d_model)
        self.layers = nn.ModuleList(_DecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocabulary, bias=False)
        self._reset_parameters()
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores of the next token: ids (batch, token) to (batch, token, vocabulary).

        mask: beyond the causal one, as ``MultiHeadAttention`` takes it.
        Raises UsageError for no token or more of them than the context holds.
        """
        logits: Tensor = self.lm_head(self.hidden(ids, mask))
        return logits

    def hidden(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the vocabulary projection is applied to: (batch, token, d_model)."""
        if not 1 <= ids.shape[-1] <= self.config.context:
            raise UsageError(
                f"expected 1 to {self.config.context} tokens (the model's context), "
                f"got {ids.shape[-1]}"
            )
        residual = self.embed_tokens(ids)
        for layer in self.layers:
            residual = layer(residual, mask)
        normed: Tensor = self.norm(residual)
        return normed

    @classmethod
    def from_llama(
        cls, config: DecoderConfig, tensors: Mapping[str, NDArray[np.floating]]
    ) -> TorchDecoder:
        """A float32 decoder with the tensors of ``config.tensor_shapes()``, by Llama's names.

        Raises ValueError where the tensors are others.
        """
        decoder = cls(config)
        parameters = decoder._llama_parameters()
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != config.tensor_shapes():
            wrong = sorted(set(shapes.items()) ^ set(config.tensor_shapes().items()))
            raise ValueError(f"the tensors are not those of the configuration: {wrong}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(np.array(tensors[name])))
        return decoder

    def llama_tensors(self) -> dict[str, NDArray[np.floating]]:
        """A copy of every parameter by Llama's name, as ``save_checkpoint`` takes them."""
        return {
            name: parameter.detach().float().cpu().numpy().copy()
            for name, parameter in self._llama_parameters().items()
        }

    def _llama_parameters(self) -> dict[str, nn.Parameter]:
        # A tied parameter is listed once, under the embedding's name, as Llama stores it.
        return {_llama_name(name): parameter for name, parameter in self.named_parameters()}

    def _reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


class _DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        bias = config.attention_bias
        self.input_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.self_attn = MultiHeadAttention(
            config.d_model,
            config.heads,
            config.kv_heads,
            config.head_dim,
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            output_bias=bias,
            dropout=config.attention_dropout,
            causal=True,
            rotary=config.rope_theta,
        )
        self.post_attention_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp = _GatedFeedForward(config)

    def forward(self, residual: Tensor, mask: Tensor | None) -> Tensor:
        residual = residual + self.self_attn(self.input_layernorm(residual), mask=mask)
        added: Tensor = self.mlp(self.post_attention_layernorm(residual))
        return residual + added


class _GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) ∘ up(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.d_model, config.d_ff, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.d_model, config.d_ff, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.d_ff, config.d_model, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


def _llama_name(name: str) -> str:
    """Llama's name of one of our parameters."""
    for ours, llamas in LLAMA_PROJECTIONS.items():
        name = name.replace(ours, llamas)
    return name if name.startswith("lm_head") else f"model.{name}"
