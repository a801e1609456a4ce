"""Loss, divergence and flips from hidden states equal those from whole logits in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnviz.engine.device_sizes import sizes
from attnviz.engine.scan import unembedding
from attnviz.engine.scan.unembedding import Unembedding

from ..sizes import set_sizes

VOCABULARY, WIDTH, POSITIONS, REMOVALS = 53, 7, 5, 11

everywhere = pytest.mark.parametrize("backend", ["torch", "own", "numpy"])
"""Torch by weight and bias or by what the model does to its logits, and NumPy."""
WANTED = [3, 52, 0, 17, 9]


def states(size=1.0, change=0.1):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    weight, bias = draw(VOCABULARY, WIDTH) * size, draw(VOCABULARY)
    clean = draw(POSITIONS, WIDTH)
    return weight, bias, clean, clean + change * draw(REMOVALS, POSITIONS, WIDTH)


def opened(backend, weight, bias=None):
    if backend == "numpy":
        return Unembedding(weight.numpy(), None if bias is None else bias.numpy())
    own = backend == "own"
    return Unembedding(weight, bias, (lambda rows: rows @ weight.T + bias) if own else None)


def compared(backend, weight, bias, clean, removed, wanted):
    if backend == "numpy":
        clean, removed = clean.numpy(), removed.numpy()
    return opened(backend, weight, bias).compare(clean, removed, wanted)


def expected(weight, bias, clean, removed, wanted):
    first, second = (
        (rows.double() @ weight.double().T + bias.double()).log_softmax(-1)
        for rows in (clean, removed)
    )
    words = torch.tensor(wanted)[:, None]
    loss = -first.gather(-1, words)[:, 0]
    delta = -second.gather(-1, words.expand(REMOVALS, -1, 1))[..., 0] - loss
    kl = (first.exp() * (first - second)).sum(-1)
    flips = first.argmax(-1) != second.argmax(-1)
    return loss.numpy(), delta.numpy(), kl.numpy(), flips.numpy()


def test_a_gpu_never_compares_more_changes_at_once_than_its_tile_has_rows(monkeypatch):
    set_sizes(monkeypatch, tile=(4, 10))
    weight, bias, clean, removed = states()
    usual = opened("torch", weight, bias)
    gpu = Unembedding(weight, bias, given=replace(sizes("cuda"), tile=(4, 10)))
    for of, most in ((usual, REMOVALS), (gpu, 4)):
        tiles = list(of._tiles(POSITIONS, REMOVALS))
        assert max(which.stop - which.start for _, which in tiles) == most
    found, wanted = (of.compare(clean, removed, [3, -1, 0, 5, 9]) for of in (gpu, usual))
    for name in ("loss", "loss_delta", "kl", "flips"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-5)


def close(found, wanted, near, relative=0.0):
    np.testing.assert_allclose(found, wanted, rtol=relative, atol=near)


@pytest.mark.parametrize("tile", [(512, 2048), (4, 10), (1, 53), (7, 1)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@everywhere
def test_tiles_of_any_size(tile, backend, device, monkeypatch):
    set_sizes(monkeypatch, tile=tile, clean_bytes=12 * VOCABULARY * 2, device=device)
    weight, bias, clean, removed = states()
    found = compared(backend, weight, bias, clean, removed, WANTED)
    loss, delta, kl, flips = expected(weight, bias, clean, removed, WANTED)
    close(found.loss, loss, 1e-5)
    close(found.loss_delta, delta, 1e-5)
    close(found.kl, kl, 1e-5)
    assert (found.flips == flips).all()
    assert flips.any()


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_tiny_divergences_keep_their_digits(backend):
    weight, bias, clean, removed = states(change=1e-5)
    found = compared(backend, weight, bias, clean, removed, WANTED)
    # What float32 hidden states hold, computed without its rounding.
    _, delta, kl, _ = expected(weight, bias, clean, removed, WANTED)
    assert kl.max() < 1e-8
    close(found.kl, kl, 2e-11, 2e-2)
    close(found.loss_delta, delta, 1e-9, 1e-3)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_changes_that_leave_the_range_of_float32_are_computed_anew(backend):
    weight, bias, clean, removed = states(size=40.0, change=3.0)
    assert ((removed - clean) @ weight.T).abs().max() > 200
    found = compared(backend, weight, bias, clean, removed, WANTED)
    _, delta, kl, flips = expected(weight, bias, clean, removed, WANTED)
    close(found.loss_delta, delta, 1e-3, 1e-5)
    close(found.kl, kl, 1e-3, 1e-5)
    assert (found.flips == flips).all()


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_shift_of_all_logits_is_no_change(backend):
    weight, bias, clean, _ = states()
    weight = torch.cat([weight, torch.ones(VOCABULARY, 1)], 1)
    clean = torch.cat([clean, torch.zeros(POSITIONS, 1)], 1)
    moved = clean.repeat(2, 1, 1)
    moved[:, :, -1] = torch.tensor([90.0, -90.0])[:, None]
    found = compared(backend, weight, bias, clean, moved, WANTED)
    assert abs(found.kl).max() < 1e-4
    assert abs(found.loss_delta).max() < 1e-4
    assert not found.flips.any()


@everywhere
def test_no_change_costs_exactly_nothing(backend):
    weight, bias, clean, removed = states()
    removed[3] = clean
    found = compared(backend, weight, bias, clean, removed, WANTED)
    assert not found.kl[3].any()
    assert not found.loss_delta[3].any()
    assert not found.flips[3].any()


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_where_no_token_is_known_there_is_no_loss(backend):
    weight, bias, clean, removed = states()
    found = compared(backend, weight, bias, clean, removed, [3, -1, 0, 17, -1])
    unknown = [False, True, False, False, True]
    assert np.isnan(found.loss).tolist() == unknown
    assert np.isnan(found.loss_delta).tolist() == [unknown] * REMOVALS
    assert not np.isnan(found.kl).any()


@everywhere
def test_the_difference_of_two_logits(backend):
    weight, bias, clean, removed = states()
    rows = (clean[0], removed[:, 0])
    given = [each.numpy() for each in rows] if backend == "numpy" else rows
    before, change = opened(backend, weight, bias).logit_difference(*given, 5, 8)
    logits = torch.cat([clean[:1], removed[:, 0]]).double() @ weight.double().T + bias.double()
    difference = logits[:, 5] - logits[:, 8]
    assert before == pytest.approx(float(difference[0]), abs=1e-5)
    close(change, difference[1:] - difference[0], 1e-5)


def test_half_precision_is_widened():
    weight, bias, clean, removed = (tensor.bfloat16() for tensor in states())
    found = compared("torch", weight, bias, clean, removed, WANTED)
    _, delta, kl, _ = expected(weight, bias, clean, removed, WANTED)
    close(found.loss_delta, delta, 1e-5)
    close(found.kl, kl, 1e-5)


@pytest.mark.parametrize("wide", [True, False])
def test_powers_less_one_equal_those_of_the_standard_library(wide, monkeypatch):
    """Compare exp(x) − 1 near zero and where it is large, with and without wide vectors."""
    monkeypatch.setattr(unembedding, "_in_wide_vectors", lambda: wide)
    sizes = (1e-30, 1e-9, 1e-6, 1e-3, 0.1, 1, 4, 30, 60, 79)
    found = np.array([0.0, *sizes, *(-size for size in sizes), -300.0], np.float32)
    wanted = [math.expm1(value) for value in found.tolist()]
    unembedding._expm1(found)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
