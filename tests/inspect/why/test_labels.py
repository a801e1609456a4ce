"""``attnviz why`` and ``attnviz lens`` of a classifier: its labels, by name."""

import math

import pytest
import torch

from ..classifiers import LABELS, own_logits, save_classifier

TEXT = "the cat sat on the mat because the cat"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def test_its_label_is_taken_apart(run, place):
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


def test_words_are_replaced_for_a_label(run, place):
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


def test_its_screens_say_label(run, place):
    result = run("why", TEXT, "--model", place, "--no-full")
    assert result.lines[1].startswith("Label at “<s>” (0): “")
    assert "control" not in result.out
    lens = run("lens", TEXT, "--model", place, "--no-full")
    assert lens.code == 0, lens.err
    assert "(final)" in lens.out
    assert "--position" not in lens.lines[-1]
    found = run("lens", TEXT, "--model", place, "--json").document
    assert found["labels"] == list(LABELS.values())
    assert [one["layer"] for one in found["layers"]] == [None, 0, 1]


def test_other_labels_are_refused(refused, place):
    message = refused(2, "why", TEXT, "--model", place, "--answer", "angry")
    assert "--answer 'angry' is not a label of the model: it has sad, Neutral, glad" in message
    message = refused(2, "lens", TEXT, "--model", place, "--position", "cat")
    assert "read at position 0 alone" in message


def test_a_negative_logit_is_lowered_by_what_writes_against_it(run, tmp_path):
    model = "--model", save_classifier(tmp_path, "QuestionAnswering")
    lowered = 0
    for question in ("the cat sat", "tired mat on", "because the mat"):
        asked = ("why", question, "--and", "on the mat because tired", *model)
        found = run(*asked, "--json").document
        values = [one["contribution"] for one in found["parts"] if one["kind"] == "head"]
        value = max(values, key=abs)
        extent = "works against it most" if value < 0 else "adds the most of any head"
        said = " ".join(run(*asked, "--no-full").lines)
        assert f"{extent}: {value:+.2f} to the logit of {found['logit']:.2f}" in " ".join(
            said.split()
        )
        lowered += value < 0 and found["logit"] < 0
    assert lowered


def test_answers_to_questions(run, refused, tmp_path):
    model = "--model", save_classifier(tmp_path, "QuestionAnswering")
    question = "the cat sat", "--and", "on the mat because tired", *model
    found = run("why", *question, "--answer", "end", "--json").document
    assert found["labels"] == ["start", "end"]
    span = found["span"]
    assert 3 <= span["start"] <= span["end"] == found["position"]
    assert found["top"] == [{"id": 1, "token": "end", "probability": span["end_probability"]}]
    said = " ".join(run("why", *question, "--no-full").lines)
    assert f"{span['end']}). Start at “" in said
    assert "--texts" not in said
    assert "give its context with --and" not in said
    alone = run("why", "the cat sat on the mat", *model).out
    assert "give its context with --and" in alone
    assert "--texts" in alone
    lost = run("ablate", *question, "--json").document["baseline"]["loss"]
    ends = [span["start_probability"], span["end_probability"]]
    assert lost == pytest.approx(-sum(map(math.log, ends)) / 2, abs=1e-5)
    assert "answer loss" in run("ablate", *question).out
    assert "not against each other" in refused(
        2, "ablate", *question, "--answer", "end", "--foil", "start"
    )
    assert "one answer, not one for each token" in refused(2, "ablate", *question, "--by-token")
    patched = "patch", "the cat sat", "the mat sat", *question[1:]
    words = ("--answer", "mat", "--foil", "tired")
    pair = run(*patched, *words, "--json").document
    assert [pair[one]["token"] for one in ("answer", "foil")] == ["mat", "tired"]
    assert "not a token of the context" in refused(2, *patched, "--answer", "sat", "--foil", "mat")
    assert "--method exact" in refused(5, *patched, *words, "--method", "gradient")
    lens = run("lens", *question, "--answer", "end", "--json").document
    assert lens["answer_end"] == "end"
    assert lens["position"] == lens["answer"]["id"] == span["end"]
    assert lens["layers"][-1]["probability"] == pytest.approx(span["end_probability"], abs=1e-5)
    screen = run("lens", *question, "--no-full")
    assert f"({span['start']}) " in screen.lines[1]
    assert "the top start" in " ".join(screen.lines)
    assert screen.lines[-1].startswith("--answer end · --head")


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_a_model_of_choices_has_no_logit_of_one_text(refused, tmp_path, family):
    model = ("--model", save_classifier(tmp_path, "MultipleChoice", family))
    for command in (("why",), ("why", "--inputs"), ("lens",)):
        message = refused(5, *command, TEXT, *model)
        assert "weighs several texts against each other: over one text it has no logit" in message


