"""``attnviz verify``: screens, JSON, files, exit codes; the own attention, and models."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from attnviz.attention.numpy_attention import NumpyAttention

CASES = ["self", "cross", "causal", "padding", "grouped"]


@pytest.fixture
def document(run):
    """The JSON object of ``attnviz verify ARGUMENTS --json``."""
    return lambda *arguments: run("verify", *arguments, "--json").document


def _break_the_own_attention(monkeypatch):
    """One number of one weight is off, in NumPy alone."""
    right = NumpyAttention.joined

    def joined(self, outputs):
        weight = self.output_weight.copy()
        weight[0, 0] += 0.01
        return right(replace(self, output_weight=weight), outputs)

    monkeypatch.setattr(NumpyAttention, "joined", joined)


def test_a_fault_fails_with_exit_1_and_everything_is_shown(run, monkeypatch, tmp_path):
    _break_the_own_attention(monkeypatch)
    result = run("verify", "--no-keras", "--save", "a.csv")
    assert result.code == 1
    for row in (
        "FAIL  NumPy    vs naive loop",
        "FAIL  torch    vs NumPy",
        "PASS  torch    vs n",
    ):
        assert len(re.findall(f"^{row}", result.out, re.MULTILINE)) == 1, row
    assert [case for case in CASES if f"FAIL  {case} " in result.out] == CASES
    assert "10 of 36 checks fail, 25 pass, 1 skipped; worst error" in result.out
    *saved, line = result.err.splitlines()
    assert saved == ["saved a.csv"]
    assert line.startswith(
        "attnviz: 10 of 36 checks failed: self: NumPy against naive loop (outputs "
    )
    assert "and 7 more" in line
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert {row["check"] for row in rows if row["verdict"] == "fail"} == {"NumPy", "torch"}
    result = run("verify", "--no-keras", "--json")
    assert (result.code, result.err.count("\n")) == (1, 1)
    found = json.loads(result.out)
    assert (found["passed"], found["failures"]) == (False, 10)


def test_steps_can_be_followed_on_paper(document):
    """Every step computed again from the numbers printed for the one before."""
    found = document("--no-keras", "--steps")
    sizes = found["sizes"]
    assert (sizes["tokens"], sizes["d_model"], sizes["heads"]) == (3, 4, 2)
    assert found["causal"] is True
    steps = {step["name"]: step for step in found["steps"]}

    def values(name, place=0, kind="found"):
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
