"""The records of ``attnviz verify``: tolerances, verdicts, what is refused."""

import math

import pytest

from attnviz.learn.verify.report import Checked, VerifyReport, verdict


def number(difference=0.0, check="a", **fields):
    return Checked("", check, number="outputs", difference=difference, **fields)


def test_a_tolerance_by_hand():
    """4 · 2⁻²³ · √9 · 2."""
    within = {"epsilon": 2.0**-23, "roundings": 9, "largest": 2.0}
    assert number(**within).allowed == 24 * 2.0**-23
    assert number(**within, limit=1e-7).allowed == 1e-7
    assert number().allowed == 0


@pytest.mark.parametrize(
    "fields", [{"epsilon": -1e-7}, {"roundings": -1}, {"largest": math.inf}, {"largest": math.nan}]
)
def test_no_tolerance_is_endless(fields):
    with pytest.raises(ValueError, match="finite numbers"):
        number(**fields)


@pytest.mark.parametrize(
    ("difference", "passed"),
    [(0.0, True), (24e-7, True), (25e-7, False), (math.inf, False), (math.nan, False)],
)
def test_what_passes(difference, passed):
    measured = number(difference, epsilon=2e-7, roundings=9, largest=1.0)
    assert measured.allowed == pytest.approx(24e-7)
    assert measured.passed is passed


def test_verdicts():
    good, bad, skipped = number(0.0), number(1.0), number(check="b", skipped="no")
    assert [verdict(check) for check in ([good], [good, bad], [skipped], [skipped, good])] == [
        *("pass", "fail", "skipped", "pass")
    ]
    report = VerifyReport("float32", "float32", 1e-7, (good, bad, skipped))
    assert report.checks == [[good, bad], [skipped]]
    assert [report.count(outcome) for outcome in ("pass", "fail", "skipped")] == [0, 1, 1]
