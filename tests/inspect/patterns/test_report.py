"""Numbers as short texts, and the records that programs read, which refuse what cannot be."""

import csv
import io
from functools import partial

import numpy as np
import pytest

from attnviz.draw.files import CsvTable
from attnviz.inspect.patterns.report import PatternReport, PatternScores
from attnviz.inspect.patterns.screen import score, short
from attnviz.inspect.rollout.report import RolloutReport
from attnviz.records import ModelInfo, Tokens

from .conftest import pattern_reports

INFO = ModelInfo("made", None, "None", "float32", 1, 3, 3, 2)
TOKENS = Tokens((1, 2), ("a", "b"), (False, False))


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (score, 0.98234, ".982"),
        (score, -0.00001, ".000"),
        (score, -0.125, "-.125"),
        (score, None, "n/m"),
        (short, 0.982, ".98"),
        (short, 0.996, "1.0"),
        (short, -0.12, "-.12"),
        (partial(score, form="+.3f"), 0.862, "+.862"),
        (partial(score, form="+.3f"), -0.012, "-.012"),
        (partial(score, form="+.3f"), -0.0001, ".000"),
    ],
)
def test_short_texts(write, value, text):
    assert write(value) == text


def test_csv():
    report = pattern_reports(control=True, missing=("duplicate",))
    stream = io.StringIO()
    CsvTable(stream).writerows(report.rows())
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
    assert len(rows) == len(report.heads)
    for row, entry in zip(rows, report.heads, strict=True):
        assert (int(row["layer"]), int(row["head"])) == (entry.layer, entry.head)
        assert row["label"] == (entry.label or "")
        assert row["score.duplicate"] == row["base.duplicate"] == ""
        assert float(row["score.self"]) == entry.scores["self"]
        assert float(row["base.self"]) == entry.base_rate["self"]
        assert float(row["random.self"]) == entry.control["self"]
        assert float(row["entropy"]) == entry.statistics["entropy"]
        assert row["margin"] == ("" if entry.margin is None else repr(entry.margin))


def head(number, label, score):
    return PatternScores(0, number, label, {"previous": score}, {"previous": 0.1})


def report(*heads):
    return PatternReport(INFO, "self", True, "raw", heads, ("previous",), ())


def test_heads_are_ranked_by_a_score():
    found = report(
        head(0, None, 0.2), head(1, "previous", 0.7), head(2, None, None), head(3, "previous", 0.9)
    )
    assert [entry.head for entry in found.ranked("previous")] == [3, 1, 0]
    assert [entry.head for entry in found.labelled("previous")] == [3, 1]
    assert found.ranked("induction") == ()
    assert found.heads[1].score == 0.7
    assert found.heads[0].score is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: head(0, "previous", None),
        lambda: RolloutReport(INFO, "self", True, TOKENS, np.zeros((2, 2)), np.zeros((3, 2)), 1),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match=r"expected|stands behind|differ|no such words"):
        make()
