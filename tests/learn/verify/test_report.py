"""The records of ``attnviz verify``: tolerances, verdicts, what is refused."""

from __future__ import annotations

import math

import pytest

from attnviz.learn.verify.report import (
    Check,
    ComparedNumber,
    Tolerance,
    VerifyReport,
)

EXACT = Tolerance()


def test_a_tolerance_by_hand() -> None:
    """4 · 2⁻²³ · √9 · 2."""
    assert Tolerance(2.0**-23, 9, 2.0).value == 24 * 2.0**-23
    assert EXACT.value == 0


@pytest.mark.parametrize("fields", [(-1e-7, 1, 1.0), (1e-7, -1, 1.0), (1e-7, 1, math.inf)])
def test_no_tolerance_is_endless(fields: tuple[float, int, float]) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        Tolerance(*fields)
    with pytest.raises(ValueError, match="finite numbers"):
        Tolerance(1e-7, 1, math.nan)


@pytest.mark.parametrize(
    ("difference", "passed"),
    [(0.0, True), (24e-7, True), (25e-7, False), (math.inf, False), (math.nan, False)],
)
def test_what_passes(difference: float, passed: bool) -> None:
    measure = ComparedNumber("outputs", difference, Tolerance(2e-7, 9, 1.0))
    assert measure.tolerance.value == pytest.approx(24e-7)
    assert measure.passed is passed


def test_verdicts() -> None:
    good, bad = (ComparedNumber("outputs", number, EXACT) for number in (0.0, 1.0))
    assert Check("", "a", measures=(good,)).verdict == "pass"
    assert Check("", "a", measures=(good, bad)).verdict == "fail"
    assert Check("", "a", skipped="no").verdict == "skipped"
    for measures, skipped in (((), None), ((good,), "no")):
        with pytest.raises(ValueError, match="measures, or a reason"):
            Check("", "a", measures=measures, skipped=skipped)
    checks = (Check("", "a", measures=(bad,)), Check("", "b", skipped="no"))
    found = VerifyReport("float32", "float32", 1e-7, checks)
    assert [found.count(verdict) for verdict in ("pass", "fail", "skipped")] == [0, 1, 1]
    assert found.failed == checks[:1]
