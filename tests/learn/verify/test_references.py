"""The naive loop, which others are held against: by hand, and against einsum."""

import math

import numpy as np
import pytest

from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.learn.verify.references import naive_attention

NAMES = ("query", "key", "value", "output")


def state_of(generator, d_model, heads, kv_heads):
    head_dim = d_model // heads
    outs = {"query": d_model, "key": kv_heads * head_dim, "value": kv_heads * head_dim}
    state = {}
    for name in NAMES:
        out = outs.get(name, d_model)
        state[f"{name}_projection.weight"] = generator.normal(size=(out, d_model))
        state[f"{name}_projection.bias"] = generator.normal(size=out)
    return state


def test_two_tokens_by_hand():
    """One head of width 1 with q = x, k = x, v = 2x, y = v + 1; x is 1, then ln 2."""
    state = {f"{name}_projection.weight": np.ones((1, 1)) for name in NAMES}
    state |= {f"{name}_projection.bias": np.zeros(1) for name in NAMES}
    state["value_projection.weight"] *= 2
    state["output_projection.bias"] += 1
    x = np.array([[[1.0], [math.log(2)]]])
    visible = np.array([[[True, False], [True, True]]])
    output, weights = naive_attention(NumpyAttention.from_state(state, 1), x, x, visible)
    one, other = math.exp(math.log(2)), math.exp(math.log(2) ** 2)
    first = one / (one + other)
    np.testing.assert_allclose(weights[0, 0], [[1, 0], [first, 1 - first]], rtol=1e-15)
    expected = [3, 1 + 2 * (first + (1 - first) * math.log(2))]
    np.testing.assert_allclose(output[0, :, 0], expected, rtol=1e-15)


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (6, 1)])
def test_equals_einsum(heads, kv_heads):
    generator = np.random.default_rng(1)
    width, dim = 12, 12 // heads
    state = state_of(generator, width, heads, kv_heads)
    query, key = generator.normal(size=(2, 5, width)), generator.normal(size=(2, 7, width))
    visible = generator.random((2, 5, 7)) > 0.4
    visible[..., 0] = True

    def projected(name, x, parts):
        weight, bias = (state[f"{name}_projection.{part}"] for part in ("weight", "bias"))
        flat = np.einsum("btd,od->bto", x, weight) + bias
        return flat.reshape(2, -1, parts, dim).repeat(heads // parts, axis=2)

    scores = np.einsum(
        "bihd,bjhd->bhij", projected("query", query, heads), projected("key", key, kv_heads)
    )
    powers = np.exp(scores / math.sqrt(dim)) * visible[:, None]
    expected = powers / powers.sum(-1, keepdims=True)
    mixed = np.einsum("bhij,bjhd->bihd", expected, projected("value", key, kv_heads))
    joined = np.einsum("btd,od->bto", mixed.reshape(2, 5, width), state["output_projection.weight"])
    attention = NumpyAttention.from_state(state, heads, kv_heads)
    output, weights = naive_attention(attention, query, key, visible)
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(output, joined + state["output_projection.bias"], rtol=1e-12)
