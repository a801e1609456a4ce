from __future__ import annotations

import numpy as np
import pytest

from attnviz.attention.functional import causal_mask, combine_masks, padding_mask

SIDES = [(3, 3), (2, 4), (4, 2), (1, 3), (0, 2)]


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
