"""A decoder made larger without changing what it computes.

After Chen et al. 2016, "Net2Net": what is new reads with fresh weights and writes with zeros, so
that it adds nothing until it has learned to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.attention.decoder_config import DecoderConfig, require_growth
from attnviz.attention.torch_decoder import TorchDecoder

__all__ = ["grown"]


def grown(small: TorchDecoder, config: DecoderConfig) -> TorchDecoder:
    """A decoder of the larger shape ``config`` with the logits of ``small``.

    Equal but for the norms' ``norm_eps``, which weighs more beside a mean square that new, empty
    dimensions of the residual stream have lowered. Fresh weights come from torch's random state.

    Raises UsageError as ``require_growth`` does.
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
                _put(parameter, before[name] * block.factor, block.axes)
    return large.to(small.embed_tokens.weight.device)


@dataclass(frozen=True)
class _Block:
    """Where the numbers of a small decoder's part stand in a large one's.

    axes: indices of rows and columns. factor: that they are multiplied with.
    writes: to the residual stream. emptied: zero where nothing of the small one stands.
    norm: whether its other numbers are the factor too.
    """

    axes: tuple[Sequence[int], ...]
    factor: float = 1.0
    writes: bool = False
    emptied: bool = False
    norm: bool = False


def _blocks(small: DecoderConfig, large: DecoderConfig) -> dict[str, _Block]:
    """By the name of the module."""
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
    return [head * head_dim + one for head in range(heads) for one in dimensions]


def _put(large: Tensor, small: Tensor, axes: Sequence[Sequence[int]]) -> None:
    """Write ``small`` at these indices; a bias has the first axis of its weight."""
    places = torch.meshgrid(*(torch.tensor(one) for one in axes[: small.ndim]), indexing="ij")
    large[places] = small.to(large.device)
