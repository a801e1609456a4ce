"""Template scores: golden values, and the published formulas written out."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.analysis.measures import uniform_weights
from attnviz.analysis.templates import (
    abs_score,
    duplicate_template,
    induction_template,
    mul_score,
    previous_template,
)

ABCABC = (1, 2, 3, 1, 2, 3)


def test_golden_values() -> None:
    even = uniform_weights(6, 6, True)
    assert mul_score(even, previous_template(6)) == pytest.approx(1.45 / 6)
    assert mul_score(even, duplicate_template(ABCABC)) == pytest.approx(0.616667 / 6, abs=1e-7)
    assert mul_score(even, induction_template(ABCABC)) == pytest.approx(0.616667 / 6, abs=1e-7)


def test_templates_by_hand() -> None:
    assert np.argwhere(previous_template(3)).tolist() == [[1, 0], [2, 1]]
    assert np.argwhere(duplicate_template(ABCABC)).tolist() == [[3, 0], [4, 1], [5, 2]]
    assert np.argwhere(induction_template(ABCABC)).tolist() == [[3, 1], [4, 2], [5, 3]]
    assert np.argwhere(induction_template((1, 1, 1))).tolist() == [[1, 1], [2, 1], [2, 2]]


MATRIX = np.array([[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.125, 0.375]])
TEMPLATE = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(
    ("options", "mul", "absolute"),
    [
        # on the template .25 + .125 of 3; |A − D| is 1 + .75 + .75 + .5 + .875 + .375
        ({}, 0.375 / 3, 1 - 4.25 / 3),
        # without column 0: .125 of 1.25; the differences left are .75 + .875 + .375
        ({"exclude_first": True}, 0.125 / 1.25, 1 - 2 / 3),
        # without the diagonal: .375 of .875; .75 + .5 + .875
        ({"exclude_self": True}, 0.375 / 0.875, 1 - 2.125 / 3),
        # without both: all of .125; .875
        ({"exclude_first": True, "exclude_self": True}, 1, 1 - 0.875 / 3),
    ],
)
def test_both_scores_by_hand(options: dict, mul: float, absolute: float) -> None:
    before = MATRIX.copy()
    assert mul_score(MATRIX, TEMPLATE, **options) == pytest.approx(mul)
    assert abs_score(MATRIX, TEMPLATE, **options) == pytest.approx(1 - round(1 - absolute, 3))
    assert (before == MATRIX).all()


def published(weights: np.ndarray, template: np.ndarray, measure: str, bos: bool, own: bool):
    """The head detector's loop over cells, for one matrix."""
    n = len(weights)

    def skipped(i: int, j: int) -> bool:
        return (bos and j == 0) or (own and i == j)

    cells = [(i, j) for i in range(n) for j in range(n)]
    if measure == "mul":
        kept = {cell: 0.0 if skipped(*cell) else weights[cell] for cell in cells}
        return sum(kept[cell] * template[cell] for cell in cells) / sum(kept.values())
    apart = [0.0 if skipped(*cell) else abs(weights[cell] - template[cell]) for cell in cells]
    return 1 - round(sum(apart) / len(apart) * n, 3)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_both_scores_equal_the_published_formulas(bos: bool, own: bool) -> None:
    generator = np.random.default_rng(4)
    weights = np.tril(generator.random((5, 11, 11)))
    weights /= weights.sum(-1, keepdims=True)
    template = induction_template(generator.integers(0, 4, 11).tolist())
    options = {"exclude_first": bos, "exclude_self": own}
    mul = mul_score(weights, template, **options)
    absolute = abs_score(weights, template, **options)
    for head, matrix in enumerate(weights):
        assert mul[head] == pytest.approx(published(matrix, template, "mul", bos, own))
        assert absolute[head] == pytest.approx(published(matrix, template, "abs", bos, own))


def test_a_perfect_head_scores_one_and_no_weight_is_no_number() -> None:
    assert mul_score(np.eye(4, k=-1), previous_template(4)) == 1
    assert abs_score(np.eye(4, k=-1), previous_template(4)) == 1
    sink = np.zeros((3, 3))
    sink[:, 0] = 1
    assert np.isnan(mul_score(sink, previous_template(3), exclude_first=True))
