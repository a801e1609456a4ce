"""``attnviz.scaled_dot_product_attention``: the numbers of the formula, and how they show."""

import io
import math
import re

import numpy as np
import pytest
import torch
from rich.console import Console

import attnviz
from attnviz.errors import UsageError


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def by_hand(query, key, value):
    """The formula in loops, one query at a time."""
    output, weights = [], []
    for q in query:
        powers = [math.exp(sum(q * k) / math.sqrt(len(q))) for k in key]
        row = [power / sum(powers) for power in powers]
        weights.append(row)
        output.append(sum(share * v for share, v in zip(row, value, strict=True)))
    return np.array(output), np.array(weights)


def test_the_formula():
    query, key, value = random(2, 5), random(3, 5, seed=1), random(3, 7, seed=2)
    result = attnviz.scaled_dot_product_attention(query, key, value)
    output, weights = result
    assert np.allclose(output, by_hand(query, key, value)[0])
    assert np.allclose(weights, by_hand(query, key, value)[1])
    assert (result.output is output, result.weights is weights) == (True, True)


def test_tensors_stay_tensors_and_keep_their_gradients():
    query = torch.randn(2, 3, 5, 7, requires_grad=True)
    output, weights = attnviz.scaled_dot_product_attention(query, query, query)
    assert weights.shape == (2, 3, 5, 5)
    output.sum().backward()
    assert query.grad is not None


def test_mask_and_scale():
    x = random(3, 5)
    causal = attnviz.scaled_dot_product_attention(x, x, x, np.tri(3, dtype=bool))
    assert np.array_equal(np.triu(causal.weights, 1), np.zeros((3, 3)))
    even = attnviz.scaled_dot_product_attention(x, x, x, scale=0.0)
    assert np.allclose(even.weights, 1 / 3)
    with pytest.raises(ValueError, match="a mask is boolean"):
        attnviz.scaled_dot_product_attention(x, x, x, np.ones((3, 3), dtype=int))


def drawn(content):
    stream = io.StringIO()
    Console(file=stream, width=80).print(content)
    return stream.getvalue()


def test_it_draws_its_weights_and_writes_what_cannot_be_drawn():
    x = random(2, 3, 5)
    result = attnviz.scaled_dot_product_attention(x, x, x)
    assert drawn(result).startswith("scaled dot-product attention · given as a float64 array")
    assert "H1 · " in drawn(result)
    assert result._repr_html_().startswith("<iframe")
    named = result.heatmap("look at this")
    assert named.tokens == ("look", "at", "this")
    assert np.array_equal(np.asarray(named), result.weights)
    for shape in ((0, 5), (2, 0, 5)):
        x = np.zeros(shape)
        result = attnviz.scaled_dot_product_attention(x, x, x)
        assert drawn(result).startswith("AttentionResult(output=")
        assert result._repr_html_() is None


def test_of_a_batch_it_draws_the_first_and_says_so():
    x = torch.randn(2, 3, 5, 7)
    result = attnviz.scaled_dot_product_attention(x, x, x)
    assert "text 0 of 2 · given as a float32 array · 3 heads" in drawn(result)
    with pytest.raises(ValueError, match="several texts"):
        result.heatmap()


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((2, 3), (2, 4), (2, 3)), "of one width, the last axis; got query (2, 3), key (2, 4)"),
        (((2, 3), (2, 3), (3, 3)), "each key has its value"),
        (((3,), (2, 3), (2, 3)), "at least two axes (token, width)"),
        (((4, 2, 3), (3, 2, 3), (2, 3)), "leading axes do not broadcast together"),
        (((2, 3), (2, 3), (2, 3), (5, 5)), "mask of (5, 5) does not broadcast over weights (2, 2)"),
    ],
)
@pytest.mark.parametrize("ones", [np.ones, torch.ones])
def test_shapes_that_do_not_fit(shapes, said, ones):
    with pytest.raises(UsageError, match=re.escape(said)):
        attnviz.scaled_dot_product_attention(*map(ones, shapes))
