"""What torch's own layers answer to a case: nn.MultiheadAttention and the functional kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnviz.verify.cases import Case
from attnviz.verify.own_answers import Answer

__all__ = ["functional_answer", "layer_answer"]


@torch.inference_mode()
def layer_answer(case: Case) -> Answer:
    """``torch.nn.MultiheadAttention``; it has no grouped heads, so shared ones are copied out."""
    width, queries, keys = case.query.shape[2], case.query.shape[1], case.key.shape[1]
    query = torch.from_numpy(case.query)
    layer = nn.MultiheadAttention(width, case.heads, batch_first=True, dtype=query.dtype).eval()
    names = ("query", "key", "value")
    weights = [_per_query_head(case, f"{name}_projection.weight") for name in names]
    biases = [_per_query_head(case, f"{name}_projection.bias") for name in names]
    layer.load_state_dict(
        {
            "in_proj_weight": torch.cat(weights),
            "in_proj_bias": torch.cat(biases),
            "out_proj.weight": torch.from_numpy(case.state["output_projection.weight"]),
            "out_proj.bias": torch.from_numpy(case.state["output_projection.bias"]),
        }
    )
    hidden = None if case.padding is None else torch.from_numpy(~case.padding)
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1) if case.causal else None
    key = torch.from_numpy(case.key)
    output, found = layer(
        query,
        key,
        key,
        key_padding_mask=hidden,
        attn_mask=later,
        need_weights=True,
        average_attn_weights=False,
    )
    return output.numpy(), found.numpy()


def _per_query_head(case: Case, name: str) -> Tensor:
    """A projection's rows, those of a shared head once for each query head."""
    rows: NDArray[Any] = case.state[name]
    if name.startswith("query"):
        return torch.from_numpy(rows)
    by_head = rows.reshape(case.kv_heads, -1, *rows.shape[1:])
    copies = np.repeat(by_head, case.heads // case.kv_heads, axis=0)
    return torch.from_numpy(copies.reshape(-1, *rows.shape[1:]))


@torch.inference_mode()
def functional_answer(case: Case) -> Answer:
    """``F.scaled_dot_product_attention`` between plain linear maps.

    It hands out no weights; asked to mix the rows of the identity, it returns them.
    """
    query = _heads(case, "query", case.query, case.heads)
    key = _heads(case, "key", case.key, case.kv_heads)
    value = _heads(case, "value", case.key, case.kv_heads)
    visible = torch.from_numpy(case.visible)[:, None]
    rows = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:3], -1)

    def mixed(values: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, values, attn_mask=visible, enable_gqa=case.heads != case.kv_heads
        )

    merged = mixed(value).transpose(1, 2).flatten(2)
    weight, bias = (torch.from_numpy(case.state[f"output_projection.{p}"]) for p in _PARTS)
    return functional.linear(merged, weight, bias).numpy(), mixed(rows).numpy()


_PARTS = ("weight", "bias")


def _heads(case: Case, name: str, x: NDArray[Any], heads: int) -> Tensor:
    weight, bias = (torch.from_numpy(case.state[f"{name}_projection.{p}"]) for p in _PARTS)
    projected = functional.linear(torch.from_numpy(x), weight, bias)
    return projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)
