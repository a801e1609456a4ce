"""The small decoder in torch, for training and for ablation.

It has the same Llama layers as ``numpy_stack``, built of the library's own ``MultiHeadAttention``:
hooks on ``decoder.layers[i].self_attn.weights_point`` and ``heads_point`` read and replace.

A trained decoder can be enlarged without changing what it computes (Chen et al. 2016, "Net2Net"):
new parts read with fresh weights and write with zeros, so that they add nothing at first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnviz.attention.checkpoint import LLAMA_PROJECTIONS, DecoderConfig, require_growth
from attnviz.attention.module import MultiHeadAttention
from attnviz.errors import UsageError


class TorchDecoder(nn.Module):
    """A decoder for training: parameters are N(0, ``initializer_range``), biases zero."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.d_model)
        self.layers = nn.ModuleList(_DecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (batch, token, vocab) of ids; UsageError if they exceed the context."""
        if not 1 <= ids.shape[-1] <= self.config.context:
            raise UsageError(
                f"expected 1 to {self.config.context} tokens (the model's context), "
                f"got {ids.shape[-1]}"
            )
        residual = self.embed_tokens(ids)
        for layer in self.layers:
            residual = layer(residual, mask)
        return self.lm_head(self.norm(residual))

    @classmethod
    def from_llama(
        cls, config: DecoderConfig, tensors: Mapping[str, NDArray[np.floating]]
    ) -> TorchDecoder:
        """Return a float32 decoder with these tensors, by Llama's names; ValueError for others."""
        decoder = cls(config)
        parameters = decoder._llama_parameters()
        config.require_tensors(tensors)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(np.array(tensors[name])))
        return decoder

    def llama_tensors(self) -> dict[str, NDArray[np.floating]]:
        """Return a copy of every parameter by Llama's name, as ``save_checkpoint`` takes them."""
        return {
            name: parameter.detach().float().cpu().numpy().copy()
            for name, parameter in self._llama_parameters().items()
        }

    def _llama_parameters(self) -> dict[str, nn.Parameter]:
        # A tied parameter is listed once, under the embedding's name, as Llama stores it.
        parameters = {}
        for name, parameter in self.named_parameters():
            for ours, llamas in LLAMA_PROJECTIONS.items():
                name = name.replace(ours, llamas)
            parameters[name if name.startswith("lm_head") else f"model.{name}"] = parameter
        return parameters


class _DecoderLayer(nn.Module):
    """One layer: attention and feed-forward, each after a norm, are added to the stream."""

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
    """The gated feed-forward block SwiGLU (Shazeer 2020): down(silu(gate(x)) ∘ up(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.d_model, config.d_ff, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.d_model, config.d_ff, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.d_ff, config.d_model, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def grown(small: TorchDecoder, config: DecoderConfig) -> TorchDecoder:
    """Return a decoder enlarged to the sizes in ``config``, with the logits of ``small``.

    They differ only by the norms' ``norm_eps``, which weighs more because new, empty dimensions of
    the residual stream lower the mean square. New parameters come from torch's random state. Raises
    UsageError as ``require_growth`` does.
    """
    require_growth(small.config, config)
    large = TorchDecoder(config)
    before = dict(small.named_parameters())
    blocks = _blocks(small.config, config)
    with torch.no_grad():
        for name, parameter in large.named_parameters():
            block = blocks[name.split(".")[-2]]
            if block.writes or (block.emptied and name in before):
                parameter.zero_()
            if name in before:
                if block.norm:
                    parameter.fill_(block.factor)
                small_one = before[name] * block.factor
                axes = map(torch.tensor, block.axes[: small_one.ndim])  # a bias has only the first
                places = torch.meshgrid(*axes, indexing="ij")
                parameter[places] = small_one.to(parameter.device)
    return large.to(small.embed_tokens.weight.device)


@dataclass(frozen=True)
class _Block:
    """Where a small decoder's parameter is in the larger one, multiplied by ``factor``.

    axes: target rows and columns. New entries are zero if it writes to the residual stream, or in
    layers of the small decoder if ``emptied``; ``factor`` in a norm.
    """

    axes: tuple[Sequence[int], ...]
    factor: float = 1.0
    writes: bool = False
    emptied: bool = False
    norm: bool = False


def _blocks(small: DecoderConfig, large: DecoderConfig) -> dict[str, _Block]:
    every, width, inner = map(range, (small.vocabulary, small.d_model, small.d_ff))
    # Half of a head's dimensions pair with the other half; pair i of d turns as pair factor · i
    # of factor · d does, by theta^(−2i/d).
    factor, half = large.head_dim // small.head_dim, small.head_dim // 2
    pairs = [factor * pair for pair in range(half)]
    turned = pairs + [large.head_dim // 2 + pair for pair in pairs]
    queries, keys = (
        _per_head(turned, heads, large.head_dim) for heads in (large.heads, large.kv_heads)
    )
    values, outputs = (
        _per_head(range(small.head_dim), heads, large.head_dim)
        for heads in (large.kv_heads, large.heads)
    )
    # Scores are divided by the root of the head's width; the root of the mean square that a norm
    # divides by falls with every dimension that is still empty.
    score, scale = factor**0.25, math.sqrt(small.d_model / large.d_model)
    norm = _Block((width,), scale, norm=True)
    return {
        "embed_tokens": _Block((every, width), writes=True),
        "input_layernorm": norm,
        "query_projection": _Block((queries, width), score),
        # The new dimensions of a head have queries but no keys: they add nothing to a score.
        "key_projection": _Block((keys, width), score, emptied=True),
        "value_projection": _Block((values, width)),
        "output_projection": _Block((width, outputs), writes=True),
        "post_attention_layernorm": norm,
        "gate_proj": _Block((inner, width)),
        "up_proj": _Block((inner, width)),
        "down_proj": _Block((width, inner), writes=True),
        "norm": norm,
        "lm_head": _Block((every, width)),
    }


def _per_head(dimensions: Sequence[int], heads: int, head_dim: int) -> list[int]:
    return [head * head_dim + dimension for head in range(heads) for dimension in dimensions]
