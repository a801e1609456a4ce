"""``attnviz verify``: screens, JSON, files, exit codes; the own attention, and models."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnviz
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.attention.numpy_stack import NumpyStack

from ...models.test_numpy_checkpoint import made

CASES = ["self", "cross", "causal", "padding", "grouped"]


@pytest.fixture
def document(run: Any) -> Callable[..., Any]:
    """The JSON object of ``attnviz verify ARGUMENTS --json``."""
    return lambda *arguments: run("verify", *arguments, "--json").document


def test_the_first_answer(run: Any) -> None:
    result = run("verify", "--no-keras")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0].startswith(
        "the library's own attention · float32 · d_model 64 · 8 heads"
    )
    rows = [line.split() for line in result.lines if line.startswith("PASS  ")]
    assert [words[1] for words in rows[:5]] == CASES
    assert len(rows) == 5 + 6 + 5  # a case each, then pairs: outputs of six, weights of five
    assert "30 checks pass, 1 skipped, worst error" in result.out
    assert "SKIP  keras    left out by --no-keras" in result.out
    assert max(map(len, result.lines)) <= 80


def _break_the_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of one weight is off, in NumPy alone."""
    right = NumpyAttention.joined

    def joined(self: NumpyAttention, outputs: Any) -> Any:
        weight = self.output_weight.copy()
        weight[0, 0] += 0.01
        return right(replace(self, output_weight=weight), outputs)

    monkeypatch.setattr(NumpyAttention, "joined", joined)


