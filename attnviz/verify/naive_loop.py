"""Multi-head attention as three nested loops over plain numbers: the textbook read out aloud.

It shares no line with the library's own attention, so that a mistake there cannot hide here.
Vaswani et al. 2017, "Attention Is All You Need", sections 3.2.1 and 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["multiplications", "naive_attention"]

_Vector = Sequence[float]


def naive_attention(
    state: Mapping[str, NDArray[Any]],
    query: NDArray[Any],
    key: NDArray[Any],
    visible: NDArray[np.bool_],
    *,
    heads: int,
    kv_heads: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Output (text, query, width) and weights (text, head, query, key) in float64.

    state: weights (out, in) and biases, by the names of ``MultiHeadAttention.state_dict()``.
    query, key: (text, token, d_model). visible: (text, query, key), True where a query sees a key;
        each must see one.
    """
    outputs, weights = [], []
    for text in range(len(query)):
        queries = _projected(state, "query", query[text])
        keys = _projected(state, "key", key[text])
        values = _projected(state, "value", key[text])
        merged: list[list[float]] = [[] for _ in queries]
        maps = []
        for head in range(heads):
            shared = head * kv_heads // heads
            rows = []
            for i, asking in enumerate(queries):
                own = _part(asking, head, heads)
                scores = [
                    _dot(own, _part(offered, shared, kv_heads)) / math.sqrt(len(own))
                    if visible[text, i, j]
                    else -math.inf
                    for j, offered in enumerate(keys)
                ]
                row = _softmax(scores)
                mixed = [
                    _dot(row, column)
                    for column in zip(
                        *(_part(value, shared, kv_heads) for value in values), strict=True
                    )
                ]
                merged[i] += mixed
                rows.append(row)
            maps.append(rows)
        outputs.append([_linear(state, "output", token) for token in merged])
        weights.append(maps)
    return np.array(outputs), np.array(weights)


def multiplications(batch: int, tokens: int, keys: int, d_model: int, heads: int) -> int:
    """Roughly how many numbers the loop multiplies one by one."""
    return batch * d_model * ((tokens + keys) * 2 * d_model + 2 * tokens * keys)


def _projected(
    state: Mapping[str, NDArray[Any]], name: str, tokens: NDArray[Any]
) -> list[list[float]]:
    return [_linear(state, name, token) for token in tokens.tolist()]


def _linear(state: Mapping[str, NDArray[Any]], name: str, token: _Vector) -> list[float]:
    rows = state[f"{name}_projection.weight"].tolist()
    biases = state[f"{name}_projection.bias"].tolist()
    return [_dot(row, token) + bias for row, bias in zip(rows, biases, strict=True)]


def _part(token: _Vector, part: int, parts: int) -> _Vector:
    width = len(token) // parts
    return token[part * width : (part + 1) * width]


def _dot(one: _Vector, other: _Vector) -> float:
    return math.fsum(map(mul, one, other))


def _softmax(scores: _Vector) -> list[float]:
    peak = max(scores)
    powers = [math.exp(score - peak) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]
