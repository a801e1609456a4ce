"""The reports of heads: how far attention moves, and what programs read, read back."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import HeadsReport, compare_heads
from attnviz.models.own import OwnAttention


def rows_of(*reports):
    stream = io.BytesIO()
    compare_heads(reports).arrays()[".csv"](stream)
    return list(csv.DictReader(io.StringIO(stream.getvalue().decode(), newline="")))


def test_every_visible_weight_is_a_row(reports):
    report = reports()
    rows = rows_of(report)
    assert ",".join(rows[0]) == ("layer,head,query_index,query_token,key_index,key_token,weight")
    assert len(rows) == 6 * (7 * 8 // 2)  # the future of a causal query is left out
    for row in rows:
        weights = report.weights(int(row["layer"]), int(row["head"]))
        query, key = int(row["query_index"]), int(row["key_index"])
        assert key <= query
        assert np.float32(row["weight"]) == weights[query, key]
        assert row["query_token"] == report.record.queries.texts[query]
        assert row["key_token"] == report.record.keys.texts[key]
    listed = [[str(cell) for cell in row] for row in compare_heads([report]).rows()]
    assert listed == [[*rows[0]], *([*row.values()] for row in rows)]


def test_cross_attention_is_whole(reports):
    report = reports(("der", "Hund"), keys=("the", "old", "dog"), kind="cross", dtype=np.float64)
    rows = rows_of(report)
    assert len(rows) == 6 * 2 * 3
    assert [row["key_token"] for row in rows[:3]] == ["the", "old", "dog"]
    numbers = np.array([float(row["weight"]) for row in rows]).reshape(2, 3, 2, 3)
    for layer in report.record.layers:
        np.testing.assert_array_equal(numbers[layer.layer], layer.weights)


@pytest.mark.parametrize("several", [False, True])
def test_hostile_tokens_come_back(reports, hostile, several):
    """Read as the format says: backslash, u and four hex digits are a character."""

    def meant(text):
        return re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)

    texts = (*hostile, "\x1b[31m", "a\rb", "\\u001b", "\\\\u001b", "\\n", "\u202e")
    report = reports(texts, heads=(1,), causal=False)
    rows = rows_of(*[report] * (1 + several))[: len(texts) ** 2]
    tokens = [row["key_token"] for row in rows[: len(texts)]]
    assert [meant(token) for token in tokens] == list(texts)
    assert [meant(row["query_token"]) for row in rows[:: len(texts)]] == list(texts)
    assert not {"\x1b", "\r", "\x9b", "\u202e"} & set("".join(tokens))
    assert tokens[-2] == "\\n"  # what acts on nothing stands as it is


def npz(report):
    stream = io.BytesIO()
    compare_heads([report]).arrays()[".npz"](stream)
    stream.seek(0)
    with np.load(stream, allow_pickle=False) as archive:
        return dict(archive)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_npz_holds_every_weight_with_its_place(reports, dtype):
    report = reports(dtype=dtype)
    arrays = npz(report)
    assert arrays["weights"].dtype == dtype
    for layer, head, weights in report.record:
        place = (arrays["layers"] == layer) & (arrays["heads"] == head)
        np.testing.assert_array_equal(arrays["weights"][place][0], weights)
    assert arrays["tokens"].tolist() == list(report.record.queries.texts)
    assert arrays["token_ids"].tolist() == list(report.record.queries.ids)
    provenance = json.loads(str(arrays["provenance"]))
    assert provenance["schema"] == "attnviz.heads/1"
    assert provenance["model"]["revision"] == "0123456789abcdef"
    assert provenance["text"] == "a text"
    assert len(provenance["heads"]) == 6
    assert "weights" not in provenance["heads"][0]


def made(text="a b a c", target=None, **options):
    model = OwnAttention(12, 3, **options)
    tokens = model.encode(text)
    asking = None if target is None else model.encode_queries(target, tokens)
    kind = "self" if target is None else "cross"
    return heads_report(capture(model, tokens, kind=kind, target=asking), selected=False)


def test_a_single_run_is_a_comparison_of_one():
    assert compare_heads([made()]).moved == (None,)
    with pytest.raises(ValueError, match="needs a report"):
        HeadsReport((), ())
    two = compare_heads([made(), made(causal=True)])
    with pytest.raises(ValueError, match="got 2 and 1"):
        dataclasses.replace(two, moved=(None,))