def test_a_fault_fails_with_exit_1_and_everything_is_shown(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _break_the_own_attention(monkeypatch)
    result = run("verify", "--no-keras", "--save", "a.csv")
    assert result.code == 1
    for row in ("FAIL  NumPy  naive loop", "FAIL  torch  NumPy ", "PASS  torch  naive loop"):
        assert len(re.findall(f"^{row}", result.out, re.MULTILINE)) in (1, 2), row
    assert [case for case in CASES if f"FAIL  {case} " in result.out] == CASES
    assert "10 of 31 checks fail, 20 pass, 1 skipped, worst error" in result.out
    *saved, line = result.err.splitlines()
    assert saved == ["saved a.csv"]
    assert line.startswith(
        "attnviz: 10 of 31 checks failed: self: NumPy against naive loop (outputs "
    )
    assert "and 7 more" in line
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert {row["check"] for row in rows if row["verdict"] == "fail"} == {"NumPy", "torch"}
    result = run("verify", "--no-keras", "--json")
    assert (result.code, result.err.count("\n")) == (1, 1)
    found = json.loads(result.out)
    assert (found["passed"], found["failures"]) == (False, 10)


def test_steps_can_be_followed_on_paper(document: Any) -> None:
    """Every step computed again from the numbers printed for the one before."""
    found = document("--no-keras", "--steps")
    sizes = found["sizes"]
    assert (sizes["tokens"], sizes["d_model"], sizes["heads"]) == (3, 4, 2)
    assert found["causal"] is True
    steps = {step["name"]: step for step in found["steps"]}

    def values(name: str, place: int = 0, kind: str = "found") -> np.ndarray:
        return np.array(steps[name][kind][place]["values"], dtype=float)

    x = values("input")
    for name in ("queries", "keys", "values"):
        np.testing.assert_array_equal(values(name), x @ values(name, kind="given"))
    q, k, v = (values("split into heads", place) for place in range(3))
    np.testing.assert_array_equal(np.concatenate(list(q), axis=1), values("queries"))
    scores = values("scores")
    for head in range(2):
        np.testing.assert_array_equal(scores[head], q[head] @ k[head].T)
    scaled, masked = values("scaled"), values("masked")
    np.testing.assert_allclose(scaled, scores / 2**0.5, atol=1e-6)
    assert (np.isnan(masked) == np.triu(np.ones((3, 3)), 1).astype(bool)).all()
    powers = np.exp(np.where(np.isnan(masked), -np.inf, np.round(scaled, 3)))
    weights = values("weights")
    np.testing.assert_allclose(weights, powers / powers.sum(-1, keepdims=True), atol=1e-3)
    shown = np.round(weights, 3)
    for head in range(2):
        np.testing.assert_allclose(values("mixed")[head], shown[head] @ v[head], atol=2e-3)
    merged = np.concatenate(list(np.round(values("mixed"), 3)), axis=1)
    np.testing.assert_allclose(values("merged"), merged, atol=1e-3)
    output = np.round(values("merged"), 3) @ values("output", kind="given")
    np.testing.assert_allclose(values("output"), output, atol=2e-3)


@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.usefixtures("one_thread")
def test_a_directory(document: Any, checkpoint: Any, name: str) -> None:
    found = document("the cat sat on the mat", "--model", str(checkpoint(name)))
    assert found["passed"] is True
    assert [check["verdict"] for check in found["checks"]] == [
        *["pass"] * 8,
        "skipped" if name == "t5" else "pass",
        "pass",
    ]
    assert found["model"]["kv_heads"] == {"gpt2": 3, "llama": 2, "t5": 3}[name]
    assert found["text"] == "the cat sat on the mat"
    assert (found["target"] is not None) == (name == "t5")
    assert len(found["tokens"]) == 1 + (name == "t5")
    for check in found["checks"]:
        assert check["claim"]
        for measure in check["measures"]:
            assert measure["reason"]


@pytest.mark.parametrize(
    ("code", "arguments", "line"),
    [
        (2, ["--d-model", "10", "--heads", "3"], "does not divide into 3 heads"),
        (2, ["--seq", "1"], "Input should be greater than or equal to 2"),
        (2, ["--seq", "9000000"], "these sizes take about"),
        (2, ["--dtype", "bfloat16"], "verified in float32 or float64, got --dtype bfloat16"),
        (2, ["a text"], "a text is for a model to read: add --model tiny"),
        (2, ["--steps", "--model", "tiny"], "--steps is about the library's own attention"),
        (2, ["--d-model", "64", "--model", "tiny"], "add --model mha"),
        (2, ["--model", "tiny", "--target", "a"], "--target is a decoder's text: 'tiny' has one"),
    ],
)
def test_bad_input(refused: Any, code: int, arguments: list[str], line: str) -> None:
    assert line in refused(code, "verify", *arguments)


# The two backends -----------------------------------------------------------------------------


def _backend(document: Any) -> Any:
    (check,) = [check for check in document["checks"] if check["name"] == "NumPy backend"]
    return check


@pytest.mark.usefixtures("one_thread")
def test_the_backends_are_compared(document: Any, tmp_path: Path) -> None:
    """The difference that is told, head by head, is that of the maps that each of them shows."""
    directory = str(made(tmp_path, "mistral"))
    found = document("the cat sat", "--model", directory)
    compared, measures = found["backends"], _backend(found)["measures"]
    assert compared["dtypes"] == {"numpy": "float32", "torch": "float32"}
    assert [(one["layer"], one["head"]) for one in compared["heads"]] == [
        (layer, head) for layer in range(2) for head in range(3)
    ]
    worst = max(compared["heads"], key=lambda one: one["difference"])
    assert 0 < worst["difference"] == measures[1]["difference"] <= measures[1]["tolerance"] <= 1e-5
    assert measures[1]["where"] == f"L{worst['layer']}H{worst['head']}"
    assert measures[0]["difference"] == 0
    shown = [
        attnviz.capture(attnviz.load(directory, backend=one), "the cat sat")
        for one in ("numpy", "torch")
    ]
    for head in compared["heads"]:
        place = (head["layer"], head["head"])
        mine, theirs = (np.asarray(one[place]) for one in shown)
        assert abs(mine.astype(float) - theirs).max() <= head["difference"]


@pytest.mark.usefixtures("one_thread")
def test_a_narrow_dtype_is_allowed_its_own_rounding(document: Any, tmp_path: Path) -> None:
    dtype = "bfloat16"
    directory = made(tmp_path, "bert")
    file = directory / "model.safetensors"
    tensors = {name: held.to(torch.bfloat16) for name, held in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": dtype}))
    found = document("--model", str(directory))
    weights = _backend(found)["measures"][1]
    assert found["backends"]["dtypes"] == {"numpy": "float32", "torch": dtype}
    assert 1e-5 < weights["difference"] < weights["tolerance"] < 40 * weights["epsilon"]
    wide = _backend(document("--model", str(directory), "--dtype", "float32"))["measures"][1]
    assert wide["difference"] <= wide["tolerance"] <= 1e-5


@pytest.mark.usefixtures("one_thread")
def test_a_backend_that_differs_fails(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = NumpyStack.embed
    monkeypatch.setattr(NumpyStack, "embed", lambda self, ids: right(self, ids) * 1.01 + 0.01)
    result = run("verify", "--model", str(made(tmp_path, "gpt2")))
    assert result.code == 1
    assert "FAIL  NumPy backend" in result.out
    assert "1 of 10 checks failed: NumPy backend (weights " in result.err


@pytest.mark.usefixtures("one_thread")
def test_why_the_backends_are_not_compared(run: Any, tmp_path: Path) -> None:
    directory = made(tmp_path, "gpt2")
    left_out = run("verify", "--model", str(directory), "--backend", "torch", "--json").document
    assert (left_out["passed"], left_out["backends"]) == (True, None)
    assert _backend(left_out)["reason"] == "left out by --backend torch"
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"surprise": 1}))
    found = run("verify", "--model", str(directory), "--json").document
    assert _backend(found)["verdict"] == "skipped"
    assert _backend(found)["reason"] == "no description of surprise = 1"
    result = run("verify", "--model", str(directory), "--backend", "numpy")
    assert (result.code, result.err) == (
        5,
        f"attnviz: --backend numpy cannot run '{directory}': no description of surprise = 1; "
        "leave it out\n",
    )
