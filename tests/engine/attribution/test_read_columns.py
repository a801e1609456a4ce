"""Products of which only what is read is computed, held against the whole products."""

import pytest
import torch
from torch.nn import functional

from attnviz.engine.attribution.residual_pass import Jacobian
from attnviz.engine.linear_map import ReadColumns, product

WEIGHT = torch.randn(12, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
GIVEN = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
SCALE = torch.linspace(1, 2, 12, dtype=torch.float64)


@pytest.mark.parametrize("rows", [slice(None), slice(2, 3), slice(1, 5, 3)])
@pytest.mark.parametrize("columns", [[0, 1, 7], list(range(12)), [11]])
def test_derivatives_are_those_of_the_whole_product(rows, columns):
    """A change of some inputs moves what is read of it as the matrix itself does."""
    leaf = GIVEN.clone().requires_grad_()
    read = (product(leaf, WEIGHT) * SCALE)[0, rows][:, columns]
    change = torch.zeros_like(GIVEN)
    change[:, :, 3:5] = GIVEN[:, :, 3:5]
    (moved,) = Jacobian([read], [leaf]).moved({0: change})
    expected = (change[0] @ WEIGHT.T * SCALE)[rows][:, columns]
    torch.testing.assert_close(moved, expected)
    (slope,) = torch.autograd.grad(read.square().sum(), [leaf])
    whole = torch.zeros(5, 12, dtype=torch.float64)
    whole[rows, columns] = 2 * (GIVEN[0] @ WEIGHT.T * SCALE)[rows][:, columns]
    torch.testing.assert_close(slope[0], (whole * SCALE) @ WEIGHT)


def test_a_change_of_nothing_moves_nothing():
    leaf = GIVEN.clone().requires_grad_()
    jacobian = Jacobian([product(leaf, WEIGHT)[0, 1, :4]], [leaf])
    (moved,) = jacobian.moved({0: torch.zeros_like(GIVEN)})
    assert moved.shape == (4,)
    assert not moved.any()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_what_is_not_read_is_left_out(biased, added):
    """A later run computes what the first one's reader read, exactly, and zeros elsewhere."""
    bias = torch.arange(12, dtype=torch.float64) * biased

    def run(x):
        if added:
            return torch.addmm(bias, x[0], WEIGHT.T)[None]
        return functional.linear(x, WEIGHT, bias if biased else None)

    read = ReadColumns()
    given = GIVEN.clone().requires_grad_()
    with read:
        functional.linear(given, WEIGHT)  # of this product nothing is read
        first = run(given)
    read.learn([first[0, 1:3, 4:6].exp()])
    other = GIVEN * 3 - 1
    with read:
        unread = functional.linear(other, WEIGHT)
        second = run(other)
    expected = other @ WEIGHT.T + bias
    torch.testing.assert_close(second[0, 1:3, 4:6], expected[0, 1:3, 4:6])
    assert int(second.count_nonzero()) == 4
    assert not unread.any()


def test_one_vector():
    leaf = GIVEN[0, 0].clone().requires_grad_()
    (moved,) = Jacobian([product(leaf, WEIGHT)], [leaf]).moved({0: GIVEN[0, 1]})
    torch.testing.assert_close(moved, WEIGHT @ GIVEN[0, 1])
    read = ReadColumns()
    with read:
        whole = functional.linear(leaf, WEIGHT)
    read.learn([whole[:3]])
    with read, torch.no_grad():
        torch.testing.assert_close(functional.linear(leaf, WEIGHT)[:3], whole[:3].detach())


def test_products_with_weights_that_are_unpacked_for_each_are_computed_whole():
    read, leaf = ReadColumns(), GIVEN.clone().requires_grad_()
    with read:
        whole = leaf * WEIGHT[0]  # no product that is watched
    read.learn([whole])
    with read:
        torch.testing.assert_close(functional.linear(GIVEN, WEIGHT), GIVEN @ WEIGHT.T)


def test_products_that_were_not_met_are_computed_whole():
    """The first product does not follow from the input, the second has another shape later."""
    read, leaf = ReadColumns(), GIVEN.clone().requires_grad_()
    with read:
        functional.linear(GIVEN, WEIGHT)
        whole = functional.linear(leaf, WEIGHT)
    read.learn([whole[..., :3]])
    with read:
        for x in (GIVEN, GIVEN[:, :2], GIVEN[0]):
            torch.testing.assert_close(functional.linear(x, WEIGHT), x @ WEIGHT.T)
