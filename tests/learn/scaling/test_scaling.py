"""``attnviz scaling`` from the command line: random queries and keys, a model's, files, slips."""

import math
import tracemalloc

import numpy as np
import pytest

from attnviz.errors import UnsupportedError
from attnviz.learn.scaling import scaling
from attnviz.learn.scaling.scaling import jacobian_norms, matrix_measures
from attnviz.models import memory
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention

from ...small_models import whole_weights
from .conftest import drawn, of_model

TEXT = "one two three two one four five"


def test_the_seed_decides(run):
    arguments = ("scaling", "--d-k", "5, 3,5", "--seq", "7", "--samples", "3", "--json")
    first, again = run(*arguments).document, run(*arguments).document
    assert first == again
    assert [case["d_k"] for case in first["cases"]] == [3, 5]
    other = run(*arguments, "--seed", "1").document
    assert other["cases"] != first["cases"]
    alone = run("scaling", "--d-k", "3", *arguments[3:]).document
    assert alone["cases"] == first["cases"][:1]


def test_activation_functions_are_those_of_torch(run):
    import torch
    from torch.nn import functional

    found = run("scaling", "--activation", "--json").document["activations"]
    functions = {"ReLU": torch.relu, "GELU": functional.gelu, "SiLU": functional.silu}
    normal = torch.distributions.Normal(0.0, 1.0)
    inputs = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    shares = normal.log_prob(inputs).exp() * 16 / 400_000
    for curve in found:
        x, y = torch.tensor(curve["points"], dtype=torch.float64).T
        own, up = functions.get(curve["name"], functional.silu), curve["up"] or 1.0
        assert y.numpy() == pytest.approx((own(x) * up).numpy(), abs=5e-7)
        if curve["up"] is None:
            values = own(inputs)
            assert curve["nearly"] == pytest.approx(
                float(shares[values.abs() < 0.05].sum()), abs=2e-3
            )
            assert curve["zero"] == pytest.approx(float(shares[values == 0].sum()), abs=2e-3)
        if curve["lowest"]:
            assert curve["lowest"][1] == pytest.approx(float(values.min()), abs=1e-5)
            assert curve["lowest"][0] == pytest.approx(float(inputs[values.argmin()]), abs=2e-3)
    assert [curve["lowest"] is None for curve in found] == [True, False, False, True, True, True]


def test_a_text_that_memory_cannot_hold(refused, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda *_: 1000)
    line = refused(2, "scaling", "--from-model")
    assert "1.00 kB are free: shorten the text" in line


@pytest.mark.parametrize("gap", [30.0, 40.0, 80.0, 200.0])
def test_a_norm_near_zero_keeps_its_digits(gap):
    """Two keys: 2·p₁·p₂, which 1 − p₁ would have lost to rounding from a gap of 37 on."""
    small = math.exp(-gap) / (1 + math.exp(-gap))
    row = np.array([[1 / (1 + math.exp(-gap)), small]])
    assert jacobian_norms(row)[0] == pytest.approx(2 * small * (1 - small), rel=1e-9)


