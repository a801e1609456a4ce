"""Each function of attention, and its masks, in both libraries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.nn import functional
from torch.nn import functional as reference

from attnviz.attention.functional import (
    ACTIVATE,
    attention_scores,
    causal_mask,
    combine_masks,
    masked_softmax,
    merge_heads,
    namespace,
    padding_mask,
    project,
    repeat_kv_heads,
    scaled_dot_product_attention,
    softmax,
    split_heads,
)

every_time = settings(derandomize=True, max_examples=50)
libraries = st.sampled_from([np.asarray, torch.from_numpy])
SIDES = [(3, 3), (2, 4), (4, 2), (1, 3), (0, 2)]
ROUNDING = {np.float32: 2e-6, np.float64: 1e-14}
APPROXIMATED = 4e-7
"""What the series of the error function may add, which is exact to 1.5e-7."""


def scores(elements):
    shapes = arrays.array_shapes(min_dims=1, max_dims=3, max_side=5)
    return arrays.arrays(np.float32, shapes, elements=elements)


@every_time
@given(libraries, scores(st.floats(-(2.0**99), 2.0**99, width=32) | st.just(-math.inf)))
def test_softmax_rows_are_a_distribution_or_zero(library, x):
    weights = np.asarray(softmax(library(x)))
    blind = (x == -math.inf).all(axis=-1)
    np.testing.assert_allclose(weights.sum(axis=-1), np.where(blind, 0, 1), rtol=1e-5)
    assert (weights >= 0).all()
    assert (weights[x == -math.inf] == 0).all()


def test_softmax_by_hand(convert, close):
    x = convert(np.log(np.array([[1, 2, 5], [3, 3, 3]], dtype=np.float32)))
    close(softmax(x), [[1 / 8, 2 / 8, 5 / 8], [1 / 3, 1 / 3, 1 / 3]])
    close(softmax(x, axis=0), [[1 / 4, 2 / 5, 5 / 8], [3 / 4, 3 / 5, 3 / 8]])


def test_softmax_over_no_keys_is_empty_and_hides_no_nan(convert):
    assert softmax(convert(np.zeros((3, 0), np.float32))).shape == (3, 0)
    assert np.isnan(np.asarray(softmax(convert(np.array([math.nan, 1.0]))))).all()


# Masks over (2, 3, 5, 7) as a caller may give them, of what is visible and of numbers to add.
MASKS = {
    "none": lambda visible, added: None,
    "full": lambda visible, added: visible,
    "of texts": lambda visible, added: visible[:, :1],
    "of heads": lambda visible, added: visible[0],
    "of queries": lambda visible, added: visible[0, 0],
    "of keys": lambda visible, added: visible[0, 0, :1],
    "additive": lambda visible, added: added,
    "additive with hidden": lambda visible, added: np.where(visible, added, np.float32(-np.inf)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_equals_torchs_own_function(convert, close, normal, name, scale):
    inputs = normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 11)
    visible = normal(2, 3, 5, 7) > 0
    visible[..., 2] = True  # no row is empty
    mask = MASKS[name](visible, normal(2, 3, 5, 7))
    output, weights = scaled_dot_product_attention(
        *map(convert, inputs), None if mask is None else convert(mask), scale
    )
    expected = reference.scaled_dot_product_attention(
        *map(torch.from_numpy, inputs),
        attn_mask=None if mask is None else torch.from_numpy(mask),
        scale=scale,
    )
    close(output, expected)
    close(weights.sum(-1), np.ones((2, 3, 5)))
    assert output.dtype == convert(inputs[0]).dtype


@pytest.mark.parametrize("additive", [False, True])
def test_a_query_that_sees_nothing_gets_zeros(convert, normal, additive):
    visible = np.ones((5, 7), dtype=bool)
    visible[3] = False
    mask = np.where(visible, 0, -np.inf) if additive else visible
    output, weights = scaled_dot_product_attention(
        *map(convert, (normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4))), convert(mask)
    )
    assert (np.asarray(weights)[:, 3] == 0).all()
    assert (np.asarray(output)[:, 3] == 0).all()
    np.testing.assert_allclose(np.asarray(weights)[:, :3].sum(-1), 1, rtol=1e-5)


def test_a_wider_mask_does_not_widen_the_weights(convert, normal):
    lowest = np.where(np.eye(5, dtype=bool), 0, np.finfo(np.float64).min)
    weights = masked_softmax(
        attention_scores(convert(normal(3, 5, 4)), convert(normal(3, 5, 4))), convert(lowest)
    )
    assert weights.dtype == convert(normal(1)).dtype
    np.testing.assert_array_equal(weights, np.broadcast_to(np.eye(5), (3, 5, 5)))


def test_project_is_a_linear_layer(convert, close, normal):
    x, weight, bias = normal(2, 5, 7), normal(3, 7), normal(3)
    expected = reference.linear(*map(torch.from_numpy, (x, weight, bias)))
    close(project(*map(convert, (x, weight, bias))), expected)
    close(project(convert(x), convert(weight)), expected - torch.from_numpy(bias))


def test_heads_are_consecutive_columns(convert):
    x = np.arange(2 * 5 * 6, dtype=np.float32).reshape(2, 5, 6)
    heads = split_heads(convert(x), 3)
    assert heads.shape == (2, 3, 5, 2)
    np.testing.assert_array_equal(heads[:, 1], x[..., 2:4])
    np.testing.assert_array_equal(merge_heads(heads), x)


@pytest.mark.parametrize("heads", [0, 4])
def test_heads_that_do_not_fit_are_refused(convert, normal, heads):
    with pytest.raises(ValueError, match=f"width of 6 does not divide into {heads} heads"):
        split_heads(convert(normal(5, 6)), heads)


def test_no_tokens_give_no_output(convert, normal):
    empty = split_heads(convert(normal(2, 0, 6)), 3)
    output, weights = scaled_dot_product_attention(empty, empty, empty)
    assert weights.shape == (2, 3, 0, 0)
    assert merge_heads(output).shape == (2, 0, 6)


def test_key_value_heads_repeat_in_groups(convert):
    x = np.array([10, 20], dtype=np.float32).reshape(1, 2, 1, 1)
    assert np.asarray(repeat_kv_heads(convert(x), 3)).ravel().tolist() == [10, 10, 10, 20, 20, 20]


def test_arrays_of_two_libraries_are_refused(normal):
    with pytest.raises(TypeError, match="Multiple namespaces"):
        namespace(normal(1), torch.ones(1))


def test_gradients_of_a_hidden_row_are_zero(normal):
    query = torch.from_numpy(normal(1, 2, 3)).requires_grad_()
    visible = torch.tensor([[True, False], [False, False]])
    masked_softmax(attention_scores(query, query), visible).square().sum().backward()
    assert torch.isfinite(query.grad).all()
    assert (query.grad[0, 1] == 0).all()


@pytest.mark.parametrize(("queries", "keys"), SIDES)
def test_causal_mask_is_aligned_at_the_end(convert, queries, keys):
    mask = causal_mask(queries, keys, like=convert(np.zeros(1)))
    assert mask.shape == (queries, keys)
    for i in range(queries):
        for j in range(keys):
            assert bool(mask[i, j]) == (j <= i + keys - queries)


def test_padding_mask_hides_keys_of_each_text(convert):
    visible = np.array([[True, True, False], [True, False, False]])
    mask = padding_mask(convert(visible))
    assert mask.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(mask[:, 0, 0], visible)


@pytest.mark.parametrize("visible", [np.ones((2, 3), np.int64), np.ones(3, dtype=bool)])
def test_padding_mask_refuses_others(convert, visible):
    with pytest.raises(ValueError, match=r"booleans of shape \(batch, key\), got"):
        padding_mask(convert(visible))


def test_masks_combine(convert):
    one, other = convert(np.array([True, True, False])), convert(np.array([True, False, True]))
    soft = convert(np.array([1.0, 2.0, 3.0]))
    assert combine_masks() is None
    assert combine_masks(None, one, None) is one
    assert np.asarray(combine_masks(one, other)).tolist() == [True, False, False]
    assert np.asarray(combine_masks(soft, soft)).tolist() == [2, 4, 6]
    for mixed in (combine_masks(one, soft), combine_masks(soft, None, one)):
        assert np.asarray(mixed).tolist() == [1, 2, -np.inf]
    assert np.asarray(combine_masks(one, soft, other)).tolist() == [1, -np.inf, -np.inf]
    texts = padding_mask(convert(np.array([[True, True], [True, False]])))
    both = combine_masks(texts, causal_mask(2, 2, like=texts))
    assert np.asarray(both)[:, 0].tolist() == [
        [[True, False], [True, True]],
        [[True, False], [True, False]],
    ]


def test_a_mask_of_ones_and_zeros_is_refused_with_what_to_write(convert, normal):
    query, flags = convert(normal(3, 5, 4)), np.tri(5).astype(np.float32)
    for mask, said in (
        (flags, r"of 0 and 1, .* write mask\.(bool|astype)\("),
        (flags.astype(np.int64), r"boolean \(True = visible\) or additive float, not .*int64"),
    ):
        with pytest.raises(ValueError, match=said):
            masked_softmax(attention_scores(query, query), convert(mask))
    masked_softmax(attention_scores(query, query), convert(flags - 1))  # added, as numbers are


TORCH = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", TORCH)
def test_each_activation_is_torchs_within_rounding(name, dtype):
    x = np.concatenate([np.linspace(-200, 200, 4001), np.linspace(-6, 6, 4001), [-0.0, 0.0]])
    given = x.astype(dtype)
    kept = given.copy()
    found = ACTIVATE[name](given.reshape(2, -1)).ravel()
    expected = TORCH[name](torch.from_numpy(given.astype(np.float64))).numpy()
    allowed = ROUNDING[dtype] * np.maximum(np.abs(x), 1) + (name == "gelu") * APPROXIMATED
    assert found.dtype == dtype
    assert (np.abs(found - expected) <= allowed).all()
    np.testing.assert_array_equal(given, kept)  # what is activated may be needed again


@pytest.mark.parametrize("name", TORCH)
def test_no_number_stays_no_number(name):
    x = np.array([np.nan, 1.0], np.float32)
    found = ACTIVATE[name](x)
    assert np.isnan(found[0])
    assert np.isfinite(found[1])
