"""Exact sums: equal to sums of fractions, in any order, with means and variances from them."""

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.measures.exact_sums import exact, exact_sum, mean, total, variance

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(st.lists(numbers, min_size=1, max_size=20))
def test_an_exact_sum_is_that_of_fractions(values):
    unit = Fraction(1, 2**56)
    rounded = sum((round(Fraction(value) / unit) * unit for value in values), Fraction(0))
    high, low = exact_sum(values).tolist()
    assert abs(Fraction(high, 2**20) + low * unit - rounded) <= len(values) * unit
    assert float(total(exact_sum(values))) == pytest.approx(math.fsum(values), abs=1e-15, rel=1e-15)


@given(st.lists(numbers, min_size=2, max_size=8), st.randoms())
def test_an_exact_sum_has_no_order(values, random):
    mixed = list(values)
    random.shuffle(mixed)
    one, other = exact_sum(values), exact_sum(mixed[:1]) + exact_sum(mixed[1:])
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("value", [math.nan, math.inf, 2.0**30, -(2.0**30)])
def test_an_exact_sum_refuses_what_it_cannot_hold(value):
    with pytest.raises(ValueError, match="below"):
        exact([1.0, value])


def test_means_and_variances():
    values = np.random.default_rng(0).normal(3, 0.1, (50, 2))
    values[:, 1] = 0.25
    sums, squares = exact_sum(values), exact_sum(values**2)
    assert mean(sums, 50).tolist() == pytest.approx([statistics.fmean(values[:, 0]), 0.25])
    found = variance(sums, squares, 50).tolist()
    assert found == pytest.approx([statistics.variance(values[:, 0]), 0], rel=1e-9, abs=1e-15)
    assert np.isnan(variance(exact([1.0]), exact([1.0]), [1])).all()
    assert np.isnan(mean(exact([0.0]), [0])).all()
