"""What the library's own attention answers to a case: in NumPy, in torch, by a fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.verify.cases import Case

__all__ = ["Answer", "own_answers"]

Answer: TypeAlias = tuple[NDArray[Any], NDArray[Any] | None]
"""Output (text, query, width) and weights (text, head, query, key), or None without these."""


def own_answers(case: Case) -> Mapping[str, Answer]:
    """The answers by the names that a screen shows: ``NumPy``, ``torch`` and ``fused``."""
    attention = _module(case)
    given = [torch.from_numpy(case.query)]
    given += [] if case.key is case.query else [torch.from_numpy(case.key)]
    padding = case.padding
    mask = None if padding is None else padding_mask(torch.from_numpy(padding))
    with torch.inference_mode():
        output, weights = attention(*given, mask=mask, return_weights=True)
        fused: Tensor = attention(*given, mask=mask)
    return {
        "NumPy": _in_numpy(case),
        "torch": (output.numpy(), weights.numpy()),
        "fused": (fused.numpy(), None),
    }


def _in_numpy(case: Case) -> Answer:
    attention = NumpyAttention.from_state(case.state, case.heads, case.kv_heads, causal=case.causal)
    key = None if case.key is case.query else case.key
    padding = case.padding
    mask = None if padding is None else padding_mask(padding)
    return attention(case.query, key, mask=mask)


def _module(case: Case) -> MultiHeadAttention:
    width = case.query.shape[2]
    attention = MultiHeadAttention(width, case.heads, case.kv_heads, causal=case.causal).eval()
    state = {name: torch.from_numpy(array) for name, array in case.state.items()}
    attention.to(next(iter(state.values())).dtype).load_state_dict(state)
    return attention
