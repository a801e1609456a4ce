"""Multi-head attention as a torch module whose weights and per-head outputs can be hooked.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2:

    head_h = Attention(Q W_Q^h, K W_K^h, V W_V^h),  output = concat(head_1 … head_H) W_O + b_O

Unless the weights are requested, torch's fused kernels compute the output without ever holding all
of them at once (Dao et al. 2022, "FlashAttention").
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnviz.attention.functional import (
    Score,
    attention_output,
    causal_mask,
    combine_masks,
    masked_softmax,
    merge_heads,
    scores_by,
)
from attnviz.attention.shape import AttentionShape


class HookPoint(nn.Identity):
    """A place for hooks: returns its input; a forward hook can read it or return a replacement."""

    @property
    def watched(self) -> bool:
        """Return whether any hook is registered on this module."""
        forward = self._forward_hooks or self._forward_pre_hooks
        return bool(forward or self._backward_hooks or self._backward_pre_hooks)


class MultiHeadAttention(nn.Module):
    """Self- or cross-attention over (..., token, width), usually with one batch axis.

    d_model, heads, kv_heads, head_dim, value_dim, key_width, value_width, output_width: see
        ``AttentionShape``; for their defaults see ``AttentionShape.of``.
    query_bias, key_bias, value_bias, output_bias: whether that projection has a bias.
    dropout: the probability in [0, 1) that an attention weight is dropped while training.
    causal: whether a query sees no later key; the two texts are aligned at their ends.
    rotary: theta of rotary positions on query and key, or None; for self-attention only.
    score: how a query and a key are compared; ``additive`` has a parameter ``score_weight`` (heads,
        head_dim), the v of ``additive_scores``.

    Hook points, to be used with ``register_forward_hook``:
    weights_point: (..., heads, query, key), after the softmax and before dropout.
    heads_point: (..., heads, query, value_dim), before they are merged and projected. Head h is
        columns h·value_dim … (h+1)·value_dim of the output projection's input.

    Unless ``weights_point`` has a hook or the weights are requested, torch's fused kernels compute
    the same output without them, except for additive scores, which the kernels lack.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        value_dim: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        output_width: int | None = None,
        query_bias: bool = True,
        key_bias: bool = True,
        value_bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        rotary: float | None = None,
        score: Score = "scaled-dot",
    ) -> None:
        super().__init__()
        widths = {"key_width": key_width, "value_width": value_width, "output_width": output_width}
        self.shape = shape = AttentionShape.of(
            d_model, heads, kv_heads, head_dim, value_dim=value_dim, **widths
        )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a probability in [0, 1), got {dropout}")
        shape.check_scoring(rotary, score)
        self.dropout = dropout
        self.causal = causal
        self.rotary = rotary
        self.score: Score = score
        keys, values = shape.kv_heads * shape.head_dim, shape.kv_heads * shape.value_dim
        self.query_projection = nn.Linear(d_model, shape.heads * shape.head_dim, bias=query_bias)
        self.key_projection = nn.Linear(shape.key_width, keys, bias=key_bias)
        self.value_projection = nn.Linear(shape.value_width, values, bias=value_bias)
        self.output_projection = nn.Linear(
            shape.heads * shape.value_dim, shape.output_width, bias=output_bias
        )
        self.score_weight = (
            nn.Parameter(torch.empty(shape.heads, shape.head_dim)) if score == "additive" else None
        )
        self.weights_point = HookPoint()
        self.heads_point = HookPoint()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Xavier-uniform weights (Glorot & Bengio 2010), of heads' v too; biases are zero."""
        for projection in self.children():
            if isinstance(projection, nn.Linear):
                nn.init.xavier_uniform_(projection.weight)
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)
        if self.score_weight is not None:
            bound = (6 / (self.shape.head_dim + 1)) ** 0.5
            nn.init.uniform_(self.score_weight, -bound, bound)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the output (..., query, output_width), and on request the attention weights.

        query: (..., query, d_model). key: (..., key, key_width), by default the query. value: (...,
            key, value_width), by default the key.
        mask: boolean (True = visible) or additive, broadcast over (batch, heads, query, key); a
            mask for each text has shape (batch, 1, query, key). It adds to ``causal``. A query that
            sees no key gets weights and per-head outputs of zero.
        positions: (query,) or (..., query) for rotary positions; by default counted from 0.
        return_weights: True returns (output, weights), the weights as ``weights_point`` returns
            them. Raises ValueError if these do not fit together.
        """
        key = query if key is None else key
        value = key if value is None else value
        self.shape.check_inputs(query, key, value, mask, self.rotary)
        query, key, value = self.shape.separate_heads(
            self.query_projection(query),
            self.key_projection(key),
            self.value_projection(value),
            self.rotary,
            positions,
        )
        # One text without another mask: the kernels know the causal mask by themselves.
        plain_causal = self.causal and mask is None and query.shape[-2] == key.shape[-2]
        seen = return_weights or self.weights_point.watched
        # The kernels take a mask that is boolean, or additive in the query's type.
        takes_mask = mask is None or mask.dtype in (torch.bool, query.dtype)
        fuse = takes_mask and not seen and self.score != "additive"
        if self.causal and not (plain_causal and fuse):
            mask = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], like=query))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if fuse:
            scale = 1.0 if self.score == "dot" else None
            outputs = fused_attention(
                query, key, value, mask, causal=plain_causal, dropout=dropout, scale=scale
            )
        else:
            scores = scores_by(self.score, query, key, self.score_weight)
            weights = self.weights_point(masked_softmax(scores, mask))
            outputs = attention_output(functional.dropout(weights, dropout), value)
        outputs = self.heads_point(outputs)  # (..., heads, query, value_dim)
        output: Tensor = self.output_projection(merge_heads(outputs))
        return output if weights is None or not return_weights else (output, weights)

    def extra_repr(self) -> str:
        return (
            f"{self.shape}, dropout={self.dropout}, causal={self.causal}, rotary={self.rotary}, "
            f"score={self.score}"
        )


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
    """Return the attention output (..., heads, query, value_dim) from torch's fused kernel.

    query, key, value: (..., heads, token, dim). ``mask``: boolean, or additive in the query's
    type. ``causal`` needs as many keys as queries and no mask. ``dropout``: the probability, 0
    outside training. ``scale``: multiplies the scores, 1/√head_dim by default.
    """
    # The CPU kernel's backward pass in bfloat16 is slow: plain products learn in half the time
    # (16 × 6 heads × 256 tokens, forward and backward).
    learns = torch.is_grad_enabled() and query.requires_grad
    slow = learns and query.device.type == "cpu" and query.dtype == torch.bfloat16
    if mask is None and causal and not dropout and slow:
        future = torch.full((query.shape[-2], key.shape[-2]), -math.inf, dtype=query.dtype).triu_(1)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        query_rows, key_columns = query.flatten(0, -3), key.flatten(0, -3).transpose(-2, -1)
        weights = torch.baddbmm(future, query_rows, key_columns, alpha=scale).softmax(dim=-1)
        output = torch.bmm(weights, value.flatten(0, -3))
        return output.view(*query.shape[:-1], value.shape[-1])
    if mask is None:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, dropout_p=dropout, scale=scale
        )
    # For a query that sees no key some kernels give NaN: the kernel is shown all keys, and the
    # output is then set to zero, so that neither output nor gradient is NaN.
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
