"""``attnviz scaling`` for programs: every number in JSON and CSV."""

from __future__ import annotations

import csv
import io
import json

import pytest

from attnviz.draw.files import CsvTable
from attnviz.learn.scaling.measure import model_scaling, random_scaling
from attnviz.learn.scaling.records import BIN_EDGES, MEASURES, ScalingReport
from attnviz.models.own import OwnAttention

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
    document = json.loads(json.dumps(report.data(), allow_nan=False))
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
