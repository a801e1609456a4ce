"""The files of ``attnviz verify --save``: the same verdicts and numbers in each."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attnviz.draw.files import save, text_file
from attnviz.verify.command import Proof
from attnviz.verify.json import verification_document
from attnviz.verify.records import Verification

Made = Callable[..., Verification]


def test_json_says_it_all(own_found: Made, model_found: Made) -> None:
    document = verification_document(model_found(True))
    assert list(document)[:2] == ["schema", "model"]
    assert document["schema"] == "attnviz.verify/1"
    assert document["passed"] is False
    assert (document["passes"], document["failures"], document["skips"]) == (1, 1, 1)
    assert document["model"]["name"] == "made"
    kept = document["checks"][2]
    assert [measure["difference"] for measure in kept["measures"]] == [None, 0.5]
    assert [measure["passed"] for measure in kept["measures"]] == [False, False]
    own = verification_document(own_found(steps=True))
    assert own["model"] is None
    assert own["passed"] is True
    assert own["steps"][2]["found"][0]["values"][0] == [[0.5, None], [-0.0, 2.0]]
    for one in (document, own):
        for check in one["checks"]:
            assert (check["reason"] is not None) == (check["verdict"] == "skipped")
            for measure in check["measures"]:
                formula = 4 * measure["epsilon"] * measure["roundings"] ** 0.5 * measure["largest"]
                assert measure["tolerance"] == pytest.approx(formula)
        json.dumps(one, allow_nan=False)


@pytest.mark.parametrize("ending", [".json", ".csv", ".svg", ".html", ".png", ".pdf"])
@pytest.mark.parametrize("kind", ["own", "model"])
def test_every_file(
    own_found: Made, model_found: Made, tmp_path: Path, ending: str, kind: str
) -> None:
    found = own_found(True, steps=True) if kind == "own" else model_found(True)
    path = tmp_path / f"a{ending}"
    shown = Proof(found, False, ())
    save(path, {".json": text_file(shown.write_json), **shown.files("viridis")})
    if ending in (".png", ".pdf"):
        assert path.read_bytes().startswith((b"\x89PNG", b"%PDF"))
        return
    content = path.read_text(encoding="utf-8")
    if ending == ".json":
        assert json.loads(content) == json.loads(json.dumps(verification_document(found)))
    elif ending == ".csv":
        rows = list(csv.DictReader(content.splitlines()))
        numbers = sum(len(check.measures) for check in found.checks)
        assert len(rows) == numbers + found.count("skipped")
        assert sum(row["verdict"] == "fail" for row in rows) == 2
    else:
        assert "FAIL" in content
        assert "https://" not in content.replace("https://www.w3.org", "")
        if ending == ".svg":
            ET.fromstring(content)
        else:
            assert content.count("<tr>") > len(found.checks)


def test_the_drawing_shows_names_as_text(model_found: Made, tmp_path: Path) -> None:
    found = model_found()
    assert found.model is not None
    evil = "<script>\x1b</script>"
    found = replace(found, model=replace(found.model, name=evil), text=evil)
    for ending in (".svg", ".html"):
        path = tmp_path / f"a{ending}"
        save(path, Proof(found, False, ()).files("viridis"))
        content = path.read_text(encoding="utf-8")
        assert "<script>" not in content
        assert "\x1b" not in content
