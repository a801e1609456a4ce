"""Numbers as short texts, and the records that programs read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from attnviz.draw.files import CsvTable
from attnviz.draw.values import write_object
from attnviz.inspect.patterns.data import patterns_data, patterns_rows
from attnviz.inspect.patterns.records import PatternReport
from attnviz.inspect.patterns.words import plain, score, share_of_texts, short, signed

Reports = Callable[..., PatternReport]


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
        (share_of_texts, 0.923, "92%"),
        (share_of_texts, None, "n/m"),
        (plain, 1.234, "1.23"),
        (plain, 104.123, "104.1"),
        (plain, None, "n/m"),
    ],
)
def test_short_texts(write: Callable[..., str], value: float | None, text: str) -> None:
    assert write(value) == text


def test_a_watched_label_ranks_the_heads(pattern_reports: Reports) -> None:
    report = pattern_reports(layers=3, heads=5, missing=("rare",))
    values = [
        entry["scores"]["self"] for entry in patterns_data(replace(report, watch="self"))["heads"]
    ]
    assert values == sorted(values, reverse=True)
    assert patterns_data(replace(report, watch="rare"))["heads"] == []


def test_json(pattern_reports: Reports) -> None:
    report = pattern_reports(missing=("duplicate",), index_base=1, text="a\u202e")
    stream = io.StringIO()
    write_object(patterns_data(report), stream, report.lists)
    text = stream.getvalue()
    assert text.isascii()
    document = json.loads(text)
    assert next(iter(document)) == "schema"
    assert document == patterns_data(report)
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


def test_csv(pattern_reports: Reports) -> None:
    report = pattern_reports(control=True, missing=("duplicate",))
    stream = io.StringIO()
    CsvTable(stream).writerows(patterns_rows(report, None))
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
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
