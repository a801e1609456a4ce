"""Loss, divergence and flips from hidden states equal those from whole logits in float64."""

from __future__ import annotations

import pytest
import torch

from attnviz.engine.scan import unembedding as scan_unembedding
from attnviz.engine.scan.unembedding import Unembedding

VOCABULARY, WIDTH, POSITIONS, REMOVALS = 53, 7, 5, 11


def states(size=1.0, change=0.1):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    weight, bias = draw(VOCABULARY, WIDTH) * size, draw(VOCABULARY)
    clean = draw(POSITIONS, WIDTH)
    return weight, bias, clean, clean + change * draw(REMOVALS, POSITIONS, WIDTH)


def expected(weight, bias, clean, removed, wanted):
    first, second = (
        (rows.double() @ weight.double().T + bias.double()).log_softmax(-1)
        for rows in (clean, removed)
    )
    words = wanted[:, None]
    loss = -first.gather(-1, words)[:, 0]
    delta = -second.gather(-1, words.expand(REMOVALS, -1, 1))[..., 0] - loss
    kl = (first.exp() * (first - second)).sum(-1)
    return loss, delta, kl, first.argmax(-1) != second.argmax(-1)


WANTED = torch.tensor([3, 52, 0, 17, 9])


@pytest.mark.parametrize("tile", [(512, 2048), (4, 10), (1, 53), (7, 1)])
@pytest.mark.parametrize("own", [False, True])
def test_tiles_of_any_size(tile, own, monkeypatch):
    monkeypatch.setattr(scan_unembedding, "_TILE", {"cpu": tile})
    monkeypatch.setattr(scan_unembedding, "_CLEAN_BYTES", 12 * VOCABULARY * 2)
    weight, bias, clean, removed = states()
    unembedding = Unembedding(weight, bias, (lambda rows: rows @ weight.T + bias) if own else None)
    found = unembedding.compare(clean, removed, WANTED)
    loss, delta, kl, flips = expected(weight, bias, clean, removed, WANTED)
    torch.testing.assert_close(found.loss.double(), loss, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.loss_delta.double(), delta, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.kl.double(), kl, rtol=0, atol=1e-5)
    assert torch.equal(found.flips, flips)
    assert flips.any()


def test_tiny_divergences_keep_their_digits():
    weight, bias, clean, removed = states(change=1e-5)
    found = Unembedding(weight, bias).compare(clean, removed, WANTED)
    # What float32 hidden states hold, computed without its rounding.
    _, delta, kl, _ = expected(weight, bias, clean, removed, WANTED)
    assert kl.max() < 1e-8
    torch.testing.assert_close(found.kl.double(), kl, rtol=2e-2, atol=2e-11)
    torch.testing.assert_close(found.loss_delta.double(), delta, rtol=1e-3, atol=1e-9)


def test_changes_that_leave_the_range_of_float32_are_computed_anew():
    weight, bias, clean, removed = states(size=40.0, change=3.0)
    assert ((removed - clean) @ weight.T).abs().max() > 200
    found = Unembedding(weight, bias).compare(clean, removed, WANTED)
    _, delta, kl, flips = expected(weight, bias, clean, removed, WANTED)
    torch.testing.assert_close(found.loss_delta.double(), delta, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(found.kl.double(), kl, rtol=1e-5, atol=1e-3)
    assert torch.equal(found.flips, flips)


def test_a_shift_of_all_logits_is_no_change():
    weight, bias, clean, _ = states()
    weight = torch.cat([weight, torch.ones(VOCABULARY, 1)], 1)
    clean = torch.cat([clean, torch.zeros(POSITIONS, 1)], 1)
    moved = clean.repeat(2, 1, 1)
    moved[:, :, -1] = torch.tensor([90.0, -90.0])[:, None]
    found = Unembedding(weight, bias).compare(clean, moved, WANTED)
    assert found.kl.abs().max() < 1e-4
    assert found.loss_delta.abs().max() < 1e-4
    assert not found.flips.any()


@pytest.mark.parametrize("own", [False, True])
def test_no_change_costs_exactly_nothing(own):
    weight, bias, clean, removed = states()
    removed[3] = clean
    unembedding = Unembedding(weight, bias, (lambda rows: rows @ weight.T + bias) if own else None)
    found = unembedding.compare(clean, removed, WANTED)
    assert not found.kl[3].any()
    assert not found.loss_delta[3].any()
    assert not found.flips[3].any()


def test_where_no_token_is_known_there_is_no_loss():
    weight, bias, clean, removed = states()
    wanted = torch.tensor([3, -1, 0, 17, -1])
    found = Unembedding(weight, bias).compare(clean, removed, wanted)
    unknown = [False, True, False, False, True]
    assert found.loss.isnan().tolist() == unknown
    assert found.loss_delta.isnan().tolist() == [unknown] * REMOVALS
    assert not found.kl.isnan().any()


@pytest.mark.parametrize("own", [False, True])
def test_the_difference_of_two_logits(own):
    weight, bias, clean, removed = states()
    unembedding = Unembedding(weight, bias, (lambda rows: rows @ weight.T + bias) if own else None)
    before, change = unembedding.logit_difference(clean[0], removed[:, 0], 5, 8)
    logits = torch.cat([clean[:1], removed[:, 0]]).double() @ weight.double().T + bias.double()
    difference = logits[:, 5] - logits[:, 8]
    assert before == pytest.approx(float(difference[0]), abs=1e-5)
    torch.testing.assert_close(change.double(), difference[1:] - difference[0], rtol=0, atol=1e-5)


def test_half_precision_is_widened():
    weight, bias, clean, removed = (tensor.bfloat16() for tensor in states())
    found = Unembedding(weight, bias).compare(clean, removed, WANTED)
    _, delta, kl, _ = expected(weight, bias, clean, removed, WANTED)
    torch.testing.assert_close(found.loss_delta.double(), delta, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.kl.double(), kl, rtol=0, atol=1e-5)
