"""Files of ``attnviz scaling``: every number in JSON and CSV, a drawing that is well-formed XML."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnviz.draw.files import save
from attnviz.models.own import OwnAttention
from attnviz.scaling.csv import COLUMNS, write_scaling_csv
from attnviz.scaling.json import scaling_document
from attnviz.scaling.model_scores import model_scaling
from attnviz.scaling.random_scores import random_scaling
from attnviz.scaling.records import BIN_EDGES, MEASURES, ScalingReport
from attnviz.scaling.run import Softmaxed

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
    document = json.loads(json.dumps(scaling_document(report), allow_nan=False))
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
    write_scaling_csv(report, stream)
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
    assert tuple(rows[0]) == COLUMNS
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


@pytest.mark.parametrize("kind", REPORTS)
@pytest.mark.parametrize("ending", [".csv", ".svg", ".html", ".png", ".pdf"])
def test_files(kind: str, ending: str, reports: dict[str, ScalingReport], tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    save(path, Softmaxed(reports[kind], False, ()).files("viridis"))
    content = path.read_bytes()
    if ending == ".png":
        assert content.startswith(b"\x89PNG")
    elif ending == ".svg":
        root = ElementTree.fromstring(content)
        words = "".join(root.itertext())
        assert "without the scale" in words
        assert "variance of the scores" in words
        assert ("theory 2" in words) == (kind == "random")
    elif ending == ".html":
        assert content.startswith(b"<!DOCTYPE html>")
        assert b"http://" not in content.replace(b"http://www.w3.org", b"")
