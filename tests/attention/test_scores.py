"""The three ways to score a query against a key: by hand, by loops, and against Keras."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from attnviz.attention.functional import additive_scores, masked_softmax, scores_by
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention


def test_by_hand(convert, close):
    query = convert(np.array([[[1.0, 2.0, 0.0, -1.0]]]))
    key = convert(np.array([[[3.0, 0.5, 7.0, 2.0], [-1.0, -2.0, 0.0, 1.0]]]))
    close(scores_by("dot", query, key), [[[2, -6]]])
    close(scores_by("scaled-dot", query, key), [[[1, -3]]])
    tanh = math.tanh
    expected = tanh(4) + tanh(2.5) + tanh(7) + tanh(1)
    close(scores_by("additive", query, key), [[[expected, 0]]])
    weighted = additive_scores(query, key, convert(np.array([2.0, 0.0, 0.0, -1.0])))
    close(weighted, [[[2 * tanh(4) - tanh(1), 0]]])


# The layers of Keras take one head's query, value and key, and no projections.
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("use_scale", [False, True])
def test_equals_keras_additive_attention(keras, convert, close, normal, use_scale, causal):
    query, key, value = normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 3)
    theirs = keras.layers.AdditiveAttention(use_scale=use_scale)
    theirs.build([query.shape, value.shape, key.shape])
    weight = normal(4) if use_scale else None
    if use_scale:
        theirs.set_weights([weight])
    output, expected = theirs(
        [query, value, key], return_attention_scores=True, use_causal_mask=causal
    )
    # Keras aligns the causal mask of two texts at the start.
    visible = np.tril(np.ones((5, 7), bool)) if causal else None
    weights = masked_softmax(
        additive_scores(convert(query), convert(key), None if weight is None else convert(weight)),
        None if visible is None else convert(visible),
    )
    close(weights, expected)
    close(np.asarray(weights) @ value, output)


def test_the_vector_learns(normal):
    attention = MultiHeadAttention(12, 4, score="additive")
    attention(torch.from_numpy(normal(2, 5, 12))).square().sum().backward()
    assert attention.score_weight.shape == (4, 3)
    for parameter in attention.parameters():
        assert torch.isfinite(parameter.grad).all()
    assert (attention.score_weight.grad != 0).any()
    count = sum(parameter.numel() for parameter in attention.parameters())
    assert count == 4 * 12 * 12 + 4 * 12 + 12
    assert "score=additive" in repr(attention)


def test_the_vector_is_drawn_xavier_uniform_and_last():
    additive = NumpyAttention.random(30, 6, seed=3, score="additive")
    plain = NumpyAttention.random(30, 6, seed=3)
    for name in ("query_weight", "key_weight", "value_weight", "output_weight"):
        np.testing.assert_array_equal(getattr(additive, name), getattr(plain, name))
    for vector in (
        additive.score_weight,
        MultiHeadAttention(30, 6, score="additive").score_weight.detach().numpy(),
    ):
        assert vector.shape == (6, 5)
        assert 0.8 < np.abs(vector).max() <= 1  # sqrt(6 / (5 + 1))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="one of scaled-dot, dot, additive, got 'cosine'"):
        MultiHeadAttention(12, 4, score="cosine")
    plain = NumpyAttention.random(12, 4)
    with pytest.raises(ValueError, match="one of scaled-dot, dot, additive, got 'cosine'"):
        dataclasses.replace(plain, score="cosine")
    with pytest.raises(ValueError, match="belongs to additive scores, not to scaled-dot"):
        dataclasses.replace(plain, score_weight=np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"score_weight of shape \(4, 3\), got \(3, 4\)"):
        dataclasses.replace(plain, score="additive", score_weight=np.ones((3, 4)))
