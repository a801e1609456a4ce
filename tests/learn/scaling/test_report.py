"""A report of scaling: its bins and names, and every number of it in JSON and CSV."""

import csv
import io
from dataclasses import replace
from itertools import pairwise

import pytest

from attnviz.draw.files import CsvTable
from attnviz.learn.scaling.report import BIN_EDGES, Estimate
from attnviz.models.own import OwnAttention

from .conftest import drawn, of_model

MEASURES = 7


def test_the_bins():
    assert (BIN_EDGES[0], BIN_EDGES[1], BIN_EDGES[-1]) == (0.0, 1e-8, 1.0)
    assert len(BIN_EDGES) == 34
    for low, high in pairwise(BIN_EDGES[1:]):
        assert high / low == pytest.approx(10**0.25)


def test_names(layer_report, head_report):
    report = replace(layer_report, index_base=1)
    assert report.name(report.cases[0]) == "layer 1"
    assert head_report.name(head_report.cases[2]) == "L1H2" or head_report.index_base == 1
    assert sum(report.cases[0].plain.shares()) == pytest.approx(1)


@pytest.fixture(scope="module")
def reports():
    model = OwnAttention(30, 5, causal=True)
    return {
        "random": drawn(d_k="2,7", seq=5, samples=3),
        "model": of_model(model, "a b <c> a", head=("*",)),
    }


@pytest.mark.parametrize("kind", ["random", "model"])
def test_json_and_csv(kind, reports):
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
            for measure, estimate in side.measures.items():
                assert found[measure]["value"] == estimate.value
                assert (found[measure]["error"] is None) == (kind == "model")
    stream = io.StringIO()
    CsvTable(stream).writerows(report.rows())
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
    assert [*rows[0]][5:9] == ["measure", "value", "standard_error", "expected"]
    assert len(rows) == len(report.cases) * 2 * (MEASURES + len(BIN_EDGES) - 1)
    first = rows[0]
    assert (first["side"], first["measure"]) == ("without", "score_variance")
    assert float(first["value"]) == report.cases[0].plain.measures["score_variance"].value
    assert float(first["expected"]) == report.cases[0].d_k
    assert (first["standard_error"] == "") == (kind == "model")
    assert (first["layer"], first["head"]) == (("", "") if kind == "random" else ("0", "0"))
    binned = [row for row in rows if row["measure"] == "weights_in_bin"]
    assert sum(int(row["value"]) for row in binned) == 2 * sum(c.weights for c in report.cases)
    assert float(binned[0]["bin_to"]) == 1e-8


def test_theory_is_held_against_what_is_measured(random_report, one_report, head_report):
    case = random_report.cases[2]
    measures = {**case.plain.measures, "score_variance": Estimate(4.0, 0.1)}
    off = replace(case, plain=replace(case.plain, measures=measures))
    report = replace(random_report, cases=(*random_report.cases[:2], off))
    assert report.seen == [
        "Theory: the measured variances are within 5080.0 SE of d_k, and of 1 with the scale."
    ]
    assert one_report.seen == head_report.seen == []
