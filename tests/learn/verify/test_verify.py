"""``attnviz verify``: screens, JSON, files, exit codes; the own attention, and models."""

import csv
import importlib.util
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnviz.attention import functional, module
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.errors import UsageError
from attnviz.learn.verify import verify
from attnviz.learn.verify.report import Sizes, verdict
from attnviz.learn.verify.request import VerifyRequest
from attnviz.learn.verify.verify import KERAS, NAIVE, attention_cases, compared_case, verify_own

from ...command_line import json_of

CASES = ("self", "cross", "causal", "padding", "grouped")

document = json_of("verify")
SIZES = Sizes(12, 6, 2, 5, 7, 2, 0)


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
    assert all(f"FAIL  {case} " in result.out for case in CASES)
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


def compared(sizes=SIZES, dtype="float32"):
    return [number for case in attention_cases(sizes, dtype) for number in compared_case(case)]


def failed(numbers):
    return {(one.case, one.check, one.against) for one in numbers if not one.passed}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_pair_of_every_case_passes(dtype):
    request = VerifyRequest(d_model=12, heads=6, kv_heads=2, seq=5, keras=False)
    report = verify_own(request, dtype)
    *made, (skipped,) = report.checks
    assert [verdict(check) for check in made] == ["pass"] * 5 * 7
    for case in CASES:
        pairs = [(check[0].check, check[0].against) for check in made if check[0].case == case]
        assert pairs == [
            ("NumPy", NAIVE),
            ("torch", NAIVE),
            ("fused", NAIVE),
            ("torch", "NumPy"),
            ("torch", "torch.nn.MultiheadAttention"),
            ("torch", "F.scaled_dot_product_attention"),
            ("torch", "transformers.BartAttention"),
        ]
    for check in made:
        names = [number.number for number in check]
        assert names == (["outputs"] if check[0].check == "fused" else ["outputs", "weights"])
    assert (skipped.check, skipped.skipped) == (KERAS, "left out by --no-keras")


@pytest.mark.parametrize(
    ("d_model", "heads", "kv_heads", "tokens"),
    [(1, 1, None, 2), (2, 2, 1, 2), (10, 5, 1, 3), (46, 2, 1, 13), (6, 6, 3, 41)],
)
def test_no_rounding_ever_fails(d_model, heads, kv_heads, tokens):
    """At most a third of the tolerance, for all kinds of sizes: and so no false alarm."""
    for seed, dtype in enumerate(("float32", "float64")):
        for number in compared(Sizes(d_model, heads, kv_heads, tokens, tokens + 4, 2, seed), dtype):
            assert number.difference <= number.allowed / 3, (number, seed)


def test_visible_is_what_the_words_say():
    cases = {case.name: case for case in attention_cases(SIZES, "float32")}
    assert cases["self"].visible.all()
    assert cases["cross"].visible.shape == (2, 5, 7)
    np.testing.assert_array_equal(cases["causal"].visible[1], np.tri(5) > 0)
    assert cases["padding"].visible[0].all()
    np.testing.assert_array_equal(
        cases["padding"].visible[1], np.broadcast_to(np.arange(5) < 3, (5, 5))
    )
    assert [cases[name].attention.shape.kv_heads for name in CASES] == [6, 6, 6, 6, 2]


def test_one_head_has_nothing_to_share():
    report = verify_own(VerifyRequest(d_model=4, heads=1, seq=5, keras=False))
    assert not report.count("fail")
    (grouped,) = [number for number in report.numbers if number.case == "grouped"]
    assert grouped.skipped == "1 head cannot share key/value heads: give --heads 2 or more"


def test_large_sizes_leave_the_loop_out(monkeypatch):
    monkeypatch.setattr(verify, "_MOST_LOOPED", 100)
    loops = [number for number in compared() if number.against == NAIVE]
    assert len(loops) == 5
    assert all("too many numbers" in str(number.skipped) for number in loops)


def _scaled_wrongly(monkeypatch):
    right = functional.attention_scores
    monkeypatch.setattr(
        functional,
        "attention_scores",
        lambda query, key, scale=None: right(query, key, scale) * 1.001,
    )


def _mask_off_by_one(monkeypatch):
    def shifted(queries, keys, like, window=None):
        return functional.causal_mask(queries, keys + 1, like, window)[:, :keys]

    for name in ("attnviz.attention.module", "attnviz.attention.numpy_attention"):
        monkeypatch.setattr(f"{name}.causal_mask", shifted)


def _heads_shared_wrongly(monkeypatch):
    def tiled(x, groups):
        xp = functional.namespace(x)
        return x if groups == 1 else xp.concat([x] * groups, axis=-3)

    monkeypatch.setattr("attnviz.attention.shape.repeat_kv_heads", tiled)


def _fused_differs(monkeypatch):
    right = module.fused_attention
    monkeypatch.setattr(
        "attnviz.attention.module.fused_attention",
        lambda *given, **options: right(*given, **options) * 1.0001,
    )


def _padding_is_seen(monkeypatch):
    monkeypatch.setattr(verify, "padding_mask", lambda visible: visible[:, None, None, :] | True)


def _a_weight_changes(monkeypatch):
    right = verify.MultiHeadAttention.load_state_dict

    def load(self, state):
        found = right(self, state)
        with torch.no_grad():
            self.value_projection.weight[0, 0] += 0.01
        return found

    monkeypatch.setattr(verify.MultiHeadAttention, "load_state_dict", load)


@pytest.mark.parametrize(
    ("fault", "cases", "name"),
    [
        (_scaled_wrongly, set(CASES), "NumPy"),
        (_scaled_wrongly, set(CASES), "torch"),
        (_mask_off_by_one, {"causal"}, "NumPy"),
        (_heads_shared_wrongly, {"grouped"}, "torch"),
        (_fused_differs, set(CASES), "fused"),
        (_padding_is_seen, {"padding"}, "torch"),
        (_a_weight_changes, set(CASES), "torch"),
    ],
)
def test_a_fault_fails_where_it_is(fault, cases, name, monkeypatch):
    fault(monkeypatch)
    found = failed(compared())
    assert {case for case, ours, against in found if (ours, against) == (name, NAIVE)} == cases
    assert {case for case, _, _ in found} == cases


def test_keras_that_is_missing(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *to: None if name == "keras" else find(name, *to)
    )
    request = VerifyRequest(d_model=4, heads=2, seq=3)
    report = verify_own(request)
    skipped = report.numbers[-1]
    assert (skipped.case, skipped.check) == ("", KERAS)
    assert skipped.skipped == "not installed, skipped"
    assert not report.count("fail")
    with pytest.raises(UsageError, match="--keras was asked for and Keras is not installed"):
        verify_own(replace(request, keras=True))


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs Keras")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_keras_agrees(dtype, monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    request = VerifyRequest(d_model=12, heads=6, kv_heads=2, seq=5, keras=True)
    report = verify_own(request, dtype)
    named = {one.case: one.against for one in report.numbers if one.against.startswith("keras")}
    assert named == dict.fromkeys(CASES[:4], KERAS) | {
        "grouped": "keras.layers.GroupQueryAttention"
    }
    assert not report.count("fail")
    assert "keras" in report.versions
