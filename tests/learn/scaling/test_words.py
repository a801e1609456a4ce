"""Estimates as text, no digit that its error does not allow, and sentences made of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnviz.learn.scaling.records import Estimate, ScalingReport
from attnviz.learn.scaling.words import error_digits, measured, plain, seen, whole


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (512.534, 1.3576, "512.5 ± 1.4"),
        (64.0019, 0.2142, "64.0 ± 0.2"),
        (0.99959, 0.0033, "1.000 ± 0.003"),
        (0.0944, 0.0018, "0.0944 ± 0.0018"),
        (0.5, 1e-9, "0.5000 ± 0.0000"),
        (4097.2, 31.0, "4097 ± 31"),
        (0.25, 0.0, "0.250"),
        (8.6913, None, "8.691"),
    ],
)
def test_measured(value: float, error: float | None, shown: str) -> None:
    assert measured("largest_weight", Estimate(value, error)) == shown


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.5586, 0.0063, "55.9 ± 0.6%"),
        (0.0, 0.0, "0%"),
        (1.0, 0.0, "100%"),
        (0.5, 0.0, "50.00%"),
        (0.25, None, "25.0%"),
    ],
)
def test_measured_shares(value: float, error: float | None, shown: str) -> None:
    assert measured("queries_above", Estimate(value, error)) == shown


@pytest.mark.parametrize(
    ("error", "digits"), [(0.19, 2), (0.2, 1), (1.3, 1), (2.0, 0), (300.0, 0), (1e-9, 4)]
)
def test_error_digits(error: float, digits: int) -> None:
    assert error_digits(error) == digits


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (2e-5, "2e-05"),
        (0.886, "0.886"),
        (8.0834, "8.083"),
        (512.53, "512.5"),
        (4097.3, "4,097"),
        (1e7, "10,000,000"),
    ],
)
def test_plain(value: float, shown: str) -> None:
    assert plain(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(64.0, "64"), (0.25, "0.250"), (1e4, "10,000")])
def test_whole(value: float, shown: str) -> None:
    assert whole(value) == shown


def changed(report: ScalingReport, place: int, name: str, estimate: Estimate) -> ScalingReport:
    cases = list(report.cases)
    plain = cases[place].plain
    measures = {**plain.measures, name: estimate}
    cases[place] = replace(cases[place], plain=replace(plain, measures=measures))
    return replace(report, cases=tuple(cases))


def test_what_is_said_follows_from_the_numbers(random_report: ScalingReport) -> None:
    said = seen(random_report)
    assert [text.partition(":")[0] for text in said] == ["Result", "Theory"]
    assert "the score variance rises from" in said[0]
    off = changed(random_report, 2, "score_variance", Estimate(4.0, 0.1))
    assert "falls from" in seen(off)[0]
    assert "at most 5080.0 SE" in seen(off)[1]
    near = changed(random_report, 2, "score_variance", Estimate(8.0, 9.0))
    assert "no significant difference" in seen(near)[0]
