"""The long table, read back by the standard library's reader."""

import csv
import io
import re

import numpy as np
from attnviz.heads.csv import COLUMNS, write_heads_csv


def _rows(report):
    stream = io.StringIO(newline="")
    write_heads_csv(report, stream)
    return list(csv.DictReader(io.StringIO(stream.getvalue(), newline="")))


def test_every_visible_weight_comes_back_exactly(report):
    rows = _rows(report)
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 6 * (7 * 8 // 2)  # the future of a causal query is left out
    for row in rows:
        weights = report.weights(int(row["layer"]), int(row["head"]))
        query, key = int(row["query_index"]), int(row["key_index"])
        assert key <= query
        assert np.float32(row["weight"]) == weights[query, key]
        assert row["query_token"] == report.record.queries.texts[query]
        assert row["key_token"] == report.record.keys.texts[key]


def test_cross_attention_is_whole(make):
    report = make(texts=("der", "Hund"), keys=("the", "old", "dog"), kind="cross", dtype=np.float64)
    rows = _rows(report)
    assert len(rows) == 6 * 2 * 3
    assert [row["key_token"] for row in rows[:3]] == ["the", "old", "dog"]
    read = np.array([float(row["weight"]) for row in rows]).reshape(2, 3, 2, 3)
    for layer in report.record.layers:
        np.testing.assert_array_equal(read[layer.layer], layer.weights)


def test_hostile_tokens_come_back(make, hostile):
    """Read as the format says: backslash, u and four hex digits are a character."""

    def meant(text):
        return re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)

    hostile = (*hostile, "\x1b[31m", "a\rb", "\\u001b", "\\\\u001b", "\\n", "\u202e")
    rows = _rows(make(texts=hostile, layers=1, heads=1, causal=False))
    written = [row["key_token"] for row in rows[: len(hostile)]]
    assert [meant(token) for token in written] == list(hostile)
    assert [meant(row["query_token"]) for row in rows[:: len(hostile)]] == list(hostile)
    assert not {"\x1b", "\r", "\x9b", "\u202e"} & set("".join(written))
    assert written[-2] == "\\n"  # what acts on nothing stands as it is
