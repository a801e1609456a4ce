"""The steps: shapes, whole numbers, and the arithmetic done again from what is shown."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.learn.verify.others import naive_attention
from attnviz.learn.verify.records import ComputationStep, Sizes
from attnviz.learn.verify.steps import attention_steps, steps_check

NAMES = (
    *("input", "queries", "keys", "values", "split into heads", "scores", "scaled", "masked"),
    *("weights", "mixed", "merged", "output"),
)


def steps_of(
    tokens: int = 3, d_model: int = 4, heads: int = 2, kv_heads: int | None = None, seed: int = 0
) -> tuple[Sizes, dict[str, ComputationStep]]:
    sizes = Sizes(d_model, heads, kv_heads, tokens, tokens + 4, 2, seed)
    return sizes, {step.name: step for step in attention_steps(sizes, "float64", True)}


def test_every_step_and_its_shape() -> None:
    _, steps = steps_of(tokens=5, d_model=6, heads=3)
    assert tuple(steps) == NAMES
    shapes = {name: step.found[0].shape for name, step in steps.items()}
    assert shapes == {
        **dict.fromkeys(("input", "queries", "keys", "values", "merged", "output"), (5, 6)),
        **dict.fromkeys(("split into heads", "mixed"), (3, 5, 2)),
        **dict.fromkeys(("scores", "scaled", "masked", "weights"), (3, 5, 5)),
    }


def test_shared_heads_have_a_step_of_their_own() -> None:
    sizes, steps = steps_of(heads=4, d_model=8, kv_heads=2)
    assert tuple(steps) == (*NAMES[:5], "shared", *NAMES[5:])
    assert [matrix.shape for matrix in steps["split into heads"].found] == [
        *((4, 3, 2), (2, 3, 2), (2, 3, 2))
    ]
    key, value = steps["shared"].found
    assert key.shape == value.shape == (4, 3, 2)
    np.testing.assert_array_equal(key.values[0], key.values[1])
    assert steps_check(sizes, "float64", True, tuple(steps.values())).verdict == "pass"


@pytest.mark.parametrize("seed", range(5))
def test_what_leads_to_the_scores_is_whole(seed: int) -> None:
    _, steps = steps_of(seed=seed)
    for name in NAMES[:6]:
        for matrix in (*steps[name].given, *steps[name].found):
            np.testing.assert_array_equal(matrix.values, np.round(matrix.values))
            assert np.abs(matrix.values).max() <= 16


@pytest.mark.parametrize("causal", [False, True])
def test_the_last_step_is_the_naive_loops(causal: bool) -> None:
    sizes = Sizes(6, 3, None, 5, 9, 2, 1)
    steps = attention_steps(sizes, "float64", causal)
    named = {step.name: step for step in steps}
    state = {}
    for name, step in {
        "query": "queries",
        "key": "keys",
        "value": "values",
        "output": "output",
    }.items():
        weight = named[step].given[0].values
        state[f"{name}_projection.weight"] = weight.T
        state[f"{name}_projection.bias"] = np.zeros(weight.shape[1])
    text = named["input"].found[0].values[None]
    visible = np.tri(5)[None] > 0 if causal else np.ones((1, 5, 5), dtype=bool)
    output, weights = naive_attention(state, text, text, visible, heads=3, kv_heads=3)
    np.testing.assert_allclose(named["weights"].found[0].values, weights[0], atol=1e-14)
    np.testing.assert_allclose(named["output"].found[0].values, output[0], atol=1e-14)


def test_a_wrong_step_is_found() -> None:
    sizes, steps = steps_of()
    steps["output"].found[0].values[0, 0] += 0.001
    check = steps_check(sizes, "float64", True, tuple(steps.values()))
    assert [measure.passed for measure in check.measures] == [False, True]
