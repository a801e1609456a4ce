"""The records of patterns refuse what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.inspect.patterns.records import (
    AnnotatedSentence,
    Example,
    PatternReport,
    PatternScores,
    WordPair,
)
from attnviz.inspect.rollout.records import RolloutReport
from attnviz.records import ModelInfo, Tokens

INFO = ModelInfo("made", None, "None", "float32", 1, 3, 3, 2)
TOKENS = Tokens((1, 2), ("a", "b"), (False, False))


def head(number: int, label: str | None, score: float | None) -> PatternScores:
    return PatternScores(0, number, label, {"previous": score}, {"previous": 0.1})


def report(*heads: PatternScores, thresholds: tuple[str, ...] = ("previous",)) -> PatternReport:
    limits = dict.fromkeys(thresholds, 0.2)
    return PatternReport(INFO, "self", True, "raw", heads, ("previous",), limits, ())


def test_heads_are_ranked_by_a_score() -> None:
    found = report(
        head(0, None, 0.2),
        head(1, "previous", 0.7),
        head(2, None, None),
        head(3, "previous", 0.9),
    )
    assert [entry.head for entry in found.ranked("previous")] == [3, 1, 0]
    assert [entry.head for entry in found.labelled("previous")] == [3, 1]
    assert found.ranked("induction") == ()
    assert found.heads[1].score == 0.7
    assert found.heads[0].score is None


def test_names_begin_where_the_report_says() -> None:
    found = report(head(0, None, 0.1))
    assert found.head_name((0, 2)) == "L0H2"


@pytest.mark.parametrize(
    "make",
    [
        lambda: head(0, "previous", None),
        lambda: report(thresholds=("first",)),
        lambda: Example(TOKENS, TOKENS, np.zeros((2, 3))),
        lambda: RolloutReport(INFO, "self", True, TOKENS, np.zeros((2, 2)), np.zeros((3, 2)), 1),
        lambda: AnnotatedSentence("a b", (range(1), range(2, 3)), (WordPair("x", 0, 2),), 1),
    ],
)
def test_what_cannot_be_is_refused(make) -> None:
    with pytest.raises(ValueError, match=r"expected|stands behind|differ|no such words"):
        make()
