"""The JSON object, read back by the standard library's reader."""

import dataclasses
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from attnviz.heads.json import (
    head_entry,
    run_facts,
    weight_rows,
    write_heads_json,
)

from attnviz.records import LayerWeights


def _written(report, text="a text", target=None):
    stream = io.StringIO()
    write_heads_json(report, text, target, stream)
    return stream.getvalue()


def heads_document(report, text, target=None):
    """The object as a whole, as it need never be in memory."""
    heads = [
        head_entry(report, scores)
        | {"weights": weight_rows(report.weights(scores.layer, scores.head))}
        for scores in report.heads
    ]
    return {**run_facts(report, text, target), "heads": heads}


def _no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def test_every_weight_comes_back_exactly(make):
    report = make()
    read = json.loads(_written(report))
    assert [(entry["layer"], entry["head"]) for entry in read["heads"]] == [
        (layer, head) for layer in range(2) for head in range(3)
    ]
    for entry in read["heads"]:
        expected = report.weights(entry["layer"], entry["head"])
        np.testing.assert_array_equal(np.array(entry["weights"], dtype=np.float32), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": np.float64},
        {"causal": False},
        {"concentration": 0.005},
        {"kind": "cross", "keys": ("x", "y")},
        {"kept": (2,), "selected": True},
        {"texts": ("alone",)},
    ],
)
def test_the_written_text_is_the_document(make, options):
    report = make(**options)
    document = heads_document(report, "a text", "its target")
    assert json.loads(_written(report, target="its target")) == document
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_every_weight_is_a_float(make):
    report = make(concentration=0.005)
    for entry in json.loads(_written(report))["heads"]:
        assert all(isinstance(weight, float) for row in entry["weights"] for weight in row)


def test_float64_comes_back_exactly(make):
    report = make(dtype=np.float64)
    for entry in json.loads(_written(report))["heads"]:
        expected = report.weights(entry["layer"], entry["head"])
        np.testing.assert_array_equal(np.array(entry["weights"]), expected)


def test_the_documented_fields(make):
    report = make(heads=4, kv_heads=2, index_base=1, notes=("mind this",))
    read = json.loads(_written(report))
    assert next(iter(read)) == "schema"
    assert read["schema"] == "attnviz.heads/1"
    assert read["model"] == {
        "name": "tiny",
        "revision": "0123456789abcdef",
        "dtype": "float32",
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "architecture": "LlamaForCausalLM",
        "weights": "trained",
        "seed": None,
        "device": "cpu",
        "notes": ["mind this"],
    }
    assert (read["text"], read["kind"], read["causal"]) == ("a text", "self", True)
    assert read["index_base"] == 0
    assert read["tokens"] == ["<s>", " The", " cat", " sat", " on", " the", " cat"]
    assert read["token_ids"] == [100, 101, 102, 103, 104, 105, 102]
    assert "target" not in read
    assert "key_tokens" not in read
    assert [entry["kv_head"] for entry in read["heads"][:4]] == [0, 0, 1, 1]
    scores = report.heads[0]
    first = read["heads"][0]
    assert first["entropy"] == scores.scores["entropy"]
    assert first["next"] is None
    assert first["trait"] == {
        "name": scores.trait.name,
        "score": scores.trait.score,
        "base_rate": scores.trait.base_rate,
    }


def test_without_groups_a_head_is_its_own_key_value_head(report):
    entries = json.loads(_written(report))["heads"]
    assert [entry["kv_head"] for entry in entries] == [0, 1, 2, 0, 1, 2]


def test_cross_attention_names_both_texts(make):
    report = make(texts=("der", "Hund"), keys=("the", "old", "dog"), kind="cross")
    read = json.loads(_written(report, "the old dog", "der Hund"))
    assert read["target"] == "der Hund"
    assert read["tokens"] == ["der", "Hund"]
    assert read["key_tokens"] == ["the", "old", "dog"]
    assert read["key_token_ids"] == [100, 101, 102]
    assert np.array(read["heads"][0]["weights"]).shape == (2, 3)


def test_hostile_tokens_come_back_and_no_control_character_is_written(make, hostile):
    texts = (*hostile, "나는", "\udc80")
    written = _written(make(texts=texts))
    assert json.loads(written)["tokens"] == list(texts)
    assert all(character == "\n" or " " <= character <= "~" for character in written)


def test_what_is_no_number_is_null(make):
    report = make()
    weights = report.record.layers[0].weights.copy()
    weights[0, 3, 1] = np.nan
    weights[0, 4, 6] = np.inf
    layers = (LayerWeights(0, (0, 1, 2), weights), report.record.layers[1])
    broken = dataclasses.replace(report, record=dataclasses.replace(report.record, layers=layers))
    read = json.loads(_written(broken), parse_constant=_no_constant)
    assert read["heads"][0]["weights"][3][1] is None
    assert read["heads"][0]["weights"][4][6] is None
    assert read == heads_document(broken, "a text")


def test_sorted_heads_keep_their_order(make):
    report = make(sorted_by="entropy")
    read = json.loads(_written(report))
    entropies = [entry["entropy"] for entry in read["heads"]]
    assert entropies == sorted(entropies)
    assert read["sorted_by"] == "entropy"


def test_importing_needs_no_heavy_package():
    code = (
        "import sys, attnviz.draw.files, attnviz.heads.json; "
        "print([n for n in ('torch', 'matplotlib', 'safetensors', 'transformers') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
