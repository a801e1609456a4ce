"""The steps: shapes, whole numbers, and the arithmetic done again from what is shown."""

import numpy as np

from attnviz.learn.verify.report import Sizes, verdict
from attnviz.learn.verify.verify import attention_steps, steps_check

NAMES = (
    *("input", "queries", "keys", "values", "split into heads", "scores", "scaled", "masked"),
    *("weights", "mixed", "merged", "written", "output"),
)


def steps_of(tokens=3, d_model=4, heads=2, kv_heads=None, seed=0):
    sizes = Sizes(d_model, heads, kv_heads, tokens, tokens + 4, 2, seed)
    return sizes, {step.name: step for step in attention_steps(sizes, "float64", True)}


def test_shared_heads_have_a_step_of_their_own():
    sizes, steps = steps_of(heads=4, d_model=8, kv_heads=2)
    assert tuple(steps) == (*NAMES[:5], "shared", *NAMES[5:])
    assert [part.shape for part in steps["split into heads"].results.values()] == [
        *((4, 3, 2), (2, 3, 2), (2, 3, 2))
    ]
    key, value = steps["shared"].results.values()
    assert key.shape == value.shape == (4, 3, 2)
    np.testing.assert_array_equal(key[0], key[1])
    assert verdict([*steps_check(sizes, "float64", True, [*steps.values()])]) == "pass"


def test_what_heads_write_behind_the_projection_adds_up_to_the_output():
    _, steps = steps_of(heads=4, d_model=8, kv_heads=2)
    (weight,) = steps["output"].given.values()  # (heads × head_dim, d_model)
    for head, mixed in enumerate(steps["mixed"].result):
        own = weight[head * mixed.shape[1] : (head + 1) * mixed.shape[1]]
        np.testing.assert_allclose(steps["written"].result[head], mixed @ own)
    np.testing.assert_allclose(steps["written"].result.sum(0), steps["output"].result)


def test_a_wrong_step_is_found():
    sizes, steps = steps_of()
    steps["output"].result[0, 0] += 0.001
    numbers = steps_check(sizes, "float64", True, [*steps.values()])
    assert [number.passed for number in numbers] == [False, True]
