"""Attention by torch's fused kernels, for when nobody looks at the weights.

Dao et al. 2022, "FlashAttention": the same output without ever holding all weights at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["can_fuse", "fused_attention"]


def can_fuse(query: Tensor, mask: Tensor | None) -> bool:
    """Whether the kernels take this mask as it is: boolean, or additive in the query's type."""
    return mask is None or mask.dtype in (torch.bool, query.dtype)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """The output (..., heads, query, value_dim) that ``scaled_dot_product_attention`` gives.

    query, key, value: (..., heads, token, dim). ``mask`` passes ``can_fuse``. ``causal`` needs as
    many keys as queries and no mask. ``dropout``: the probability, 0 where not training.
    ``scale``: of the scores, 1/√head_dim by default.
    """
    if mask is None and causal and not dropout and _kernel_is_slow(query):
        return _plain_causal_attention(query, key, value, scale)
    if mask is None:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, dropout_p=dropout, scale=scale
        )
    # Kernels disagree about a query that sees no key, some give NaN: it sees all keys for the
    # kernel, and its output is then emptied, so that neither output nor gradient is NaN.
    boolean = mask.dtype == torch.bool
    blind = ~(mask if boolean else mask > -math.inf).any(dim=-1, keepdim=True)
    output = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask.masked_fill(blind, 1 if boolean else 0),
        dropout_p=dropout,
        scale=scale,
    )
    return output.masked_fill(blind, 0)


def _kernel_is_slow(query: Tensor) -> bool:
    """Whether plain products learn faster: the CPU kernel's backward pass in bfloat16 is slow.

    Measured at 16 × 6 heads × 256 tokens, forward and backward: half the time.
    """
    learns = torch.is_grad_enabled() and query.requires_grad
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and learns


def _plain_causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None
) -> Tensor:
    future = torch.full((query.shape[-2], key.shape[-2]), -math.inf, dtype=query.dtype).triu_(1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.baddbmm(
        future, query.flatten(0, -3), key.flatten(0, -3).transpose(-2, -1), alpha=scale
    )
    output = torch.bmm(scores.softmax(dim=-1), value.flatten(0, -3))
    return output.view(*query.shape[:-1], value.shape[-1])
