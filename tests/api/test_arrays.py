"""What is taken for an array of weights, and the one line said of everything else."""

import numpy as np
import pytest
import torch

from attnviz.errors import UsageError
from attnviz.inspect.heads.head_maps import as_numpy, weight_matrices

WEIGHTS = np.array([[0.25, 0.75], [1.0, 0.0]])


class OffersArray:
    """As a JAX array does: ``__array__`` and nothing else of NumPy's."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array if dtype is None else self._array.astype(dtype)


class OffersDlpack:
    """DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "given",
    [
        WEIGHTS,
        WEIGHTS.tolist(),
        tuple(map(tuple, WEIGHTS.tolist())),
        list(WEIGHTS),
        torch.tensor(WEIGHTS),
        torch.tensor(WEIGHTS, requires_grad=True),
        list(torch.tensor(WEIGHTS, requires_grad=True)),
        OffersArray(WEIGHTS),
        OffersDlpack(WEIGHTS),
        [OffersDlpack(row) for row in WEIGHTS],
        np.asfortranarray(WEIGHTS),
    ],
    ids=lambda given: type(given).__name__,
)
def test_one_array_in_many_clothes(given):
    found = as_numpy(given)
    assert type(found) is np.ndarray
    assert found.dtype == np.float64
    assert np.array_equal(found, WEIGHTS)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.eye(2, dtype=np.float16), np.float32),
        (np.eye(2, dtype=np.float32), np.float32),
        (torch.eye(2, dtype=torch.bfloat16), np.float32),
        (torch.eye(2, dtype=torch.float16, requires_grad=True), np.float32),
        (np.eye(2, dtype=np.int8), np.float64),
        (np.eye(2, dtype=bool), np.float64),
        ([[1, 0], [0, 1]], np.float64),
    ],
)
def test_types_are_kept_or_widened(given, dtype):
    found = as_numpy(given)
    assert found.dtype == dtype
    assert np.array_equal(found, np.eye(2))


def test_a_type_of_another_library():
    ml_dtypes = pytest.importorskip("ml_dtypes")  # JAX's bfloat16, brought by keras
    found = as_numpy(OffersArray(WEIGHTS.astype(ml_dtypes.bfloat16)))
    assert found.dtype == np.float32
    assert np.array_equal(found, WEIGHTS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("weights", "expected an array of real numbers"),
        ([["a", "b"]], "expected an array of real numbers"),
        (None, "expected an array of real numbers"),
        (object(), "expected an array of real numbers"),
        (np.eye(2) * 1j, "expected an array of real numbers, got complex128"),
        ([[0.5, 0.5], [1.0]], "cannot read a list as an array of numbers"),
        ([], "expected"),
        (np.zeros(2, dtype="V4"), "expected an array of real numbers"),
    ],
)
def test_what_is_no_array(given, said):
    with pytest.raises(UsageError, match=said):
        weight_matrices(given)


def test_shapes_that_are_taken():
    """The given array is left alone."""
    for shape in ((2, 3), (1, 2, 3), (5, 2, 3), (1, 5, 2, 3), (1, 1, 1, 2, 3)):
        weights = np.random.default_rng(0).random(shape)
        before = weights.copy()
        weights.flags.writeable = False
        found = weight_matrices(weights)
        assert found.shape == (shape[-3] if len(shape) > 2 else 1, 2, 3)
        assert np.array_equal(found, before.reshape(found.shape))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((), r"got \(\)"),
        ((3,), r"expected weights of shape \(query, key\) or \(head, query, key\), got \(3,\)"),
        ((2, 5, 3, 3), r"got \(2, 5, 3, 3\) \(several texts or layers\? choose one, such as"),
        ((2, 1, 5, 3, 3), "several texts or layers"),
        ((0, 3), "at least one head, query and key"),
        ((2, 0, 3), "at least one head, query and key"),
        ((2, 3, 0), r"got the shape \(2, 3, 0\)"),
    ],
)
def test_shapes_that_are_not(shape, said):
    with pytest.raises(UsageError, match=said):
        weight_matrices(np.ones(shape))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, r"got nan at \[1, 0, 2\]$"),
        (np.inf, r"got inf at \[1, 0, 2\]"),
        (-np.inf, "are these scores"),
        (-0.25, r"got -0.25 at \[1, 0, 2\]: are these scores\? their softmax is the attention"),
    ],
)
def test_numbers_that_are_no_weights(value, said):
    weights = np.full((2, 3, 3), 1 / 3)
    weights[1, 0, 2] = value
    with pytest.raises(UsageError, match=said):
        weight_matrices(weights)
    with pytest.raises(ValueError, match=r"at \[0, 2\]"):
        weight_matrices(weights[1])
