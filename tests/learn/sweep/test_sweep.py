"""``attnviz sweep`` from the outside: screens, documents, files, refusals, Ctrl-C."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnviz.errors import UnsupportedError
from attnviz.learn.sweep import sweep
from attnviz.learn.sweep.request import SweepRequest
from attnviz.learn.sweep.sweep import HeadsTraining, best_heads, held_out
from attnviz.learn.sweep.tasks import TASKS, back
from attnviz.progress import Watch

from ...terminals import interrupted, on_screen, rows

QUICK = ("--steps", "12", "--d-model", "8", "--heads", "1,2", "--seeds", "2")
SAMPLES = held_out(TASKS["majority"], 3)


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("Once upon a time there was a cat, and the cat sat on a mat.\n" * 30)
    return path


def test_the_document(run):
    result = run("sweep", *QUICK, "--json")
    document = result.document
    assert list(document)[:2] == ["schema", "model"]
    assert document["complete"] is True
    order = [(model["seed"], model["heads"]) for model in document["models"]]
    assert order == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert len({model["parameters"] for model in document["models"]}) == 1
    assert [result["head_dim"] for result in document["results"]] == [8, 4]
    for result in document["results"]:
        losses = [one["loss"] for one in document["models"] if one["heads"] == result["heads"]]
        mean = sum(losses) / 2
        assert result["loss"]["mean"] == pytest.approx(mean)
        assert result["loss"]["deviation"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert [point["step"] for point in document["models"][0]["curve"]] == list(range(1, 13))
    assert document["task"]["chance"]["accuracy"] == pytest.approx(1 / 9)


def test_a_text(run, story):
    result = run("sweep", *QUICK[:-1], "1", "--text", str(story), "--width", "120")
    assert result.code == 0, result
    assert "guess the next character of the text, story.txt" in result.out
    assert "by the character before" in result.out
    assert "best possible" not in result.out


@pytest.mark.long
def test_ctrl_c_keeps_what_is_trained(start, tmp_path):
    path = tmp_path / "sweep.json"
    arguments = ("--steps", "60", "--d-model", "8", "--heads", "1,2,4", "--save", str(path))
    child = start("sweep", *arguments, rows=50, columns=100)
    child.expect("held-out loss")
    output = interrupted(child)
    document = json.loads(path.read_text())
    done = len(document["models"])
    assert document["complete"] is False
    assert 1 <= done < 9
    text = "\n".join(rows(on_screen(output, columns=100)))
    assert f"interrupted: {done} of 9 models are trained" in text
    assert "held-out" in text
    assert f"stopped: {done} of 9 models are trained" in text
    assert "attnviz: interrupted" in text


def training(steps=40, heads=2, seed=3):
    request = SweepRequest(d_model=16, steps=steps)
    return HeadsTraining(request, TASKS["majority"], heads, seed, torch.device("cpu"))


def trained(steps=40):
    run = training(steps)
    assert list(run.steps()) == list(range(1, steps + 1))
    return run.measured(SAMPLES)


def test_first_weights_differ_by_nothing_but_the_cut():
    models = [training(heads=heads).model for heads in (1, 2, 4)]
    states = [model.state_dict() for model in models]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)
    other = training(seed=4).model.state_dict()
    assert not torch.equal(other["lm_head.weight"], states[0]["lm_head.weight"])
    assert [model.config.head_dim for model in models] == [16, 8, 4]


def test_batches_do_not_know_of_heads_and_are_never_the_held_out_ones():
    batch = training().batch(5).ids
    assert (batch == training(heads=4).batch(5).ids).all()
    assert (batch != training().batch(6).ids).any()
    assert (batch != training(seed=4).batch(5).ids).any()
    assert (SAMPLES.ids == held_out(TASKS["majority"], 3).ids).all()
    assert (SAMPLES.ids[:32] != training().batch(0).ids).any()


def test_a_model_is_the_same_on_every_run_and_learns():
    one, again = trained(), trained()
    assert [point.loss for point in one.points] == [point.loss for point in again.points]
    assert (one.loss, one.accuracy, one.patterns) == (again.loss, again.accuracy, again.patterns)
    assert one.points[-1].loss < one.points[0].loss - 0.3
    assert one.step_seconds > 0
    assert [point.step for point in one.points] == list(range(1, 41))
    assert one.points[-1].tokens == 40 * 32 * 26


def test_loss_and_accuracy_by_hand():
    run = training(steps=3)
    list(run.steps())
    found = run.measured(SAMPLES)
    ids = torch.from_numpy(SAMPLES.ids)
    with torch.inference_mode():
        shares = functional.softmax(run.model(ids[:, :-1]).double(), -1).numpy()
    losses, right = [], []
    for row, place in zip(*np.nonzero(SAMPLES.counted), strict=True):
        answer = SAMPLES.ids[row, place + 1]
        losses.append(-np.log(shares[row, place, answer]))
        right.append(shares[row, place].argmax() == answer)
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.accuracy == pytest.approx(np.mean(right))


def test_the_best_head_is_the_one_of_the_captured_weights():
    model = training(heads=4).model
    # Nothing stands 26 tokens back in as many tokens: that pattern is left out.
    (found,) = best_heads(model, (back(1), back(26)), SAMPLES)
    assert not any(layer.self_attn.weights_point.watched for layer in model.layers)
    seen = []
    for layer in model.layers:
        layer.self_attn.weights_point.register_forward_hook(
            lambda point, given, weights: seen.append(weights.numpy())
        )
    with torch.inference_mode():
        model(torch.from_numpy(SAMPLES.ids[:64, :-1]))
    scores = [np.diagonal(weights, -1, 2, 3).mean((0, 2)) for weights in seen]
    assert found.score == pytest.approx(np.max(scores))
    assert scores[found.layer][found.head] == pytest.approx(found.score)
    assert found.even == pytest.approx(np.mean([1 / (i + 1) for i in range(1, 26)]))


def test_a_loss_that_is_no_number(monkeypatch):
    monkeypatch.setattr(sweep, "take_step", lambda *given, **named: torch.tensor(float("nan")))
    with pytest.raises(UnsupportedError, match="no longer finite after step 1 of seed 3"):
        trained()


def test_progress_is_told_and_each_model_once():
    class Recorder(Watch):
        def __call__(self, share):
            shares.append(share)

        def found(self, words):
            found.append(words())

    shares, found = [], []
    request = SweepRequest(heads="2", seeds=2, seed=5, task="majority", d_model=8, steps=2)
    report = sweep.sweep(request, advance=Recorder())
    assert shares == [0.25, 0.5, 0.75, 1.0]
    loss = report.models[0].loss
    assert found[0] == f"2 heads, seed 5: held-out loss {loss:.3f}"
    assert len(found) == 2
