"""``attnviz ablate`` and ``attnviz patch`` of classifiers: their labels, by name."""

import json

import pytest
import torch

from ...small_models import bert_fields
from ..classifiers import LABELS, own_logits, save_classifier

TEXT = "the cat sat on the mat because the cat"
OTHER = "the mat sat on the cat because the cat"


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
    from transformers import RobertaModel

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


# Two texts -----------------------------------------------------------------------------------

ONE, TWO = "She opened the door slowly", "the animal was tired"
OTHER_ONE = "She opened the door quickly"


@pytest.fixture(scope="module")
def entailment(trained_bert, tmp_path_factory):
    """Return a random classifier of pairs, whose embeddings of both texts differ much."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

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
    from transformers import AutoTokenizer, BertForSequenceClassification

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
    from transformers import AutoTokenizer, BertForSequenceClassification

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
    assert "leave out --texts, or --and" in refused(2, "ablate", "--and", TWO)
    assert "--and is empty" in refused(2, "lens", ONE, "--and", " ")
    assert "--and is empty" in refused(2, "patch", ONE, OTHER_ONE, "--and", " ")
    assert "CLEAN and CORRUPT before --and" in refused(2, "patch", "--and", TWO)
    assert "which torch reads" in refused(5, "patch", ONE, OTHER_ONE, *pair[1:], *numpy)
