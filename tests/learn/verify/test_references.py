"""The naive loop, which others are held against: by hand, and against einsum."""

import math

import numpy as np

from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.learn.verify.references import naive_attention

NAMES = ("query", "key", "value", "output")


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
