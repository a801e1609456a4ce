"""Models of a sweep: equal but for the heads, the same on every run, measured on other data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnviz.errors import UnsupportedError
from attnviz.learn.sweep import sweep
from attnviz.learn.sweep.report import SweepModel
from attnviz.learn.sweep.sweep import HeadsTraining, SweepPlan, best_heads
from attnviz.learn.sweep.tasks import Induction, Majority, back

CPU = torch.device("cpu")


def plan(**changes: object) -> SweepPlan:
    settings = {
        "task": Induction(5, 1, (2, 3), 11),
        "heads": (1, 2, 4),
        "seeds": (3, 4),
        "d_model": 16,
        "steps": 40,
        "batch": 7,
        "held_out": 61,
    }
    return SweepPlan(**{**settings, **changes})  # type: ignore[arg-type]


def trained(wanted: SweepPlan, heads: int = 2, seed: int = 3) -> SweepModel:
    training = HeadsTraining(wanted, heads, seed, CPU)
    for _ in training.steps():
        pass
    return training.measured(wanted.measured_on())


def test_first_weights_differ_by_nothing_but_the_cut() -> None:
    wanted = plan()
    states = [HeadsTraining(wanted, heads, 3, CPU).model.state_dict() for heads in wanted.heads]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)
    other = HeadsTraining(wanted, 1, 4, CPU).model.state_dict()
    assert not torch.equal(other["lm_head.weight"], states[0]["lm_head.weight"])
    widths = [wanted.config(heads).head_dim for heads in wanted.heads]
    assert widths == [16, 8, 4]


def test_batches_do_not_know_of_heads_and_are_never_the_held_out_ones() -> None:
    wanted = plan()
    assert (wanted.draw_batch(3, 5).ids == wanted.draw_batch(3, 5).ids).all()
    assert (wanted.draw_batch(3, 5).ids != wanted.draw_batch(3, 6).ids).any()
    assert (wanted.draw_batch(3, 5).ids != wanted.draw_batch(4, 5).ids).any()
    assert (wanted.measured_on().ids == plan(heads=(8,)).measured_on().ids).all()
    assert (wanted.measured_on().ids[:7] != wanted.draw_batch(3, 0).ids).any()


def test_a_model_is_the_same_on_every_run_and_learns() -> None:
    wanted = plan()
    one, again = trained(wanted), trained(wanted)
    assert [point.loss for point in one.points] == [point.loss for point in again.points]
    assert (one.loss, one.accuracy, one.patterns) == (again.loss, again.accuracy, again.patterns)
    assert one.points[-1].loss < one.points[0].loss - 0.3
    assert one.step_seconds > 0
    assert [point.step for point in one.points] == list(range(1, 41))
    assert one.points[-1].tokens == 40 * 7 * 11


def test_loss_and_accuracy_by_hand() -> None:
    wanted = plan(steps=3, task=Majority(3, (2, 5)), held_out=150)
    training = HeadsTraining(wanted, 2, 3, CPU)
    for _ in training.steps():
        pass
    samples = wanted.measured_on()
    found = training.measured(samples)
    ids = torch.from_numpy(samples.ids)
    with torch.inference_mode():
        shares = functional.softmax(training.model(ids[:, :-1]).double(), -1).numpy()
    losses, right = [], []
    for row, place in zip(*np.nonzero(samples.counted), strict=True):
        answer = samples.ids[row, place + 1]
        losses.append(-np.log(shares[row, place, answer]))
        right.append(shares[row, place].argmax() == answer)
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.accuracy == pytest.approx(np.mean(right))


def test_the_best_head_is_the_one_of_the_captured_weights() -> None:
    wanted = plan()
    training = HeadsTraining(wanted, 4, 3, CPU)
    samples = wanted.measured_on()
    (found,) = best_heads(training.model, (back(1),), samples)
    seen = []
    for layer in training.model.layers:
        layer.self_attn.weights_point.register_forward_hook(
            lambda point, given, weights: seen.append(weights.numpy())
        )
    with torch.inference_mode():
        training.model(torch.from_numpy(samples.ids[:64, :-1]))
    scores = [np.diagonal(weights, -1, 2, 3).mean((0, 2)) for weights in seen]
    assert found.score == pytest.approx(np.max(scores))
    assert scores[found.layer][found.head] == pytest.approx(found.score)
    assert found.even == pytest.approx(np.mean([1 / (i + 1) for i in range(1, 11)]))


def test_no_hook_stays_and_what_is_not_shown_is_left_out() -> None:
    training = HeadsTraining(plan(), 2, 3, CPU)
    best_heads(training.model, (back(1),), plan().measured_on())
    assert not any(layer.self_attn.weights_point.watched for layer in training.model.layers)
    wanted = plan(steps=1)
    model = HeadsTraining(wanted, 2, 3, CPU).model
    assert best_heads(model, (back(11),), wanted.measured_on()) == ()


def test_a_loss_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "take_step", lambda *given, **named: torch.tensor(float("nan")))
    with pytest.raises(UnsupportedError, match="no longer finite after step 1 of seed 3"):
        trained(plan())
