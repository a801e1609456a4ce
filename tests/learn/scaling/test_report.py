"""A report of scaling: its bins, shares and names, and every number of it in JSON and CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import pairwise

import pytest

from attnviz.draw.files import CsvTable
from attnviz.learn.scaling.report import (
    BIN_EDGES,
    MEASURES,
    Estimate,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
    plain,
)
from attnviz.learn.scaling.scaling import model_scaling, random_scaling
from attnviz.learn.scaling.screen import written
from attnviz.models.own import OwnAttention

COUNTS = (3, *([0] * (len(BIN_EDGES) - 3)), 1)


def side(scale: float = 1.0) -> ScaledSoftmax:
    return ScaledSoftmax(scale, {name: Estimate(0.5) for name in MEASURES}, COUNTS, 8.0)


def case(d_k: int = 8, **changes: int) -> ScalingCase:
    return ScalingCase(d_k, side(), side(0.5), queries=2, weights=4, **changes)


def test_bins_shares_and_names() -> None:
    assert (BIN_EDGES[0], BIN_EDGES[1], BIN_EDGES[-1]) == (0.0, 1e-8, 1.0)
    assert len(BIN_EDGES) == 34
    for low, high in pairwise(BIN_EDGES[1:]):
        assert high / low == pytest.approx(10**0.25)
    assert side().shares()[0] == 0.75
    assert sum(side().shares()) == 1
    report = ScalingReport((case(),), seed=0, keys=2, index_base=1)
    assert report.name(case()) == "d_k 8"
    assert report.name(case(layer=2)) == "layer 3"
    assert report.name(case(layer=2, head=0)) == "L3H1"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the measures"):
        replace(side(), measures={"score_variance": Estimate(1.0)})
    with pytest.raises(ValueError, match="expected 33 bins, got 2"):
        replace(side(), histogram=(3, 1))
    with pytest.raises(ValueError, match="expected 5 weights in a histogram, got 4"):
        replace(case(), weights=5)
    with pytest.raises(ValueError, match="at least one case"):
        ScalingReport((), seed=0, keys=2)
    with pytest.raises(ValueError, match="in order, each once"):
        ScalingReport((case(8), case(8)), seed=0, keys=2)


REPORTS = ("random", "model")


@pytest.fixture(scope="module")
def reports() -> dict[str, ScalingReport]:
    model = OwnAttention(30, 5, causal=True)
    return {
        "random": random_scaling([2, 7], seq=5, samples=3),
        "model": model_scaling(model, model.encode("a b <c> a"), by_head=True),
    }


@pytest.mark.parametrize("kind", REPORTS)
def test_json(kind: str, reports: dict[str, ScalingReport]) -> None:
    report = reports[kind]
    document = report.to_dict()
    assert list(document)[:2] == ["schema", "model"]
    assert document["schema"] == "attnviz.scaling/1"
    assert document["source"] == kind
    assert (document["model"] is None) == (kind == "random")
    assert document["bin_edges"] == list(BIN_EDGES)
    for entry, case in zip(document["cases"], report.cases, strict=True):
        assert (entry["d_k"], entry["layer"], entry["head"]) == (case.d_k, case.layer, case.head)
        for name, side in (("without_scale", case.plain), ("with_scale", case.scaled)):
            found = entry[name]
            assert sum(found["histogram"]) == entry["weights"]
            for measure in MEASURES:
                assert found[measure]["value"] == side.measures[measure].value
                assert (found[measure]["error"] is None) == (kind == "model")


@pytest.mark.parametrize("kind", REPORTS)
def test_csv(kind: str, reports: dict[str, ScalingReport]) -> None:
    report = reports[kind]
    stream = io.StringIO()
    CsvTable(stream).writerows(report.rows())
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
    assert [*rows[0]][5:9] == ["measure", "value", "standard_error", "expected"]
    assert len(rows) == len(report.cases) * 2 * (len(MEASURES) + len(BIN_EDGES) - 1)
    first = rows[0]
    assert (first["side"], first["measure"]) == ("without", "score_variance")
    assert float(first["value"]) == report.cases[0].plain.measures["score_variance"].value
    assert float(first["expected"]) == report.cases[0].d_k
    assert (first["standard_error"] == "") == (kind == "model")
    assert (first["layer"], first["head"]) == (("", "") if kind == "random" else ("0", "0"))
    binned = [row for row in rows if row["measure"] == "weights_in_bin"]
    assert sum(int(row["value"]) for row in binned) == 2 * sum(c.weights for c in report.cases)
    assert float(binned[0]["bin_to"]) == 1e-8


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (512.534, 1.3576, "512.5 ± 1.4"),
        (64.0019, 0.2142, "64.0 ± 0.2"),
        (0.99959, 0.0033, "1.000 ± 0.003"),
        (0.0944, 0.0018, "0.0944 ± 0.0018"),
        (0.5, 1e-9, "0.5000 ± 0.0000"),
        (8.6913, None, "8.691"),
    ],
)
def test_measured(value: float, error: float | None, shown: str) -> None:
    assert written("largest_weight", Estimate(value, error)) == shown


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
    assert written("queries_above", Estimate(value, error)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (2e-5, "2e-05"),
        (0.886, "0.886"),
        (512.53, "512.5"),
        (4097.3, "4,097"),
        (1e7, "10,000,000"),
    ],
)
def test_plain(value: float, shown: str) -> None:
    assert plain(value) == shown


def changed(report: ScalingReport, place: int, name: str, estimate: Estimate) -> ScalingReport:
    cases = list(report.cases)
    plain = cases[place].plain
    measures = {**plain.measures, name: estimate}
    cases[place] = replace(cases[place], plain=replace(plain, measures=measures))
    return replace(report, cases=tuple(cases))


def test_what_is_said_follows_from_the_numbers(random_report: ScalingReport) -> None:
    said = random_report.seen
    assert [text.partition(":")[0] for text in said] == ["Result", "Theory"]
    assert "the score variance rises from" in said[0]
    off = changed(random_report, 2, "score_variance", Estimate(4.0, 0.1))
    assert "falls from" in off.seen[0]
    assert "at most 5080.0 SE" in off.seen[1]
    near = changed(random_report, 2, "score_variance", Estimate(8.0, 9.0))
    assert "no significant difference" in near.seen[0]
