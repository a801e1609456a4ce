"""Classifiers: ``ablate``, ``patch``, ``why`` and ``lens`` take their labels, by name."""

import json
import math

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, RobertaModel

from ..small_models import bert_fields
from .classifiers import LABELS, own_logits, save_classifier

TEXT = "the cat sat on the mat because the cat"
OTHER = "the mat sat on the cat because the cat"
ONE, TWO = "She opened the door slowly", "the animal was tired"
OTHER_ONE = "She opened the door quickly"
MULTI = "multi_label_classification"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def zeroed(module, args):
    """Remove the first head, of seven columns, before an output projection."""
    return (torch.cat([torch.zeros_like(args[0][..., :7]), args[0][..., 7:]], -1), *args[1:])


def entry(document, layer, head):
    (found,) = [own for own in document["heads"] if (own["layer"], own["head"]) == (layer, head)]
    return found


def test_ablate_measures_the_predicted_label_or_a_named_one(run, place):
    model = ("--model", place)
    found = run("ablate", TEXT, *model, "--json").document
    logs = own_logits(place, found["token_ids"]).log_softmax(-1)
    assert found["labels"] == list(LABELS.values())
    assert found["baseline"]["loss"] == pytest.approx(-float(logs.max()), abs=1e-5)
    assert all(one["kl"] >= 0 and one["loss_delta"] is not None for one in found["heads"])
    named = run("ablate", TEXT, *model, "--answer", "Glad", "--json").document
    assert named["baseline"]["loss"] == pytest.approx(-float(logs[2]), abs=1e-5)
    assert (named["answer"], named["foil"]) == ("glad", None)
    both = run("ablate", TEXT, *model, "--answer", "glad", "--foil", "sad", "--json").document
    assert both["metric"] == "logit_diff"
    assert both["baseline"]["logit_diff"] == pytest.approx(float(logs[2] - logs[0]), abs=1e-5)


def test_screens_of_ablate_say_label(run, place):
    shown = run("ablate", TEXT, "--model", place, "--no-full")
    assert "label loss" in shown.lines[0]
    assert "the label loss" in shown.out
    assert "nats/token" not in shown.out
    assert "--by-token" not in shown.out
    assert "nats/token" not in run("ablate", TEXT, "--model", place).out


def test_each_token_has_a_label(run, tmp_path):
    model = ("--model", save_classifier(tmp_path, "TokenClassification"))
    assert "Δ loss without" in run("ablate", TEXT, *model, "--no-full").out
    last = run("ablate", TEXT, *model, "--positions", "last", "--json").document
    assert (
        last["baseline"]["loss"]
        != run("ablate", TEXT, *model, "--json").document["baseline"]["loss"]
    )


def test_patch_takes_labels(run, place):
    asked = ("patch", TEXT, OTHER, "--model", place, "--answer", "glad", "--foil", "sad")
    found = run(*asked, "--json").document
    clean, corrupt = (own_logits(place, found[side]["token_ids"]) for side in ("clean", "corrupt"))
    assert found["clean"]["metric"] == pytest.approx(float(clean[2] - clean[0]), abs=1e-4)
    assert found["corrupt"]["metric"] == pytest.approx(float(corrupt[2] - corrupt[0]), abs=1e-4)
    assert "“glad”" in run(*asked, "--no-full").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("ablate", TEXT, "--answer", "angry"),
            "not a label of the model: it has sad, Neutral, glad",
        ),
        (("ablate", TEXT, "--answer", "sad", "--foil", "SAD"), "are the same label, 'sad'"),
        (("patch", TEXT, OTHER, "--answer", "angry", "--foil", "sad"), "not a label of the model"),
        (("patch", TEXT, OTHER, "--answer", "sad", "--foil", "sad"), "the same label, 'sad'"),
    ],
)
def test_refused(refused, place, arguments, said):
    assert said in refused(2, *arguments, "--model", place)


