"""The weight on equal tokens, and entropy, of blocks of rows: against loops over single cells."""

import itertools
import math

import numpy as np
import pytest

from attnviz.measures import rows as equal_tokens
from attnviz.measures.rows import Conditions, RowBlock, TextFacts
from attnviz.records import Tokens

SIZES = [(1, 2), (2, 1), (9, 3), (70, 12), (80, 2)]
"""Numbers of tokens, and of different ones; the last text has too many pairs to keep."""


def looped(weights, block, after):
    """The weight on equal tokens by (order, row), of the rows that see one."""
    found = {}
    for order, ids in enumerate(block.text.orders.tolist()):
        for row, query in enumerate(block.queries.tolist()):
            for equal in range(query):
                key = equal + after
                if ids[equal] == ids[query] and key < query and block.seen[row, key]:
                    before = found.get((order, row), 0.0)
                    found[order, row] = before + float(weights[row, key])
    return found


@pytest.mark.parametrize(("length", "kinds"), SIZES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("view", ["raw", "without-first"])
def test_rows_of_a_block(length, kinds, causal, view):
    draw = np.random.default_rng(length)
    ids = draw.integers(0, kinds, length).tolist()
    tokens = Tokens((*ids,), (*map(str, ids),), (*(draw.random(length) < 0.1).tolist(),))
    text = TextFacts(tokens, tokens, Conditions("self", causal, view), shuffles=3)
    assert (text.equals is None) == ((length, kinds) == SIZES[-1])
    seen = np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
    masks = (None, seen & (draw.random((length, length)) < 0.6))
    blocks = ((0, length), (length // 3, length // 2 + 1))
    for mask, (start, stop) in itertools.product(masks, blocks):
        weights = draw.random((2, length, length)) * (seen if mask is None else mask)
        weights = weights[:, start:stop, : stop if causal else length]
        weights[..., : int(view == "without-first")] = 0
        block = RowBlock(text, weights, start, None if mask is None else mask[start:stop])
        for after in (0, 1):
            values, counts = block.on_equal(after)
            for head, matrix in enumerate(weights):
                expected = looped(matrix, block, after)
                assert {*zip(*map(np.ndarray.tolist, counts.nonzero()), strict=True)} == {*expected}
                for place, value in expected.items():
                    assert values[(head, *place)] == pytest.approx(value, abs=1e-12)
        for rows, matrix in zip(block.entropy, weights, strict=True):
            for entropy, row in zip(rows.tolist(), matrix.tolist(), strict=True):
                total = -math.fsum(each * math.log(each) for each in row if each)
                assert entropy == pytest.approx(max(total, 0.0), abs=1e-12)


def test_many_pairs_are_a_product_with_a_mask(monkeypatch):
    """To the same numbers, for one head too."""
    draw = np.random.default_rng(1)
    ids = draw.integers(0, 4, 40).tolist()
    tokens = Tokens((*ids,), (*map(str, ids),), (False,) * 40)
    weights = draw.random((3, 40, 40)) * np.tri(40)
    found = []
    for most in (10**6, 0):
        monkeypatch.setattr(equal_tokens, "_MOST", most)
        text = TextFacts(tokens, tokens, Conditions("self", True), shuffles=3)
        assert (text.equals is None) == (most == 0)
        found.append(
            [RowBlock(text, one).on_equal(a) for one in (weights, weights[1]) for a in (0, 1)]
        )
    for picked, whole in zip(*found, strict=True):
        assert np.array_equal(picked[1], whole[1])
        assert picked[0].shape == whole[0].shape
        assert picked[0] == pytest.approx(whole[0], abs=1e-12)
