"""Each measure against hand-computed values, a loop over its definition, and its stated range."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnviz
from attnviz.measures.registry import MEASURES
from attnviz.measures.rows import EQUAL_FORMULAS, FORMULAS
from attnviz.measures.sinks import uniform_weights

from ..made_records import measured

IDS = (5, 2, 5, 5, 3, 2, 7)  # repeats far, near and twice
SPECIAL = (True, False, False, False, True, False, False)


def average(values):
    values = [*values]
    return math.fsum(values) / len(values) if values else math.nan


# Loops written from the sentences of the papers share no code with the package.


def loop_self(a, start=0):
    return average([a[i][i] for i in range(start, len(a))])


def loop_distance(a):
    return average(
        [math.fsum(w * abs(i - j) for j, w in enumerate(row)) for i, row in enumerate(a)]
    )


def loop_local(a, causal=False):
    sums = []
    for i in range(len(a)):
        seen = range(i + 1 if causal else len(a))
        near = [j for j in seen if -2 <= i - j <= 2]
        if len(near) < len(seen):
            sums.append(math.fsum(a[i][j] for j in near))
    return average(sums)


def loop_duplicate(a):
    sums = []
    for i in range(len(a)):
        copies = [j for j in range(i) if IDS[j] == IDS[i]]
        if copies:
            sums.append(math.fsum(a[i][j] for j in copies))
    return average(sums)


def loop_induction(a):
    sums = []
    for i in range(len(a)):
        copies = [j for j in range(i - 1) if IDS[j] == IDS[i]]
        if copies:
            sums.append(math.fsum(a[i][j + 1] for j in copies))
    return average(sums)


def row_entropy(row):
    return -math.fsum(w * math.log(w) for w in row if w > 0)


LOOPS = {
    "previous": (lambda a: average([a[i][i - 1] for i in range(1, len(a))]),) * 2,
    "next": (None, lambda a: average([a[i][i + 1] for i in range(len(a) - 1)])),
    "first": (lambda a: average([a[i][0] for i in range(1, len(a))]),) * 2,
    "self": (partial(loop_self, start=1), loop_self),
    "local": (partial(loop_local, causal=True), loop_local),
    "duplicate": (loop_duplicate,) * 2,
    "induction": (loop_induction,) * 2,
    "entropy": (lambda a: average(map(row_entropy, a)),) * 2,
    "normalised_entropy": (
        lambda a: average([row_entropy(a[i]) / math.log(i + 1) for i in range(1, len(a))]),
        lambda a: average([row_entropy(a[i]) / math.log(len(a[i])) for i in range(1, len(a))]),
    ),
    "distance": (loop_distance,) * 2,
    "confidence": (lambda a: average([max(a[i]) for i in range(len(a)) if not SPECIAL[i]]),) * 2,
}
"""By name, under a causal mask and without one; None where a measure needs the future."""

NAMES = [name for name in LOOPS if name != "next"]


def value(name, weights, causal=True):
    """A measure of a text that has repeats and special tokens."""
    return measured(name, weights, IDS, SPECIAL, causal=causal)


def shown(name, weights, causal=True):
    """A measure of a text of different tokens."""
    return measured(name, weights, causal=causal)


def random_weights(causal, *shape, dtype=np.float64):
    weights = np.random.default_rng(11).dirichlet(np.full(shape[-1], 0.3), size=shape[:-1])
    if causal:
        weights = np.tril(weights + 1e-3)
        weights /= weights.sum(-1, keepdims=True)
    return weights.astype(dtype)


def test_every_formula_is_of_a_measure():
    families = {name for name, measure in MEASURES.items() if measure.family != "relation"}
    assert {*FORMULAS, *EQUAL_FORMULAS} == families - {"monotone"}  # no mean over rows


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_is_in_the_manual_and_is_tested(name):
    """Loops over the definitions stand here, and those over many texts with ``patterns``."""
    page = Path(attnviz.__file__).with_name("docs") / "measures.md"
    assert f"`{name}`" in page.read_text(encoding="utf-8")
    here = Path(__file__).parent
    tests = [*here.glob("test_*.py"), *(here.parent / "inspect" / "patterns").rglob("test_*.py")]
    assert any(f'"{name}"' in test.read_text(encoding="utf-8") for test in tests)


@pytest.mark.parametrize(
    ("name", "causal"),
    [(name, bool(place)) for name, loops in LOOPS.items() for place in (0, 1) if loops[1 - place]],
)
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_a_measure_is_what_its_sentence_says(name, causal, dtype, close):
    loop = LOOPS[name][0 if causal else 1]
    weights = random_weights(causal, 3, len(IDS), len(IDS), dtype=dtype)
    expected = [loop(head.astype(float).tolist()) for head in weights]
    np.testing.assert_allclose(value(name, weights, causal), expected, rtol=0, atol=close)


@pytest.mark.parametrize("name", NAMES)
def test_leading_axes_are_kept(name):
    weights = random_weights(True, 2, 3, len(IDS), len(IDS))
    assert value(name, weights).shape == (2, 3)
    np.testing.assert_array_equal(value(name, weights)[1, 2], value(name, weights[1, 2]))


def test_uniform_causal_by_hand():
    four, six = (uniform_weights(n, n, True) for n in (4, 6))
    assert shown("entropy", four) == pytest.approx(math.log(24) / 4)
    assert shown("distance", four) == pytest.approx(0.75)
    assert shown("normalised_entropy", four, True) == pytest.approx(1.0)
    # rows 1 … 5 put 1/2, 1/3, 1/4, 1/5, 1/6 on the token before: 1.45 in all
    assert shown("previous", six) == pytest.approx(1.45 / 5)
    assert shown("first", six) == pytest.approx(1.45 / 5)
    assert shown("self", six, True) == pytest.approx(1.45 / 5)
    assert shown("self", six, False) == pytest.approx((1 + 1.45) / 6)
    assert measured("next", six, causal=False) == 0
    # rows 3, 4, 5 see 4, 5, 6 keys, of which three are at most two away: 3/4, 3/5, 1/2
    assert shown("local", six) == pytest.approx(1.85 / 3)


def test_a_double_token_is_a_duplicate_but_no_induction():
    """In a a the follower of the earlier a is the query itself."""
    weights = uniform_weights(2, 2, True)
    assert measured("duplicate", weights, (4, 4)) == 0.5
    assert np.isnan(measured("induction", weights, (4, 4)))


@pytest.mark.parametrize("causal", [True, False])
def test_one_token_measures_nothing_but_itself(causal):
    one = np.ones((2, 1, 1))
    for name in ("previous", "first"):
        assert np.isnan(shown(name, one, causal)).all()
    assert causal or np.isnan(shown("next", one, causal)).all()
    assert np.isnan(shown("normalised_entropy", one, causal)).all()
    assert np.isnan(shown("self", one, causal)).all()  # there is nothing else to look at
    np.testing.assert_array_equal(shown("entropy", one), [0, 0])
    np.testing.assert_array_equal(shown("distance", one), [0, 0])


def test_what_a_text_cannot_show_is_nan_not_zero():
    weights = random_weights(True, 2, 4, 4)
    assert np.isnan(measured("duplicate", weights, (1, 2, 3, 4))).all()
    assert np.isnan(measured("induction", weights, (1, 2, 3, 4))).all()
    assert np.isnan(measured("confidence", weights, special=(True,) * 4)).all()


def test_no_entropy_is_zero_without_a_sign():
    """Minus zero would be printed as -0.00; a weight rounded above one gives less than zero."""
    for weights in (np.eye(3), np.full((1, 1), 1.0000001)):
        value = float(shown("entropy", weights))
        assert value == 0
        assert math.copysign(1, value) == 1


def test_a_sink_that_takes_weight_away_is_measured_as_it_is():
    """Rows of gpt_oss do not sum to one: what is left counts, nothing is rescaled."""
    half = uniform_weights(4, 4, True) / 2
    assert shown("first", half) == pytest.approx(shown("first", 2 * half) / 2)
    assert shown("distance", half) == pytest.approx(0.375)
    assert shown("entropy", half) == pytest.approx(average([row_entropy(r) for r in half.tolist()]))


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (5, 2), (1, 3), (3, 1)])
def test_cross_attention_need_not_be_square(queries, keys):
    weights = uniform_weights(queries, keys, False)
    assert weights.shape == (queries, keys)
    assert shown("entropy", weights) == pytest.approx(math.log(keys))
    assert measured("confidence", weights, special=(False,) * queries) == pytest.approx(1 / keys)
    first, evenness = shown("first", weights), shown("normalised_entropy", weights, False)
    assert first == pytest.approx(1 / keys) if queries > 1 else np.isnan(first)
    assert evenness == pytest.approx(1) if queries > 1 and keys > 1 else np.isnan(evenness)


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_uniform_rows_sum_to_one_over_what_is_seen(queries, keys, causal):
    weights = uniform_weights(queries, keys, causal)
    np.testing.assert_allclose(weights.sum(-1), 1)
    if causal:
        assert not np.triu(weights, 1).any()
