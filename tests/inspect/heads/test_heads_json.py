"""``attnviz heads --json``: the fields other programs rely on, and the library's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention

SENTENCE = "The cat sat on the mat because it was tired."


def test_the_promised_fields(run: Any) -> None:
    result = run("heads", SENTENCE, "--json")
    document = result.document
    assert result.out.startswith('{"schema": "attnviz.heads/1"')
    assert next(iter(document)) == "schema"
    model, info = document["model"], Bundled().info
    assert {
        name: model[name] for name in ("name", "dtype", "layers", "heads", "kv_heads", "head_dim")
    } == {"name": "tiny", "dtype": "float32"} | {
        name: getattr(info, name) for name in ("layers", "heads", "kv_heads", "head_dim")
    }
    assert model["revision"] == info.revision
    assert document["kind"] == "self"
    assert "key_tokens" not in document
    assert len(document["tokens"]) == len(document["token_ids"]) == 13
    assert "".join(document["tokens"][1:]).strip() == SENTENCE
    assert [(head["layer"], head["head"]) for head in document["heads"]] == [
        (layer, head) for layer in range(info.layers) for head in range(info.heads)
    ]


def test_rows_sum_to_one_and_see_no_future(document: Any) -> None:
    for head in document(SENTENCE)["heads"]:
        weights = np.array(head["weights"])
        assert weights.shape == (13, 13)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert not np.any(np.triu(weights, 1))
        visible = np.where(weights > 0, weights, 1)
        entropy = -(weights * np.log(visible)).sum(-1).mean()
        assert head["entropy"] == pytest.approx(entropy, abs=1e-5)


def test_the_numbers_are_the_librarys(document: Any) -> None:
    model = Bundled()
    tokens = model.encode(SENTENCE)
    record = capture(model, tokens, kind="self")
    found = document(SENTENCE)
    assert tuple(found["token_ids"]) == tokens.ids
    assert tuple(found["tokens"]) == tokens.texts
    for (layer, head, weights), entry in zip(record, found["heads"], strict=True):
        assert (entry["layer"], entry["head"]) == (layer, head)
        assert np.array_equal(np.array(entry["weights"], dtype=np.float32), weights)


def test_the_textbooks_model(document: Any) -> None:
    options = ("--model", "mha", "--d-model", "12", "--heads", "3", "--seed", "5", "--causal")
    found = document("나는 오늘 나는", *options)
    model = OwnAttention(12, 3, seed=5, causal=True)
    record = capture(model, model.encode("나는 오늘 나는"), kind="self")
    assert found["tokens"] == ["나는", "오늘", "나는"]
    assert found["token_ids"] == [0, 1, 0]
    assert (found["model"]["weights"], found["model"]["seed"]) == ("random", 5)
    for (_, _, weights), entry in zip(record, found["heads"], strict=True):
        assert np.array_equal(np.array(entry["weights"], dtype=np.float32), weights)


def test_only_what_was_chosen(document: Any) -> None:
    everything = document(SENTENCE)["heads"]
    chosen = document(SENTENCE, "--head", "L2H3")["heads"]
    assert chosen == [everything[2 * Bundled().info.heads + 3]]


@pytest.mark.parametrize(
    "text",
    [
        "one \x1b[31m two \x1b]0;title\x07",
        "\u202eright to left\u202c and \u2066isolates\u2069",
        "[bold]markup[/bold] [/] :smile: {0} %s",
        'quotes " and \\ and \n line \t ends',
        "🙂 e\u0301 한국어 \U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\ufdd0 \U0010ffff \ue000",
    ],
)
@pytest.mark.parametrize("model", ["tiny", "mha"])
def test_hostile_texts_survive_and_cannot_act(run: Any, text: str, model: str) -> None:
    result = run("heads", text, "--model", model, "--json")
    document = result.document
    assert document["text"] == text
    assert result.out.isascii()
    assert "\x1b" not in result.out
    if model == "mha":
        assert document["tokens"] == text.split()


def test_measures_without_a_value_are_null(document: Any) -> None:
    heads = document("cat")["heads"]
    assert all(head["induction"] is None for head in heads)


def test_the_views_change_nothing(run: Any) -> None:
    plain = run("heads", SENTENCE, "--json").out
    views = ("--values", "--top", "2", "--sink", "--explain", "--ascii", "--quiet", "--full")
    assert run("heads", SENTENCE, "--json", *views, "--color", "always").out == plain


@pytest.mark.parametrize("width", ["10", "10000"])
def test_no_width_is_needed(run: Any, width: str) -> None:
    plain = run("heads", SENTENCE, "--json").out
    assert run("heads", SENTENCE, "--json", "--width", width).out == plain
    assert run("heads", SENTENCE, "--json", env={"COLUMNS": width}).out == plain