def test_measures_of_a_matrix_by_hand():
    """Two queries that see three keys; the second all but one."""
    scores = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, -np.inf]])
    visible = np.isfinite(scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    found = matrix_measures(np.where(visible, scores, 55.0), weights, visible)
    share = 1 / (1 + math.exp(-9))
    assert found["score_variance"] == pytest.approx(np.var([0, 0, 0, 9, 0], ddof=1))
    assert found["largest_weight"] == pytest.approx((1 / 3 + share) / 2)
    assert found["weights_above"] == pytest.approx(1 / 5)
    assert found["queries_above"] == pytest.approx(1 / 2)
    assert found["queries_vanished"] == pytest.approx(1 / 2)
    entropy = -(share * math.log(share) + (1 - share) * math.log(1 - share)) / math.log(2)
    assert found["normalised_entropy"] == pytest.approx((1 + entropy) / 2)
    norm = (math.sqrt(2) / 3 + 2 * share * (1 - share)) / 2
    assert found["jacobian_norm"] == pytest.approx(norm)


@pytest.fixture(scope="module")
def report():
    return drawn(d_k="64,3,512,16", seq=31, samples=41, seed=5)


def test_variances_are_those_of_theory(report):
    assert [case.d_k for case in report.cases] == [3, 16, 64, 512]
    for case in report.cases:
        for side, expected in ((case.plain, case.d_k), (case.scaled, 1)):
            found = side.measures["score_variance"]
            assert side.expected_variance == pytest.approx(expected)
            assert abs(found.value - expected) < 4 * found.error


def test_one_sample_by_hand():
    (case,) = drawn(d_k="7", seq=5, samples=1, seed=3).cases
    query, key = np.random.default_rng((3, 7)).standard_normal((2, 5, 7))
    scores = query @ key.T
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = case.plain.measures
    assert found["score_variance"].value == pytest.approx(scores.var(ddof=1))
    assert found["largest_weight"].value == pytest.approx(weights.max(1).mean())
    assert all(estimate.error is None for estimate in found.values())
    assert (case.queries, case.weights, sum(case.plain.histogram)) == (5, 25, 25)
    assert case.plain.histogram[-1] == (weights >= 10**-0.25).sum()
    assert case.plain.histogram[0] == (weights < 1e-8).sum()


def test_blocks_and_other_sizes_change_nothing(monkeypatch):
    whole = drawn(d_k="8,3", seq=5, samples=11, seed=1).cases[0].plain
    monkeypatch.setattr(scaling, "_BLOCK_CELLS", 3 * 25)
    part = drawn(d_k="3", seq=5, samples=11, seed=1).cases[0].plain
    for name, left in whole.measures.items():
        assert left.value == pytest.approx(part.measures[name].value)
        assert left.error == pytest.approx(part.measures[name].error)
    assert whole.histogram == part.histogram


def test_memory_is_counted_before_it_is_taken(monkeypatch):
    counted = []
    monkeypatch.setattr(
        scaling, "require_room", lambda what, needed, advice: counted.append(needed)
    )
    tracemalloc.start()
    drawn(d_k="300", seq=199, samples=4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.5 * counted[0] < peak < 1.2 * counted[0]


def loop(weights, causal):
    """Means over queries that see two keys or more, with a Jacobian written out."""
    entropies, largest, norms, above, count = [], [], [], 0, 0
    for query, row in enumerate(weights.astype(float)):
        seen = row[: query + 1] if causal else row
        if len(seen) < 2:
            continue
        entropies.append(-sum(p * math.log(p) for p in seen if p > 0) / math.log(len(seen)))
        largest.append(max(seen))
        norms.append(float(np.linalg.norm(np.diag(seen) - np.outer(seen, seen))))
        above += int((seen > 0.9).sum())
        count += len(seen)
    return {
        "normalised_entropy": float(np.mean(entropies)),
        "largest_weight": float(np.mean(largest)),
        "weights_above": above / count,
        "queries_above": float(np.mean([p > 0.9 for p in largest])),
        "jacobian_norm": float(np.mean(norms)),
        "queries_vanished": float(np.mean([norm < 0.01 for norm in norms])),
    }


@pytest.mark.parametrize("causal", [False, True])
def test_with_the_scale_it_is_what_the_model_does(causal):
    model = OwnAttention(30, 5, causal=causal, seed=1)
    kept = whole_weights(model, model.encode(TEXT))
    report = of_model(model, TEXT, head=("*",))
    assert [report.name(case) for case in report.cases] == [f"L0H{head}" for head in range(5)]
    for head, case in enumerate(report.cases):
        for name, value in loop(kept[0][head], causal).items():
            assert case.scaled.measures[name].value == pytest.approx(value, abs=1e-6), name
            assert case.scaled.measures[name].error is None
        assert case.queries == (6 if causal else 7)
        assert case.weights == (sum(range(2, 8)) if causal else 49)
    (layer,) = of_model(model, TEXT).cases
    for name, found in layer.plain.measures.items():
        mean = np.mean([case.plain.measures[name].value for case in report.cases])
        assert found.value == pytest.approx(mean)
    assert layer.weights == sum(case.weights for case in report.cases)
    assert (layer.heads, layer.head) == (5, None)


def test_without_the_scale_the_scores_are_larger_by_its_inverse():
    """What the bare scores would give, from the weights alone: p^√d_k, made to sum to one."""
    model, text = Bundled(dtype="float64"), "The cat sat on the mat."
    kept = whole_weights(model, model.encode(text))
    report = of_model(model, text, head=("L2H1", "L2H3"), index_base=1)
    assert [report.name(case) for case in report.cases] == ["L2H1", "L2H3"]
    for case in report.cases:
        root = math.sqrt(case.d_k)
        assert case.scaled.scale == pytest.approx(1 / root)
        ratio = case.plain.measures["score_variance"].value / case.d_k
        assert case.scaled.measures["score_variance"].value == pytest.approx(ratio)
        logs = np.log(np.maximum(kept[1][case.head], 1e-300)) * root
        bare = np.exp(logs - logs.max(1, keepdims=True))
        bare /= bare.sum(1, keepdims=True)
        for name, value in loop(bare, causal=True).items():
            assert case.plain.measures[name].value == pytest.approx(value, abs=1e-6), name


def test_a_model_without_a_scale_is_refused():
    with pytest.raises(UnsupportedError, match="does not scale its scores"):
        of_model(OwnAttention(3, 3), TEXT)
