"""``attnviz why`` and ``attnviz lens`` of a classifier: its labels, by name."""

from __future__ import annotations

from typing import Any

import pytest

from ..classifiers import LABELS, own_logits, save_classifier

TEXT = "the cat sat on the mat because the cat"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def test_its_label_is_taken_apart(run: Any, place: str) -> None:
    found = run("why", TEXT, "--model", place, "--json").document
    logits = own_logits(place, found["token_ids"])
    assert found["labels"] == list(LABELS.values())
    assert found["answer"]["token"] == LABELS[int(logits.argmax())]
    assert found["position"] == 0
    assert found["logit"] == pytest.approx(float(logits.max()), abs=1e-4)
    assert found["tallies"]
    assert any("through a pooler" in note for note in found["notes"])
    assert found["controls"] == 0
    compared = run(
        "why", TEXT, "--model", place, "--answer", "GLAD", "--foil", "sad", "--json"
    ).document
    assert compared["sum"] == pytest.approx(float(logits[2] - logits[0]), abs=1e-4)


def test_words_are_replaced_for_a_label(run: Any, place: str) -> None:
    asked = ("why", "the cat sat", "--model", place, "--answer", "glad", "--inputs", "--draws", "2")
    found = run(*asked, "--json").document
    logs = own_logits(place, found["token_ids"]).log_softmax(-1)
    assert found["inputs"]["value"] == pytest.approx(float(logs[2]), abs=1e-4)
    tokens = found["inputs"]["tokens"]
    assert [one["replaced"] is None for one in tokens] == [True, *[False] * 3, True]
    assert run(*asked).code == 0
    few = run("why", TEXT, "--model", place, "--inputs")
    assert few.code == 2
    assert "fewer than 2 words" in few.err


def test_its_screens_say_label(run: Any, place: str) -> None:
    result = run("why", TEXT, "--model", place, "--no-full")
    assert result.lines[1].startswith("Label at “<s>” (0): “")
    assert "control" not in result.out
    lens = run("lens", TEXT, "--model", place, "--no-full")
    assert lens.code == 0, lens.err
    assert "= model" in lens.out
    assert "--position" not in lens.lines[-1]
    found = run("lens", TEXT, "--model", place, "--json").document
    assert found["labels"] == list(LABELS.values())
    assert [one["layer"] for one in found["layers"]] == [None, 0, 1]


def test_other_labels_are_refused(refused: Any, place: str) -> None:
    message = refused(2, "why", TEXT, "--model", place, "--answer", "angry")
    assert message.endswith("--answer 'angry' is no label of the model: it has sad, Neutral, glad")
    message = refused(2, "lens", TEXT, "--model", place, "--position", "cat")
    assert "read at position 0 alone" in message


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_a_model_of_choices_has_no_logit_of_one_text(
    refused: Any, tmp_path: Any, family: str
) -> None:
    model = ("--model", save_classifier(tmp_path, "MultipleChoice", family))
    for command in (("why",), ("why", "--inputs"), ("lens",)):
        message = refused(5, *command, TEXT, *model)
        assert "weighs several texts against each other: over one text it has no logit" in message
