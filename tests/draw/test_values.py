"""The shortest decimals of a float32, against NumPy's own printing of single numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.values import shortest


@given(st.lists(st.floats(-999999, 999999, width=32), min_size=1, max_size=13))
def test_equal_to_what_numpy_prints(numbers):
    values = np.array(numbers, dtype=np.float32)
    printed = np.array([float(str(value)) for value in values])
    np.testing.assert_array_equal(shortest(values), printed)


@given(st.floats(width=32))
def test_any_float32_reads_back(number):
    values = np.array([number], dtype=np.float32)
    np.testing.assert_array_equal(shortest(values).astype(np.float32), values)


def test_known_numbers():
    """Those of float64 are left as they are."""
    known = {0.1: "0.1", 1 / 3: "0.33333334", 0.0: "0.0", 1.0: "1.0", 1e-30: "1e-30"}
    for value, text in known.items():
        (number,) = shortest(np.array([value], dtype=np.float32)).tolist()
        assert repr(number) == text
    values = np.random.default_rng(3).random((5, 7))
    np.testing.assert_array_equal(shortest(values), values)
