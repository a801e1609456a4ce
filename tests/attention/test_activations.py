"""The activation functions in NumPy against torch's, in both number types."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnviz.attention.functional import ACTIVATE

TORCH = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}
ROUNDING = {np.float32: 2e-6, np.float64: 1e-14}
APPROXIMATED = 4e-7
"""What the series of the error function may add, which is exact to 1.5e-7."""


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