MULTI = "multi_label_classification"


def test_one_label_of_several(run, refused, tmp_path):
    model = ("--model", save_classifier(tmp_path, problem_type=MULTI))
    asked = ("why", "the cat sat", *model)
    found = run(*asked, "--json").document
    own = own_logits(str(tmp_path), found["token_ids"])
    shares = [1 / (1 + math.exp(-one)) for one in own]
    likeliest = int(own.argmax())
    assert found["several_labels"] is True
    assert found["answer"]["id"] == likeliest
    assert found["sum"] == pytest.approx(float(own.max()), abs=1e-4)
    assert {one["id"]: one["probability"] for one in found["top"]} == pytest.approx(
        dict(enumerate(shares)), abs=1e-5
    )
    assert any("several of these labels" in note for note in found["notes"])
    shown = " ".join(run(*asked, "--answer", "sad", "--no-full").out.split())
    share = f"{shares[likeliest]:.2f}"[1:]
    said = f"(0): “{LABELS[likeliest]}” (p = {share}) by its own sigmoid."
    assert f"Likeliest label at “<s>” {said}" in shown
    inputs = run(*asked, "--answer", "sad", "--inputs", "--draws", "2", "--json").document["inputs"]
    assert inputs["value"] == pytest.approx(math.log(shares[0]), abs=1e-4)
    foil = ("--answer", "sad", "--foil", "glad", "--inputs", "--draws", "2", "--json")
    inputs = run(*asked, *foil).document["inputs"]
    assert inputs["value"] == pytest.approx(float(own[0] - own[2]), abs=1e-4)
    assert "may have several labels" in refused(5, "lens", "the cat sat", *model)


@pytest.mark.parametrize("problem", [None, MULTI])
def test_words_of_a_long_text_are_integrated(run, tmp_path, problem):
    from transformers import BertForSequenceClassification

    place = save_classifier(tmp_path, problem_type=problem, max_position_embeddings=160)
    asked = ("why", " ".join([TEXT] * 15), "--model", place, "--answer", "glad")
    found = run(*asked, "--inputs", "--json").document
    model = BertForSequenceClassification.from_pretrained(place).eval()
    ids = torch.tensor([found["token_ids"]])
    table = model.bert.embeddings.word_embeddings.weight

    def log(embedded):
        with torch.no_grad():
            logits = model(inputs_embeds=embedded).logits[0].double()
        return float((logits.sigmoid().log() if problem else logits.log_softmax(-1))[2])

    change = log(table[ids]) - log(table.mean(0).expand(*ids.shape, -1))
    inputs = found["inputs"]
    assert inputs["value"] == pytest.approx(change, abs=1e-4)
    if inputs["converged"]:
        total = sum(one["integrated"] for one in inputs["tokens"])
        assert total == pytest.approx(change, rel=0.01)


@pytest.mark.parametrize("fields", [{"problem_type": "regression"}, {"id2label": {0: "stars"}}])
def test_a_number_is_no_label(refused, tmp_path, fields):
    model = "--model", save_classifier(tmp_path, **fields)
    for command in ("why", "lens"):
        assert "gives a number and chooses no label" in refused(5, command, TEXT, *model)
