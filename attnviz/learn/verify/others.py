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
from collections.abc import Iterator, Sequence
from operator import mul
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.learn.verify.cases import PARTS, PROJECTIONS, Answer, AttentionCase

_KERAS = "keras"


def naive_attention(
    attention: NumpyAttention,
    query: NDArray[Any],
    key: NDArray[Any],
    visible: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute attention with nested loops; return outputs and weights in float64.

    They are (text, query, width) and (text, head, query, key). attention: has the parameters and
    the numbers of heads; nothing else of it is used. query, key: (text, token, d_model).
    visible: (text, query, key), True if the query sees the key; each query must see one.
    """
    heads, kv_heads = attention.shape.heads, attention.shape.kv_heads
    outputs, weights = [], []
    for text in range(len(query)):
        queries = _projected(attention, "query", query[text].tolist())
        keys = _projected(attention, "key", key[text].tolist())
        values = _projected(attention, "value", key[text].tolist())
        merged: list[list[float]] = [[] for _ in queries]
        maps = []
        for head in range(heads):
            shared = head * kv_heads // heads
            rows = []
            for i, query_i in enumerate(queries):
                own = _part(query_i, head, heads)
                scores = [
                    _dot(own, _part(key_j, shared, kv_heads)) / math.sqrt(len(own))
                    if visible[text, i, j]
                    else -math.inf
                    for j, key_j in enumerate(keys)
                ]
                peak = max(scores)
                powers = [math.exp(score - peak) for score in scores]
                total = math.fsum(powers)
                row = [power / total for power in powers]
                columns = zip(*(_part(value, shared, kv_heads) for value in values), strict=True)
                merged[i] += [_dot(row, column) for column in columns]
                rows.append(row)
            maps.append(rows)
        outputs.append(_projected(attention, "output", merged))
        weights.append(maps)
    return np.array(outputs), np.array(weights)


def _projected(
    attention: NumpyAttention, name: str, tokens: Sequence[Sequence[float]]
) -> list[list[float]]:
    rows, biases = (getattr(attention, f"{name}_{part}").tolist() for part in PARTS)
    return [
        [_dot(row, token) + bias for row, bias in zip(rows, biases, strict=True)]
        for token in tokens
    ]


def _part(token: Sequence[float], part: int, parts: int) -> Sequence[float]:
    width = len(token) // parts
    return token[part * width : (part + 1) * width]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(map(mul, one, other))


@torch.inference_mode()
def layer_answer(case: AttentionCase) -> Answer:
    """Return the outputs and weights of ``torch.nn.MultiheadAttention`` for a case.

    Shared key/value heads are copied for it.
    """
    attention, queries, keys = case.attention, case.query.shape[1], case.key.shape[1]
    query, key = torch.from_numpy(case.query), torch.from_numpy(case.key)
    width, heads = query.shape[2], attention.shape.heads
    layer = nn.MultiheadAttention(width, heads, batch_first=True, dtype=query.dtype).eval()
    state = {}
    for part in PARTS:
        copied = [_per_query_head(attention, name, part) for name in PROJECTIONS[:3]]
        state[f"in_proj_{part}"] = torch.cat(copied)
        state[f"out_proj.{part}"] = torch.from_numpy(getattr(attention, f"output_{part}"))
    layer.load_state_dict(state)
    output, weights = layer(
        query,
        key,
        key,
        key_padding_mask=None if case.padding is None else torch.from_numpy(~case.padding),
        attn_mask=(
            torch.ones(queries, keys, dtype=torch.bool).triu(1) if attention.causal else None
        ),
        need_weights=True,
        average_attn_weights=False,
    )
    return output.numpy(), weights.numpy()


def _per_query_head(attention: NumpyAttention, name: str, part: str) -> Tensor:
    """Return the weight or the bias of a projection, with a row for each output.

    The rows of a key/value head that query heads share are repeated for each of them.
    """
    rows: NDArray[Any] = getattr(attention, f"{name}_{part}")
    if name != "query":
        by_head = rows.reshape(attention.shape.kv_heads, -1, *rows.shape[1:])
        rows = np.repeat(by_head, attention.shape.groups, axis=0).reshape(-1, *rows.shape[1:])
    return torch.from_numpy(rows)


@torch.inference_mode()
def functional_answer(case: AttentionCase) -> Answer:
    """Return the outputs and weights by ``F.scaled_dot_product_attention`` for a case.

    It stands between plain linear maps. The function returns no attention weights; with the
    identity matrix as values, its output is the weights.
    """
    attention = case.attention

    def projected(name: str, x: Tensor) -> Tensor:
        weight, bias = (torch.from_numpy(getattr(attention, f"{name}_{part}")) for part in PARTS)
        result: Tensor = functional.linear(x, weight, bias)
        return result

    def split(name: str, x: NDArray[Any]) -> Tensor:
        flat = projected(name, torch.from_numpy(x))
        return flat.view(*flat.shape[:-1], -1, attention.shape.head_dim).transpose(1, 2)

    query, key, value = split("query", case.query), split("key", case.key), split("value", case.key)
    visible = torch.from_numpy(case.visible)[:, None]
    identity = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:3], -1)
    output, weights = (
        functional.scaled_dot_product_attention(
            query, key, values, attn_mask=visible, enable_gqa=attention.shape.groups > 1
        )
        for values in (value, identity)
    )
    merged = output.transpose(1, 2).flatten(2)
    return projected("output", merged).numpy(), weights.numpy()


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
    shape, dtype = case.attention.shape, str(case.query.dtype)
    layers = keras.layers
    if shape.groups == 1:
        layer = layers.MultiHeadAttention(shape.heads, shape.head_dim, dtype=dtype)
    else:
        layer = layers.GroupQueryAttention(shape.head_dim, shape.heads, shape.kv_heads, dtype=dtype)
    layer.build(case.query.shape, case.key.shape)
    layer.set_weights([*_kernels(case.attention)])
    mask = None
    if case.padding is not None:
        mask = np.broadcast_to(case.padding[:, None, :], case.visible.shape)
    answer = layer(
        case.query,
        case.key,
        attention_mask=mask,
        use_causal_mask=case.attention.causal,
        return_attention_scores=True,
        training=False,
    )
    # Keras's own conversion of a torch tensor makes NumPy 2 warn.
    output, weights = (
        part.detach().cpu().numpy() if hasattr(part, "detach") else keras.ops.convert_to_numpy(part)
        for part in answer
    )
    return output, weights


def _kernels(attention: NumpyAttention) -> Iterator[NDArray[Any]]:
    """Yield the weights of Keras's layer: a kernel and its bias of query, key, value, and output.

    Kernels are (width, heads, head_dim), that of the output (heads, head_dim, width).
    """
    width, dim = attention.shape.d_model, attention.shape.head_dim
    for name in PROJECTIONS:
        weight, bias = (getattr(attention, f"{name}_{part}") for part in PARTS)
        if name == "output":
            yield weight.T.reshape(-1, dim, width)
            yield bias
        else:
            yield weight.T.reshape(width, -1, dim)
            yield bias.reshape(-1, dim)
