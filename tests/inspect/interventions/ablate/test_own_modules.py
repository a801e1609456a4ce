"""Heads of a person's own module, ablated under a loss of their own, from Python and as a file."""

import sys

import numpy as np
import pytest
import torch

import attnviz
from attnviz.errors import UsageError

FILE = """
import sys
from dataclasses import dataclass

import torch
from torch import nn

sys.path.insert(0, "the file's own")


@dataclass
class Size:
    words: int = 20


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(Size().words, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        x = self.words(ids)
        return {"out": self.attend(x, x, x)[0]}


def loss(output):
    return output["out"].square().mean((1, 2))


def build(seed=0):
    return Net(), torch.arange(60).view(10, 6) % 20, {"loss": loss}


def reads(text):
    words = text.split()
    return Net(), {"ids": torch.arange(len(words))[None]}, {"tokens": words}


def breaks():
    raise RuntimeError("nothing here")


def forgets():
    return Net()


def fails():
    return Net(), torch.full((1, 2), 99)
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "net.py"
    path.write_text(FILE)
    return path


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def parts(net):
    names = {}
    exec(compile(FILE, str(net), "exec"), names)
    return names


def test_the_loss_without_each_head_is_that_of_a_module_without_it(parts):
    """A head is gone if its columns of the output projection are zero."""
    module, ids, options = parts["build"]()
    found = attnviz.ablate(module, ids, loss=options["loss"])
    with torch.no_grad():
        whole, projection = options["loss"](module(ids)), module.attend.out_proj.weight
        for head in range(2):
            kept = projection.clone()
            projection[:, 4 * head : 4 * head + 4] = 0
            delta = float((options["loss"](module(ids)) - whole).mean())
            projection.copy_(kept)
            effect = found.effects[head]
            np.testing.assert_allclose(effect.value("loss_delta"), delta, rtol=1e-5, atol=1e-9)
            low, high = effect.shown("loss_delta").interval
            assert low <= delta <= high
    assert found.baseline["loss"] == pytest.approx(float(whole.mean()))
    assert "nats" not in str(found)
    assert "batch of" not in str(found)
    mean = attnviz.ablate(module, ids, loss=options["loss"], mode="mean")
    assert mean.mode == "mean"
    assert mean.effects[0].value("loss_delta") != found.effects[0].value("loss_delta")
    one = attnviz.ablate(module, ids, loss=lambda out: options["loss"](out).mean(), head="L0H1")
    assert [row["name"] for row in one.to_dicts()] == ["L0H1"]
    assert one.effects[0].value("loss_delta") == pytest.approx(effect.value("loss_delta"))


def test_without_a_loss_the_change_of_the_output_counts(parts):
    module, ids, _ = parts["build"]()
    found = attnviz.ablate(module, ids, together=True)
    with torch.no_grad():
        moved = module(ids)["out"] - module.attend.out_proj.bias
    assert found.metric == "output_mse"
    assert found.effects[0].value("output_mse") == pytest.approx(float(moved.square().mean()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": None, "at": float("inf")}, "not of finite numbers that can be compared: give a"),
        ({"loss": None, "at": None}, "not of finite numbers that can be compared: give a loss"),
        ({"loss": lambda output: output["out"]}, "one for each text: got the shape"),
        ({"loss": lambda output: float("nan")}, "a finite number, or one for each text: got nan"),
        ({"mode": "resample", "loss": abs}, "only the texts that it is given: take --mode zero"),
        ({"unit": "layer", "loss": abs}, "--unit is for models that read texts"),
        ({"los": None}, "unexpected keyword argument 'los': did you mean loss"),
    ],
)
def test_what_does_not_fit(parts, options, said):
    module, ids, _ = parts["build"]()
    if "at" in options:
        at = options.pop("at")
        module.register_forward_hook(lambda *run: run[2]["out"] * at if at else {})
    with pytest.raises((UsageError, TypeError), match=said):
        attnviz.ablate(module, ids, **options)


def test_a_file_is_a_model_of_heads_and_ablate(net, parts, run):
    model = "--model", f"{net}:build", "--trust-remote-code", "--json"
    module, ids, options = parts["build"]()
    shown = run("heads", *model).document["heads"][1]["weights"]
    np.testing.assert_allclose(shown, attnviz.capture(module, ids)["L0H1"], atol=1e-6)
    reads = "--model", f"{net}:reads", "--trust-remote-code", "--json"
    assert run("heads", "one two", *reads).document["tokens"] == ["one", "two"]
    rows = run("ablate", *model).document["heads"]
    wanted = attnviz.ablate(module, ids, loss=options["loss"]).effects
    assert sys.path[:2].count("the file's own") == 2
    assert str(net.parent) not in sys.path
    losses = [effect.value("loss_delta") for effect in wanted]
    assert [row["loss_delta"] for row in rows] == pytest.approx(losses)


@pytest.mark.parametrize(
    ("function", "more", "code", "said"),
    [
        ("build", [], 2, "is code that would run: add --trust-remote-code"),
        ("build", ["--trust-remote-code", "--pair", "a", "b"], 2, "--pair is for models that read"),
        ("reads", ["--trust-remote-code"], 2, "makes its inputs from a text: give one"),
        ("breaks", ["--trust-remote-code"], 3, "failed: RuntimeError: nothing here"),
        ("missing", ["--trust-remote-code"], 3, "has no attribute 'missing'"),
        ("forgets", ["--trust-remote-code"], 3, "returned Net: expected module, inputs"),
        ("fails", ["--trust-remote-code"], 3, "failed: IndexError"),
    ],
)
def test_a_file_that_does_not_do(net, run, function, more, code, said):
    found = run("heads", "--model", f"{net}:{function}", *more)
    assert (found.code, found.out) == (code, "")
    assert said in found.err
    assert len(found.err.splitlines()) == 1


def test_other_commands_say_so(net, run):
    found = run("lens", "a text", "--model", f"{net}:build")
    assert (found.code, "heads and ablate take those" in found.err) == (2, True)


def test_a_module_keeps_its_own_argument_called_image():
    """A name that attnviz has too is the module's if its value is a tensor, or with a loss."""

    class Seeing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cross = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, words, image=None):
            return self.cross(words, image, image)[0]

    torch.manual_seed(0)
    module, words, image = Seeing().eval(), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    report = attnviz.ablate(
        module, words, image=image, loss=lambda output: output.square().mean(), kind="cross"
    )
    with torch.no_grad():
        by_hand = float(module(words, image).square().mean())
    assert report.baseline["loss"] == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("beside", [{"shard": "1/2"}, {"chat": True}])
def test_options_of_texts_beside_a_picture_are_refused(beside):
    with pytest.raises(UsageError, match="is for texts: leave it out next to image"):
        attnviz.ablate("tiny", image="cat.jpg", **beside)