def test_a_model_of_choices_runs_without_its_head(run, tmp_path):
    place = save_classifier(tmp_path, "MultipleChoice", "Roberta")
    found = run("ablate", TEXT, "--model", place, "--json").document
    model = RobertaModel.from_pretrained(place).eval()
    output = model.encoder.layer[1].attention.output.dense

    def hidden():
        with torch.no_grad():
            ends = model(torch.tensor([found["token_ids"]])).last_hidden_state
        return ends.double()

    plain = hidden()
    with output.register_forward_pre_hook(zeroed):
        expected = float((hidden() - plain).square().mean())
    assert entry(found, 1, 0)["output_mse"] == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def entailment(trained_bert, tmp_path_factory):
    """Return a random classifier of pairs, whose embeddings of both texts differ much."""
    tokenizer = AutoTokenizer.from_pretrained(trained_bert)
    torch.manual_seed(2)
    sizes = {**bert_fields(21, 37, 31), "vocab_size": len(tokenizer), "id2label": LABELS}
    model = BertForSequenceClassification(BertConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.bert.embeddings.token_type_embeddings.weight.normal_(0, 2)
    place = tmp_path_factory.mktemp("entailment")
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


def test_two_texts_are_read_as_two(run, entailment):
    model = BertForSequenceClassification.from_pretrained(entailment).eval()
    read = AutoTokenizer.from_pretrained(entailment)(ONE, TWO, return_tensors="pt")

    def logs(**without):
        with torch.no_grad():
            return model(**{**read, **without}).logits[0].double().log_softmax(-1)

    expected, one_text = logs(), logs(token_type_ids=torch.zeros_like(read["input_ids"]))
    assert abs(expected - one_text).max() > 0.01
    asked = (ONE, "--and", TWO, "--model", entailment, "--answer", "glad", "--json")
    why = run("why", *asked, "--foil", "sad").document
    assert why["token_ids"] == read["input_ids"][0].tolist()
    assert why["logit"] == pytest.approx(float(expected[2] - expected[0]), abs=1e-4)
    assert why["tallies"]
    inputs = run("why", *asked, "--inputs", "--draws", "2").document["inputs"]
    assert inputs["value"] == pytest.approx(float(expected[2]), abs=1e-4)
    lens = run("lens", *asked).document
    assert lens["layers"][-1]["probability"] == pytest.approx(float(expected[2].exp()), abs=1e-4)
    ablated = run("ablate", *asked).document
    assert ablated["baseline"]["loss"] == pytest.approx(-float(expected[2]), abs=1e-4)

    output = model.bert.encoder.layer[1].attention.output.dense
    removal = output.register_forward_pre_hook(zeroed)
    change = float(expected[2] - logs()[2])
    assert entry(ablated, 1, 0)["loss_delta"] == pytest.approx(change, abs=1e-4)
    removal.remove()


def test_patch_reads_two_texts(run, entailment, tmp_path):
    model = BertForSequenceClassification.from_pretrained(entailment).eval()
    tokenizer = AutoTokenizer.from_pretrained(entailment)
    output, seen = model.bert.encoder.layer[1].attention.output.dense, []

    def difference(first):
        read = tokenizer(first, TWO, return_tensors="pt")
        assert read["token_type_ids"].any()
        with torch.no_grad():
            logits = model(**read).logits[0].double()
        return float(logits[2] - logits[0])

    def take(module, args):
        seen.append(args[0])
        return (torch.cat([seen[0][..., :7], args[0][..., 7:]], -1), *args[1:])

    corrupt, other = difference(OTHER_ONE), output.register_forward_pre_hook(take)
    clean, patched = difference(ONE), difference(OTHER_ONE)
    other.remove()
    asked = ("--model", entailment, "--what", "output")
    typed = (ONE, OTHER_ONE, "--and", TWO, "--answer", "glad", "--foil", "sad")
    found = run("patch", *typed, *asked, "--json").document
    assert found["clean"]["metric"] == pytest.approx(clean, abs=1e-4)
    assert found["corrupt"]["metric"] == pytest.approx(corrupt, abs=1e-4)
    assert entry(found, 1, 0)["metric"] == pytest.approx(patched, abs=1e-4)

    pair = {"clean": ONE, "corrupt": OTHER_ONE, "and": TWO, "answer": "glad", "foil": "sad"}
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(pair))
    same = run("patch", "--pairs", str(file), *asked, "--json").document
    assert same["clean"]["metric"] == found["clean"]["metric"]


def test_two_texts_of_other_models(run, refused, trained_bert):
    for command in ("why", "lens", "ablate"):
        found = run(command, "The cat sat.", "--and", "It was tired.", "--json", "-q").document
        assert any("with nothing between them" in note for note in found["notes"])
    pair = (ONE, "--and", TWO)
    numpy = "--model", str(trained_bert), "--backend", "numpy"
    assert "which torch reads" in refused(5, "ablate", *pair, *numpy)
    assert "which torch reads" in refused(5, "patch", ONE, OTHER_ONE, *pair[1:], *numpy)


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
