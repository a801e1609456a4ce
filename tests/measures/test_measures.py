"""Each measure against hand-computed values, a loop over its definition, and its stated range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnviz.measures import scores as measures

IDS = (5, 2, 5, 5, 3, 2, 7)  # repeats far, near and twice
SPECIAL = (True, False, False, False, True, False, False)

Matrix = list[list[float]]


def average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


# Loops written from the sentences of the papers; they share no code with the package.


def loop_previous(a: Matrix) -> float:
    return average([a[i][i - 1] for i in range(1, len(a))])


def loop_next(a: Matrix) -> float:
    return average([a[i][i + 1] for i in range(len(a) - 1)])


def loop_first(a: Matrix) -> float:
    return average([a[i][0] for i in range(1, len(a))])


def loop_self_causal(a: Matrix) -> float:
    return average([a[i][i] for i in range(1, len(a))])


def loop_self_all(a: Matrix) -> float:
    return average([a[i][i] for i in range(len(a))])


def loop_duplicate(a: Matrix) -> float:
    sums = []
    for i in range(len(a)):
        copies = [j for j in range(i) if IDS[j] == IDS[i]]
        if copies:
            sums.append(math.fsum(a[i][j] for j in copies))
    return average(sums)


def loop_induction(a: Matrix) -> float:
    sums = []
    for i in range(len(a)):
        copies = [j for j in range(i - 1) if IDS[j] == IDS[i]]
        if copies:
            sums.append(math.fsum(a[i][j + 1] for j in copies))
    return average(sums)


def row_entropy(row: Sequence[float]) -> float:
    return -math.fsum(w * math.log(w) for w in row if w > 0)


def loop_entropy(a: Matrix) -> float:
    return average([row_entropy(row) for row in a])


def loop_normalised_causal(a: Matrix) -> float:
    return average([row_entropy(a[i]) / math.log(i + 1) for i in range(1, len(a))])


def loop_normalised_all(a: Matrix) -> float:
    return average([row_entropy(a[i]) / math.log(len(a[i])) for i in range(1, len(a))])


def loop_distance(a: Matrix) -> float:
    return average(
        [math.fsum(w * abs(i - j) for j, w in enumerate(row)) for i, row in enumerate(a)]
    )


def loop_confidence(a: Matrix) -> float:
    return average([max(row) for row, special in zip(a, SPECIAL, strict=True) if not special])


SQUARE = {
    "previous": (measures.previous, loop_previous),
    "next": (measures.next_token, loop_next),
    "first": (measures.first, loop_first),
    "self, causal": (lambda a: measures.self_share(a, True), loop_self_causal),
    "self": (lambda a: measures.self_share(a, False), loop_self_all),
    "duplicate": (lambda a: measures.duplicate(a, IDS), loop_duplicate),
    "induction": (lambda a: measures.induction(a, IDS), loop_induction),
    "entropy": (measures.entropy, loop_entropy),
    "normalised entropy, causal": (
        lambda a: measures.normalised_entropy(a, True),
        loop_normalised_causal,
    ),
    "normalised entropy": (lambda a: measures.normalised_entropy(a, False), loop_normalised_all),
    "distance": (measures.distance, loop_distance),
    "confidence": (lambda a: measures.confidence(a, SPECIAL), loop_confidence),
}


def random_weights(causal: bool, *shape: int, dtype: type = np.float64) -> np.ndarray:
    weights = np.random.default_rng(11).dirichlet(np.full(shape[-1], 0.3), size=shape[:-1])
    if causal:
        weights = np.tril(weights + 1e-3)
        weights /= weights.sum(-1, keepdims=True)
    return weights.astype(dtype)


@pytest.mark.parametrize(
    ("name", "causal"),
    [(name, True) for name in SQUARE]
    + [(name, False) for name in SQUARE if not name.endswith("causal")],
)
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_a_measure_is_what_its_sentence_says(
    name: str, causal: bool, dtype: type, close: float
) -> None:
    measure, loop = SQUARE[name]
    weights = random_weights(causal, 3, len(IDS), len(IDS), dtype=dtype)
    expected = [loop(head.astype(float).tolist()) for head in weights]
    np.testing.assert_allclose(measure(weights), expected, rtol=0, atol=close)


@pytest.mark.parametrize("name", SQUARE)
def test_leading_axes_are_kept(name: str) -> None:
    measure, _ = SQUARE[name]
    weights = random_weights(True, 2, 3, len(IDS), len(IDS))
    assert measure(weights).shape == (2, 3)
    np.testing.assert_array_equal(measure(weights)[1, 2], measure(weights[1, 2]))


def test_uniform_causal_by_hand() -> None:
    four, six = (measures.uniform_weights(n, n, True) for n in (4, 6))
    assert measures.entropy(four) == pytest.approx(math.log(24) / 4)
    assert measures.distance(four) == pytest.approx(0.75)
    assert measures.normalised_entropy(four, True) == pytest.approx(1.0)
    # rows 1 … 5 put 1/2, 1/3, 1/4, 1/5, 1/6 on the token before: 1.45 in all
    assert measures.previous(six) == pytest.approx(1.45 / 5)
    assert measures.first(six) == pytest.approx(1.45 / 5)
    assert measures.self_share(six, True) == pytest.approx(1.45 / 5)
    assert measures.self_share(six, False) == pytest.approx((1 + 1.45) / 6)
    assert measures.next_token(six) == 0


def test_repeats_by_hand() -> None:
    """a b c a b c: rows 3, 4, 5 hold 1/4, 1/5, 1/6 on the copy, as much on what followed it."""
    uniform = measures.uniform_weights(6, 6, True)
    ids = (1, 2, 3, 1, 2, 3)
    assert measures.duplicate(uniform, ids) == pytest.approx(0.616667 / 3, abs=1e-6)
    assert measures.induction(uniform, ids) == pytest.approx(0.616667 / 3, abs=1e-6)


def test_perfect_heads() -> None:
    n = 5
    one_before = np.eye(n, k=-1)
    one_before[0, 0] = 1
    assert measures.previous(one_before) == 1
    assert measures.self_share(one_before, True) == 0
    assert measures.distance(one_before) == pytest.approx((n - 1) / n)
    assert measures.self_share(np.eye(n), False) == 1
    assert measures.distance(np.eye(n)) == 0
    assert measures.next_token(np.eye(n, k=1)) == 1
    repeat = np.zeros((4, 4))
    repeat[:, 0] = 1
    assert measures.duplicate(repeat, (1, 2, 3, 1)) == 1
    follow = np.zeros((4, 4))
    follow[:, 1] = 1
    assert measures.induction(follow, (1, 2, 3, 1)) == 1


def test_a_double_token_is_a_duplicate_but_no_induction() -> None:
    """In a a the follower of the earlier a is the query itself."""
    weights = measures.uniform_weights(2, 2, True)
    assert measures.duplicate(weights, (4, 4)) == 0.5
    assert np.isnan(measures.induction(weights, (4, 4)))


@pytest.mark.parametrize("causal", [True, False])
def test_one_token_measures_nothing_but_itself(causal: bool) -> None:
    one = np.ones((2, 1, 1))
    for measure in (measures.previous, measures.next_token, measures.first):
        assert np.isnan(measure(one)).all()
    assert np.isnan(measures.normalised_entropy(one, causal)).all()
    np.testing.assert_array_equal(measures.self_share(one, causal), [math.nan if causal else 1] * 2)
    np.testing.assert_array_equal(measures.entropy(one), [0, 0])
    np.testing.assert_array_equal(measures.distance(one), [0, 0])


def test_what_a_text_cannot_show_is_nan_not_zero() -> None:
    weights = random_weights(True, 2, 4, 4)
    assert np.isnan(measures.duplicate(weights, (1, 2, 3, 4))).all()
    assert np.isnan(measures.induction(weights, (1, 2, 3, 4))).all()
    assert np.isnan(measures.confidence(weights, (True,) * 4)).all()


def test_no_entropy_is_zero_without_a_sign() -> None:
    """Minus zero would be printed as -0.00; a weight rounded above one gives less than zero."""
    for weights in (np.eye(3), np.full((1, 1), 1.0000001)):
        value = float(measures.entropy(weights))
        assert value == 0
        assert math.copysign(1, value) == 1


def test_a_sink_that_takes_weight_away_is_measured_as_it_is() -> None:
    """Rows of gpt_oss do not sum to one: what is left counts, nothing is rescaled."""
    half = measures.uniform_weights(4, 4, True) / 2
    assert measures.first(half) == pytest.approx(measures.first(2 * half) / 2)
    assert measures.distance(half) == pytest.approx(0.375)
    assert measures.entropy(half) == pytest.approx(average([row_entropy(r) for r in half.tolist()]))


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (5, 2), (1, 3), (3, 1)])
def test_cross_attention_need_not_be_square(queries: int, keys: int) -> None:
    weights = measures.uniform_weights(queries, keys, False)
    assert weights.shape == (queries, keys)
    assert measures.entropy(weights) == pytest.approx(math.log(keys))
    assert measures.confidence(weights, (False,) * queries) == pytest.approx(1 / keys)
    first, evenness = measures.first(weights), measures.normalised_entropy(weights, False)
    assert first == pytest.approx(1 / keys) if queries > 1 else np.isnan(first)
    assert evenness == pytest.approx(1) if queries > 1 and keys > 1 else np.isnan(evenness)


def test_nan_weights_stay_nan_without_a_warning() -> None:
    weights = np.full((1, len(IDS), len(IDS)), np.nan)
    for measure, _ in SQUARE.values():
        assert np.isnan(measure(weights)).all()


@st.composite
def attention(draw: st.DrawFn) -> tuple[np.ndarray, bool]:
    """Rows of weights that sum to one, with zeros, ones and tiny weights among them."""
    n = draw(st.integers(2, 7))
    causal = draw(st.booleans())
    size = st.sampled_from([0.0, 1e-38, 1e-6, 0.25, 1.0]) | st.floats(0, 1, width=32)
    raw = draw(arrays.arrays(np.float32, (n, n), elements=size))
    raw += np.eye(n, dtype=np.float32)
    weights = np.tril(raw) if causal else raw
    return weights / weights.sum(-1, keepdims=True), causal


@given(attention(), st.data())
def test_ranges(drawn: tuple[np.ndarray, bool], data: st.DataObject) -> None:
    weights, causal = drawn
    n = len(weights)
    ids = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    special = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    shares: list[Callable[[], np.ndarray]] = [
        lambda: measures.previous(weights),
        lambda: measures.next_token(weights),
        lambda: measures.first(weights),
        lambda: measures.self_share(weights, causal),
        lambda: measures.duplicate(weights, ids),
        lambda: measures.induction(weights, ids),
        lambda: measures.normalised_entropy(weights, causal),
        lambda: measures.confidence(weights, special),
    ]
    for share in shares:
        value = float(share())
        assert math.isnan(value) or -1e-6 <= value <= 1 + 1e-6
    assert 0 <= float(measures.entropy(weights)) <= math.log(n) + 1e-6
    assert 0 <= float(measures.distance(weights)) <= n - 1 + 1e-5


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_uniform_rows_sum_to_one_over_what_is_seen(queries: int, keys: int, causal: bool) -> None:
    weights = measures.uniform_weights(queries, keys, causal)
    np.testing.assert_allclose(weights.sum(-1), 1)
    if causal:
        assert not np.triu(weights, 1).any()


def test_inputs_are_left_alone() -> None:
    weights = random_weights(True, 1, len(IDS), len(IDS))
    before = weights.copy()
    for measure, _ in SQUARE.values():
        measure(weights)
    np.testing.assert_array_equal(weights, before)
