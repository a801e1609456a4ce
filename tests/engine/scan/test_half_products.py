"""Products in halves are as exact as their docstring says, and a scan by them is the usual one."""

import numpy as np
import pytest
import torch

from attnviz.engine import linear_map
from attnviz.engine.linear_map import Halves, sums_halves
from attnviz.engine.scan.unembedding import Unembedding

from ..sizes import set_sizes

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@pytest.fixture(autouse=True)
def as_a_gpu_sums(monkeypatch):
    """Halves are multiplied exactly and summed in float32, which torch does on a GPU alone."""
    monkeypatch.setattr(linear_map, "summed", lambda rows, matrix: rows.float() @ matrix.float().T)


def drawn(dtype):
    generator = torch.Generator().manual_seed(0)
    rows, matrix = (torch.randn(*shape, generator=generator) for shape in ((40, 64), (53, 64)))
    return rows, matrix.to(dtype)


@HALVES
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-6, 1.0, 3e5, 1e20])
def test_the_error_is_a_share_of_the_largest_number(dtype, size):
    rows, matrix = drawn(dtype)
    rows *= size * torch.logspace(-3, 0, len(rows))[:, None]
    apart = (Halves(rows, dtype).times(matrix).double() - rows.double() @ matrix.double().T).abs()
    most = rows.abs().amax(-1, keepdim=True).double()
    bound = most * matrix.double().abs().sum(-1)
    assert (apart <= 2.0**-16 * bound).all()
    assert apart.mean() <= 2.0**-16 / 50 * bound.mean()
    assert size or not apart.any()


@HALVES
def test_rows_in_half_precision_are_exact(dtype):
    rows, matrix = drawn(dtype)
    rows = rows.to(dtype)
    exact = (rows.double() @ matrix.double().T).float()
    torch.testing.assert_close(Halves(rows, dtype).times(matrix), exact, rtol=0, atol=1e-5)


@HALVES
@pytest.mark.parametrize("tile", [(512, 2048), (4, 10)])
def test_a_scan_in_halves_is_the_usual_one(dtype, tile, monkeypatch):
    set_sizes(monkeypatch, tile=tile)
    rows, weight = drawn(dtype)
    clean, changed = rows[:5].to(dtype), (rows[:5] + 0.1 * rows[5:].unflatten(0, (7, 5))).to(dtype)
    changed[0, 0] += 300  # beyond the range of exp
    for bias in (None, torch.randn(53).to(dtype)):
        usual = Unembedding(weight, bias).compare(clean, changed, [3, 52, 0, -1, 9])
        with monkeypatch.context() as patched:
            patched.setattr(linear_map, "sums_halves", lambda device, dtype: True)
            halves = Unembedding(weight, bias).compare(clean, changed, [3, 52, 0, -1, 9])
        for name in ("loss", "loss_delta", "kl"):
            found, expected = getattr(halves, name), getattr(usual, name)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        assert (halves.flips == usual.flips).all()
        assert halves.kl.max() > 100


@HALVES
def test_where_gradients_are_asked_for_the_weight_is_widened(dtype, monkeypatch):
    """The GPU's product of halves has no derivative: the one here refuses to be called."""
    monkeypatch.setattr(linear_map, "sums_halves", lambda device, dtype: True)
    monkeypatch.setattr(linear_map, "summed", None)
    rows, weight = drawn(dtype)
    rows.requires_grad_()
    logits = Unembedding(weight, None).logits(rows)
    (slope,) = torch.autograd.grad(logits[3, 7], rows)
    assert torch.equal(slope[3], weight[7].float())


def test_a_processor_multiplies_in_float32():
    assert not sums_halves("cpu", torch.bfloat16)
