"""What the attention tests share: seeded inputs, both libraries, and a naive oracle."""

import cmath
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch


def _identity(array):
    return array


@pytest.fixture(params=["numpy", "torch"])
def convert(request):
    return _identity if request.param == "numpy" else torch.from_numpy


@pytest.fixture
def normal():
    """Draws float32 arrays of a given shape, the same in every run."""
    generator = np.random.default_rng(7)
    return lambda *shape: generator.normal(size=shape).astype(np.float32)


@pytest.fixture
def close():
    """Asserts equality within 1e-5 of arrays and tensors."""

    def check(actual, expected):
        actual, expected = (
            x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
            for x in (actual, expected)
        )
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)

    return check


def naive_attention(
    state,
    query,
    key,
    value,
    *,
    heads,
    kv_heads,
    visible=lambda text, head, i, j: True,
    theta=None,
    score="scaled-dot",
):
    """Output and weights of a batch; ``visible`` is asked of (text, head, query, key)."""
    layers = {
        name: SimpleNamespace(
            weight=np.asarray(state[f"{name}_projection.weight"]).tolist(),
            bias=np.asarray(state.get(f"{name}_projection.bias", 0.0)).tolist(),
        )
        for name in ("query", "key", "value", "output")
    }
    outputs, weights = [], []
    for text in range(len(query)):
        projected = {
            name: [_linear(layers[name], token) for token in tokens[text].tolist()]
            for name, tokens in (("query", query), ("key", key), ("value", value))
        }
        merged = [[] for _ in range(query.shape[1])]
        maps = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            q = [_rotate(_cut(x, head, heads), i, theta) for i, x in enumerate(projected["query"])]
            k = [
                _rotate(_cut(x, group, kv_heads), j, theta) for j, x in enumerate(projected["key"])
            ]
            v = [_cut(x, group, kv_heads) for x in projected["value"]]
            rows = []
            for i, wanted in enumerate(q):
                powers = [
                    math.exp(_score(score, wanted, offered, state, head))
                    if visible(text, head, i, j)
                    else 0.0
                    for j, offered in enumerate(k)
                ]
                row = [power / sum(powers) if power else 0.0 for power in powers]
                merged[i] += [_dot(row, column) for column in zip(*v, strict=True)]
                rows.append(row)
            maps.append(rows)
        outputs.append([_linear(layers["output"], token) for token in merged])
        weights.append(maps)
    return np.array(outputs), np.array(weights)


def _score(score, query, key, state, head):
    if score == "additive":
        felt = [math.tanh(q + k) for q, k in zip(query, key, strict=True)]
        return _dot(state["score_weight"][head].tolist(), felt)
    return _dot(query, key) / (math.sqrt(len(query)) if score == "scaled-dot" else 1)


def _dot(one, other):
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _linear(layer, token):
    bias = layer.bias or [0.0] * len(layer.weight)
    return [_dot(row, token) + b for row, b in zip(layer.weight, bias, strict=True)]


def _cut(token, head, heads):
    width = len(token) // heads
    return token[head * width : (head + 1) * width]


def _rotate(vector, position, theta):
    """Turn the complex number of each pair of dimensions (p, p + half)."""
    if theta is None:
        return vector
    half = len(vector) // 2
    turned = [
        complex(vector[p], vector[p + half]) * cmath.exp(1j * position * theta ** (-p / half))
        for p in range(half)
    ]
    return [z.real for z in turned] + [z.imag for z in turned]
