"""Equality with the torch module is shown in test_module.py; here is what is NumPy's own."""

import dataclasses
from typing import get_args

import numpy as np
import pytest

from attnviz.attention.functional import Score
from attnviz.attention.numpy_attention import NumpyAttention


def count(attention):
    values = (getattr(attention, field.name) for field in dataclasses.fields(attention))
    return sum(value.size for value in values if isinstance(value, np.ndarray))


def test_the_published_parameter_count():
    assert count(NumpyAttention.random(64, 8)) == 4 * 64**2 + 4 * 64 == 16_640
    assert count(NumpyAttention.random(64, 8, bias=False)) == 4 * 64**2
    assert count(NumpyAttention.random(64, 8, 2, bias=False)) == 2 * 64**2 + 2 * 64 * 16


def test_the_first_weight_drawn_is_the_same_on_every_machine():
    weight = NumpyAttention.random(12, 4, seed=0).query_weight
    assert weight.dtype == np.float32
    np.testing.assert_allclose(weight[0, :3], [0.13696, -0.23021, -0.45903], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "5 heads do not divide|expected query_weight of shape"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"kv_heads": 3}, "4 heads do not divide into groups over 3"),
        (
            {"key_weight": np.zeros((8, 12))},
            r"expected key_weight of shape \(12, 12\), got \(8, 12\)",
        ),
        ({"output_weight": np.zeros((12, 8))}, r"expected output_weight of shape \(12, 12\)"),
        ({"value_bias": np.zeros(5)}, r"expected value_bias of shape \(12,\), got \(5,\)"),
        ({"rotary": 1e4}, "even head_dim, got 3"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(NumpyAttention.random(12, 4), **change)


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("score", get_args(Score))
def test_blocks_of_rows_equal_the_whole(rows, causal, score):
    attention = NumpyAttention.random(12, 3, seed=2, causal=causal, rotary=100.0, score=score)
    x = np.random.default_rng(0).standard_normal((2, 7, 12)).astype(np.float32)
    output, weights = attention(x)
    seen = np.zeros_like(weights)

    def look(start, block):
        seen[..., start : start + block.shape[-2], : block.shape[-1]] = block

    assert attention.in_rows(x, rows, look) == pytest.approx(output, abs=1e-6)
    assert seen == pytest.approx(weights, abs=1e-6)


def test_moved_norms_by_a_loop_over_heads():
    attention = NumpyAttention.random(12, 6, 2, seed=5)
    x = np.random.default_rng(1).standard_normal((5, 12)).astype(np.float32)
    norms = attention.moved_norms(x)
    value = x @ attention.value_weight.T
    for head in range(6):
        own = value[:, (head // 3) * 2 : (head // 3) * 2 + 2]
        moved = own @ attention.output_weight[:, head * 2 : head * 2 + 2].T
        assert norms[head] == pytest.approx(np.linalg.norm(moved, axis=-1), rel=1e-5)
