"""Numbers as short texts, and the screen's numbers against those of JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from attnviz.draw.theme import Theme
from attnviz.patterns.csv import write_patterns_csv
from attnviz.patterns.json import patterns_document, write_patterns_json
from attnviz.patterns.numbers import percent, plain, score, short, signed
from attnviz.patterns.screen import patterns_screen
from attnviz.patterns.view import PatternView

PLAIN = Theme("viridis", colour=False)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (score, 0.98234, ".982"),
        (score, 1.0, "1.000"),
        (score, 0.0, ".000"),
        (score, -0.00001, ".000"),
        (score, -0.125, "-.125"),
        (score, None, "n/m"),
        (short, 0.982, ".98"),
        (short, 0.996, "1.0"),
        (short, -0.12, "-.12"),
        (short, 0.0, ".00"),
        (short, None, "n/m"),
        (signed, 0.862, "+.862"),
        (signed, -0.012, "-.012"),
        (signed, 1.0, "+1.000"),
        (signed, -0.0001, ".000"),
        (signed, None, "n/m"),
        (percent, 0.923, "92%"),
        (percent, None, "n/m"),
        (plain, 1.234, "1.23"),
        (plain, 104.123, "104.1"),
        (plain, None, "n/m"),
    ],
)
def test_short_texts(write: Callable[..., str], value: float | None, text: str) -> None:
    assert write(value) == text


def rows_of(screen: str) -> dict[str, list[str]]:
    """The rows of the tables: by head's name, the cells that are no bar."""
    rows = {}
    for line in screen.splitlines():
        match = re.search(r"(L\d+H\d+)\s+[█▌ ]*(?=[-.n\d])(.+)$", line)
        if match:
            rows[match[1]] = match[2].split()
    return rows


def test_the_screen_shows_the_numbers_of_the_json(pattern_reports: Callable[..., Any]) -> None:
    report = pattern_reports(layers=4, heads=7, control=True)
    shown = rows_of(patterns_screen(report, PatternView(top=28), PLAIN, 170).plain)
    document = patterns_document(report, PatternView())
    labelled = [entry for entry in document["heads"] if entry["label"]]
    assert len(labelled) > 5
    for entry in labelled:
        cells = shown[f"L{entry['layer']}H{entry['head']}"]
        assert cells[0] == f"{entry['score']:.3f}".replace("0.", ".")
        assert entry["score"] == entry["scores"][entry["label"]]
        assert cells[1] == f"{entry['base_rate'][entry['label']]:.3f}".replace("0.", ".")
        assert cells[2] == f"{entry['margin']:+.3f}".replace("0.", ".")
        assert cells[3] == f"{entry['control'][entry['label']]:.3f}".replace("0.", ".")
        assert cells[4] == f"{entry['agreement']:.0%}"
        assert cells[5] == f"{entry['statistics']['entropy']:.2f}"


def test_the_ranking_is_that_of_the_json(pattern_reports: Callable[..., Any]) -> None:
    report = pattern_reports(layers=3, heads=5, missing=("rare",))
    view = PatternView(watch="self", top=99)
    shown = list(rows_of(patterns_screen(report, view, PLAIN, 100).plain))
    document = patterns_document(report, view)
    assert shown == [f"L{entry['layer']}H{entry['head']}" for entry in document["heads"]]
    values = [entry["scores"]["self"] for entry in document["heads"]]
    assert values == sorted(values, reverse=True)
    assert patterns_document(report, PatternView(watch="rare"))["heads"] == []


def written(write: Callable[..., None], *arguments: Any) -> str:
    stream = io.StringIO()
    write(*arguments, stream)
    return stream.getvalue()


def test_json(pattern_reports: Callable[..., Any]) -> None:
    report = pattern_reports(missing=("duplicate",), index_base=1)
    text = written(write_patterns_json, report, PatternView(text="a\u202e"))
    assert text.isascii()
    document = json.loads(text)
    assert next(iter(document)) == "schema"
    assert document == patterns_document(report, PatternView(text="a\u202e"))
    assert document["schema"] == "attnviz.patterns/1"
    assert document["model"]["heads"] == 5
    assert document["not_measured"] == {"duplicate": "no token comes twice"}
    first = document["heads"][0]
    assert (first["layer"], first["head"], first["label"]) == (0, 0, report.heads[0].label)
    assert first["scores"]["duplicate"] is None  # never 0
    assert first["base_rate"]["duplicate"] is None
    assert set(first["scores"]) == set(report.labels)
    assert document["labels"]["previous"]["letter"] == "P"
    assert text.count("\n") == len(report.heads) + 3


def test_csv(pattern_reports: Callable[..., Any]) -> None:
    report = pattern_reports(control=True, missing=("duplicate",))
    rows = list(csv.DictReader(io.StringIO(written(write_patterns_csv, report, PatternView()))))
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
