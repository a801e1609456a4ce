"""Saved figures: well formed, self-contained, harmless, and with the numbers of the report."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from attnviz.heads.rollout_run import Followed

from attnviz.draw.drawing import Drawing
from attnviz.draw.drawing_plot import write_drawing
from attnviz.draw.files import save, text_file
from attnviz.errors import UsageError
from attnviz.measures.records import Probe
from attnviz.patterns.run import Labelled
from attnviz.patterns.view import PatternView

EVIL = "<script>alert(1)</script>\x1b[31m&\u202e"


def saved(report: Any, path: Path, view: PatternView | None = None) -> str:
    save(path, Labelled(report, view or PatternView()).files("viridis"))
    return path.read_text(encoding="utf-8")


def labels_of(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_svg_has_a_cell_a_head_and_a_row_a_labelled_one(
    pattern_reports: Callable[..., Any], tmp_path: Path
) -> None:
    report = pattern_reports(layers=3, heads=5)
    texts = labels_of(saved(report, tmp_path / "a.svg"))
    labelled = [entry for entry in report.heads if entry.label]
    assert f"What each head does: {len(labelled)} of 15 heads labelled" in texts
    for entry in labelled:
        assert f"L{entry.layer}H{entry.head}" in texts
        assert f"{entry.score:.3f}".replace("0.", ".") in texts
    tips = ElementTree.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}title")
    heads = [tip.text for tip in tips if (tip.text or "").startswith("L")]
    assert len(heads) == 15


def test_svg_of_one_label_and_of_one_that_was_not_measured(
    pattern_reports: Callable[..., Any], tmp_path: Path
) -> None:
    report = pattern_reports(missing=("rare",))
    texts = labels_of(saved(report, tmp_path / "a.svg", PatternView(watch="self")))
    assert "15 heads; looks at the token itself" in texts
    texts = labels_of(saved(report, tmp_path / "b.svg", PatternView(watch="rare")))
    assert "not measured: no token comes twice" in texts


def test_nothing_in_a_figure_acts_or_is_fetched(
    pattern_reports: Callable[..., Any], rollouts: Callable[..., Any], tmp_path: Path
) -> None:
    pieces = ("<s>", EVIL, "b")
    report = pattern_reports(
        names=("previous", EVIL),
        layers=5,
        pieces=pieces,
        notes=(EVIL,),
        probes=(Probe(EVIL, 1, 3, 3, (EVIL,)),),
        not_measured={EVIL: EVIL},
    )
    view = PatternView(text=EVIL, source=EVIL)
    contents = [saved(report, tmp_path / f"a{ending}", view) for ending in (".svg", ".html")]
    for ending in (".svg", ".html"):
        followed = Followed(rollouts(pieces=pieces), EVIL, None, False, False)
        save(tmp_path / f"r{ending}", followed.files("viridis"))
        contents.append((tmp_path / f"r{ending}").read_text(encoding="utf-8"))
    for content in contents:
        assert "<script" not in content
        assert not {"\x1b", "\u202e"} & set(content)
        assert "http" not in content.replace("http://www.w3.org/2000/svg", "").replace(
            "http-equiv", ""
        )


def test_the_page_has_every_number(pattern_reports: Callable[..., Any], tmp_path: Path) -> None:
    report = pattern_reports(missing=("rare",))
    page = saved(report, tmp_path / "a.html")
    assert page.count("<tr>") == 1 + len(report.heads)
    for entry in report.heads:
        for value in entry.scores.values():
            assert (f"{value:.4g}" if value is not None else "–") in page


@pytest.mark.parametrize("heads", [5, 19])
def test_png(pattern_reports: Callable[..., Any], tmp_path: Path, heads: int) -> None:
    report = pattern_reports(layers=2, heads=heads, pieces=("<s>", " 학교", "\x1b"))
    path = tmp_path / "a.png"
    save(path, Labelled(report, PatternView()).files("magma"))
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 800
    assert height > 400


def test_a_picture_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as stream, pytest.raises(UsageError, match="too large"):
        write_drawing(Drawing("large", 20_000, 20_000), "viridis", stream)


def test_rollout_files_hold_both_matrices(rollouts: Callable[..., Any], tmp_path: Path) -> None:
    rollout = rollouts()
    followed = Followed(rollout, "a text", None, False, False)
    files = {".json": text_file(followed.write_json), **followed.files("viridis")}
    for ending in files:
        save(tmp_path / f"a{ending}", files)
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["schema"] == "attnviz.rollout/1"
    assert np.array_equal(document["rollout"], rollout.matrix)
    assert np.array_equal(document["last_layer"], rollout.raw)
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 13 * 14 // 2
    for row in rows:
        place = int(row["query"]), int(row["key"])
        assert float(row["rollout"]) == rollout.matrix[place]
        assert float(row["last_layer"]) == rollout.raw[place]
        assert row["query_token"] == rollout.tokens.texts[place[0]]
    texts = labels_of((tmp_path / "a.svg").read_text(encoding="utf-8"))
    assert {"rollout through 3 layers", "last layer, mean of its heads"} <= set(texts)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
