"""Other implementations of attention: a naive loop, torch's layers, and Keras's if installed.

The naive loop is multi-head attention as the textbook reads: nested loops over plain numbers. It
shares no line with the library's own attention, so that a mistake there cannot hide here.
Vaswani et al. 2017, "Attention Is All You Need", sections 3.2.1 and 3.2.2.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnviz.learn.verify.cases import Answer, AttentionCase

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
    """Compute attention with nested loops; return outputs and weights in float64.

    They are (text, query, width) and (text, head, query, key). state: weights (out, in) and biases,
    by the names of ``MultiHeadAttention.state_dict()``.
    query, key: (text, token, d_model). visible: (text, query, key), True if the query sees the key;
        each query must see one. heads, kv_heads: how many query heads and key/value heads.
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


def multiplications(batch: int, tokens: int, keys: int, d_model: int) -> int:
    """Return roughly how many multiplications the naive loop makes.

    batch: how many texts. tokens, keys: how many queries and keys in each. d_model: the width.
    """
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


@torch.inference_mode()
def layer_answer(case: AttentionCase) -> Answer:
    """Return the outputs and weights of ``torch.nn.MultiheadAttention`` for a case.

    Shared key/value heads are copied for it.
    """
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


def _per_query_head(case: AttentionCase, name: str) -> Tensor:
    """Return the matrix or the bias of a projection, with a row for each output.

    name: such as ``query_projection.weight``, a key of ``case.state``. The rows of a key/value head
    that query heads share are repeated for each of them.
    """
    rows: NDArray[Any] = case.state[name]
    if name.startswith("query"):
        return torch.from_numpy(rows)
    by_head = rows.reshape(case.kv_heads, -1, *rows.shape[1:])
    copies = np.repeat(by_head, case.heads // case.kv_heads, axis=0)
    return torch.from_numpy(copies.reshape(-1, *rows.shape[1:]))


@torch.inference_mode()
def functional_answer(case: AttentionCase) -> Answer:
    """Return the outputs and weights by ``F.scaled_dot_product_attention`` for a case.

    It stands between plain linear maps. The function returns no attention weights; with the
    identity matrix as values, its output is the weights.
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


def _heads(case: AttentionCase, name: str, x: NDArray[Any], heads: int) -> Tensor:
    weight, bias = (torch.from_numpy(case.state[f"{name}_projection.{p}"]) for p in _PARTS)
    projected = functional.linear(torch.from_numpy(x), weight, bias)
    return projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)


_KERAS = "keras"


def find_keras() -> Any:
    """Return the Keras package, or None if it is not installed.

    Its backend is that of ``KERAS_BACKEND``, or torch. Its settings file is neither read nor
    written, so that it cannot change the results.
    """
    if importlib.util.find_spec(_KERAS) is None:
        return None
    with tempfile.TemporaryDirectory() as home:
        settings = {"KERAS_BACKEND": "torch", "KERAS_HOME": home}
        ours = settings.keys() - os.environ.keys()
        os.environ.update({name: settings[name] for name in ours})
        try:
            return importlib.import_module(_KERAS)
        finally:
            for name in ours:
                del os.environ[name]


def keras_answer(keras: Any, case: AttentionCase) -> Answer:
    """Return the outputs and weights of Keras's attention layer for a case.

    It is ``MultiHeadAttention``, or with shared heads ``GroupQueryAttention``. keras: the package.
    """
    dtype = str(case.query.dtype)
    head_dim = case.query.shape[2] // case.heads
    if case.kv_heads == case.heads:
        layer = keras.layers.MultiHeadAttention(case.heads, head_dim, dtype=dtype)
    else:
        layer = keras.layers.GroupQueryAttention(head_dim, case.heads, case.kv_heads, dtype=dtype)
    layer.build(case.query.shape, case.key.shape)
    layer.set_weights([*_kernels(case, head_dim)])
    mask = None
    if case.padding is not None:
        shape = (len(case.query), case.query.shape[1], case.key.shape[1])
        mask = np.broadcast_to(case.padding[:, None, :], shape)
    output, weights = layer(
        case.query,
        case.key,
        attention_mask=mask,
        use_causal_mask=case.causal,
        return_attention_scores=True,
        training=False,
    )
    return _numpy(keras, output), _numpy(keras, weights)


def _kernels(case: AttentionCase, head_dim: int) -> Iterator[NDArray[Any]]:
    """Yield the weights of Keras's layer: a kernel and its bias of query, key, value, and output.

    Kernels are (width, heads, head_dim), that of the output (heads, head_dim, width).
    head_dim: the width of a head.
    """
    width = case.query.shape[2]
    for name in ("query", "key", "value"):
        yield case.state[f"{name}_projection.weight"].T.reshape(width, -1, head_dim)
        yield case.state[f"{name}_projection.bias"].reshape(-1, head_dim)
    yield case.state["output_projection.weight"].T.reshape(-1, head_dim, width)
    yield case.state["output_projection.bias"]


def _numpy(keras: Any, tensor: Any) -> NDArray[Any]:
    # Keras's own conversion of a torch tensor makes NumPy 2 warn.
    is_torch = hasattr(tensor, "detach")
    array: NDArray[Any] = (
        tensor.detach().cpu().numpy() if is_torch else keras.ops.convert_to_numpy(tensor)
    )
    return array
