"""Shares between regions, against a loop over their definition and values known by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.draw.regions import clearest
from attnviz.measures.regions import RegionSums, region_shares, shares
from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens

NAMES = ("system", "user", "template")


def told(regions, special=()):
    count = len(regions)
    tokens = Tokens(
        tuple(range(count)), ("x",) * count, tuple(at in special for at in range(count))
    )
    return replace(tokens, regions=tuple(regions))


def record(weights, tokens, causal):
    layers = tuple(
        LayerWeights(at, tuple(range(len(each))), each) for at, each in enumerate(weights)
    )
    layout = {"layers": len(weights), "heads": weights.shape[1], "kv_heads": weights.shape[1]}
    info = ModelInfo("made", None, "Made", "float64", head_dim=1, **layout)
    return AttentionRecord(info, "self", causal, tokens, tokens, layers)


def drawn(seed, count, causal, shape=(2, 3)):
    scores = np.random.default_rng(seed).normal(0, 2, (*shape, count, count))
    powers = np.exp(scores) * (np.tri(count) if causal else 1)
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def by_loop(head, regions, sink, causal, one, other):
    """Share, uniform, the part on the sink, and how much above uniform the rest is."""
    found, even, rest, over = [], [], [], []
    for i, row in enumerate(head):
        if regions[i] != one:
            continue
        visible = [j for j in range(len(row)) if j <= i or not causal]
        found.append(math.fsum(row[j] for j in visible if regions[j] == other))
        even.append(sum(regions[j] == other for j in visible) / len(visible))
        rest.append(math.fsum(row[j] for j in visible if regions[j] == other and j in sink))
        outside = [j for j in visible if j not in sink]
        left = math.fsum(row[j] for j in outside)
        if outside and left > 0.005:
            part = math.fsum(row[j] for j in outside if regions[j] == other) / left
            over.append(part - sum(regions[j] == other for j in outside) / len(outside))

    def mean(values):
        return math.fsum(values) / len(values) if values else math.nan

    return mean(found), mean(even), mean(rest), mean(over)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=14),
    st.booleans(),
    st.sets(st.integers(0, 13)),
    st.integers(0, 99),
)
def test_shares_are_those_of_the_definition(regions, causal, special, seed):
    weights = drawn(seed, len(regions), causal)
    found = region_shares(record(weights, told(regions, [*special]), causal))
    sink = special | ({0} if causal else set())
    arrays = (found.share, found.uniform, found.on_sink, found.above)
    for at, (layer, head) in enumerate(found.heads):
        for q, one in enumerate(found.queries):
            for k, other in enumerate(found.keys):
                expected = by_loop(weights[layer, head].tolist(), regions, sink, causal, one, other)
                for array, value in zip(arrays, expected, strict=True):
                    np.testing.assert_allclose(array[at, q, k], value, atol=1e-12)


def test_values_known_by_hand():
    """Uniform causal attention over a a b b: its share is uniform, and nothing stands above."""
    even = np.tri(4) / np.arange(1, 5)[:, None]
    found = region_shares(record(even[None, None], told(["a", "a", "b", "b"]), True))
    assert dict(found.queries) == {"a": 2, "b": 2}
    np.testing.assert_allclose(found.share[0], [[1, 0], [(2 / 3 + 1 / 2) / 2, (1 / 3 + 1 / 2) / 2]])
    np.testing.assert_allclose(found.share, found.uniform)
    np.testing.assert_allclose(found.above, 0, atol=1e-12)
    assert not found.clear.any()


@pytest.mark.parametrize("rows", [1, 3, 8, 50])
def test_blocks_of_rows_give_the_shares_of_the_whole(rows):
    """As long texts are read: causal blocks leave out the keys behind their last query."""
    regions = [NAMES[at // 9 % 3] for at in range(41)]
    weights, tokens = drawn(2, 41, True)[0], told(regions)
    whole = region_shares(record(weights[None], tokens, True))
    sums = RegionSums(tokens, tokens, np.arange(41) == 0)
    for start in range(0, 41, rows):
        end = min(start + rows, 41)
        sums.add(weights[:, start:end, :end], start, np.tri(41, dtype=bool)[start:end, :end])
    found = shares(tokens, tokens, {(0, (0, 1, 2)): sums.sums()})
    for name in ("share", "uniform", "on_sink", "above"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-12)
    assert (found.clear == whole.clear).all()


def test_a_window_hides_keys_from_uniform_attention_too():
    """What a layer cannot see does not count as visible."""
    near = np.tri(6, dtype=bool) & ~np.tri(6, k=-2, dtype=bool)
    weights = (near / near.sum(-1, keepdims=True))[None]
    tokens = told(["a", "a", "b", "b", "b", "b"])
    info = record(weights[None], tokens, True)
    layer = LayerWeights(0, (0,), weights, near)
    found = region_shares(replace(info, layers=(layer,)))
    np.testing.assert_allclose(found.uniform, found.share)
    np.testing.assert_allclose(found.share[0, 1], [0.5 / 4, 3.5 / 4])


def test_only_attention_beyond_the_sink_is_clear():
    """Both heads of a 12-token answer give .8 to the prompt: one to its first token alone."""
    regions = ["prompt"] * 8 + ["answer"] * 12
    weights = np.zeros((2, 20, 20))
    weights[:, range(20), range(20)] = 1
    for i in range(8, 20):
        own = np.full(i - 7, 0.2 / (i - 7))
        weights[0, i, : i + 1] = [0.8, *[0] * 7, *own]
        weights[1, i, : i + 1] = [0, *[0.8 / 7] * 7, *own]
    found = region_shares(record(weights[None], told(regions), True))
    np.testing.assert_allclose(found.share[:, 1, 0], 0.8)
    np.testing.assert_allclose(found.on_sink[:, 1, 0], [0.8, 0])
    assert found.clear[:, 1, 0].tolist() == [False, True]
    assert clearest(found) == (1, 1, 0)


def test_few_queries_and_random_attention_claim_nothing():
    weights = np.zeros((1, 1, 12, 12))
    weights[..., range(12), range(12)] = 1
    weights[..., 8:, :] = 0
    weights[..., 8:, 3] = 1
    found = region_shares(record(weights, told(["a"] * 8 + ["b"] * 4), True))
    assert found.share[0, 1, 0] == 1
    assert not found.clear.any()
    # Peaked rows drawn alone, over regions of ten tokens: one text of a hundred may be clear.
    regions, clear = [NAMES[at // 10 % 3] for at in range(60)], 0
    for seed in range(60):
        found = region_shares(record(drawn(seed, 60, True, (3, 4)), told(regions), True))
        clear += bool(found.clear.any())
    assert clear <= 2


def test_no_regions_no_shares():
    assert region_shares(record(drawn(0, 3, True), replace(told("abc"), regions=()), True)) is None
