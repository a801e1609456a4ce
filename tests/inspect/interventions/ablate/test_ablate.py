"""``attnviz ablate`` on small models, as a pipe and as a program see it."""

import numpy as np
import pytest

import attnviz
from attnviz.inspect.interventions.ablate.claims import without_words
from attnviz.models.bundled import Bundled

from ...classifiers import save_classifier

SENTENCE = "When Mary and John went out, John gave a book to Mary."
TINY = Bundled().info
NAMES = [f"L{layer}H{head}" for layer in range(TINY.layers) for head in range(TINY.heads)]
TEXTS = ("The cat sat on the mat.", "Then the old man said so.", "Mary saw John, and John saw her.")


@pytest.fixture
def scan(redrawn):
    """The JSON object of ``attnviz ablate ARGUMENTS --json``."""
    return lambda *arguments: redrawn("ablate", *arguments, "--json").document


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path.name


def test_many_texts_have_a_control_and_three_no_intervals(redrawn, scan, texts):
    document = scan("--texts", texts)
    assert document["text_count"] == 3
    assert ["".join(entry["tokens"][1:]) for entry in document["texts"]] == list(TEXTS)
    singles = [scan(text)["heads"] for text in TEXTS]
    controls = 0
    for place, entry in enumerate(document["heads"]):
        alone = [heads[place]["loss_delta"] for heads in singles]
        assert entry["loss_delta"] == pytest.approx(np.mean(alone), abs=1e-5)
        assert (entry["ci_low"], entry["ci_high"]) == (None, None)
        controls += "random_direction" in entry
    assert controls == 8
    screen = redrawn("ablate", "--texts", texts, "--width", "120").out
    assert "3 texts from" in screen
    assert "95% interval" not in screen
    assert "no intervals: 3 texts are too few" in screen
    assert any("no intervals: 3 texts" in note for note in document["notes"])
    assert "random vector of equal norm" in screen


PAIR = ("When Mary and John went out, John gave a book to", "--answer", "Mary", "--foil", "John")


@pytest.mark.parametrize(
    ("asked", "facts", "words"),
    [
        ((SENTENCE, "--mode", "mean"), {"reference": "the measured text itself"}, "mean ablation"),
        (
            (SENTENCE, "--mode", "mean", "--reference", "texts.txt"),
            {"reference": "3 texts of texts.txt"},
            "mean ablation over 3 texts of texts.txt",
        ),
        ((SENTENCE, "--positions", "last"), {"positions": "last"}, "last prediction of each text"),
        (
            PAIR,
            {"answer": " Mary", "foil": " John", "metric": "logit_diff"},
            'answer " Mary" against foil " John"',
        ),
    ],
)
def test_options_are_in_json_and_on_the_screen(redrawn, scan, texts, asked, facts, words):
    document = scan(*asked)
    assert {name: document[name] for name in facts} == facts
    assert ("logit_diff" in document["baseline"]) == (asked is PAIR)
    assert words in redrawn("ablate", *asked, "--width", "200").out


def test_resample_says_what_it_did_with_unequal_lengths(redrawn, scan, texts):
    document = scan("--texts", texts, "--mode", "resample", "--draws", "2")
    assert document["text_count"] == 2
    assert any("1 of 3 texts was left out" in note for note in document["notes"])
    assert any("cut to its length" in note for note in document["notes"])
    assert document["draws"] == 2
    assert "left out" in redrawn("ablate", "--texts", texts, "--mode", "resample").out


def test_gradients_are_called_a_hint(redrawn, scan):
    document = scan(SENTENCE, "--method", "gradient")
    assert len(document["heads"]) == len(NAMES)
    assert all(entry["gradient"] >= 0 for entry in document["heads"])
    assert "loss_delta" not in document["heads"][0]
    screen = redrawn("ablate", SENTENCE, "--method", "gradient").out
    assert "first-order estimate" in screen
    assert "zero ablation" not in screen


def test_a_budget_measures_the_top_of_the_gradient(redrawn, scan):
    ranked = sorted(
        scan(SENTENCE, "--method", "gradient")["heads"], key=lambda entry: -entry["gradient"]
    )
    document = scan(SENTENCE, "--budget", "5")
    measured = [entry for entry in document["heads"] if "loss_delta" in entry]
    assert {entry["name"] for entry in measured} == {
        f"L{entry['layer']}H{entry['head']}" for entry in ranked[:5]
    }
    assert len(document["heads"]) == len(NAMES)
    assert -1 <= document["rank_correlation"] <= 1
    screen = redrawn("ablate", SENTENCE, "--budget", "5", "--width", "100").out
    assert "rank correlation of gradient and exact, 5 ablations" in screen
    assert f"measured: 5 of {len(NAMES)} heads" in screen


def test_a_budget_of_time_measures_something(scan):
    document = scan(SENTENCE, "--budget", "0.01s")
    measured = [entry for entry in document["heads"] if "loss_delta" in entry]
    assert 1 <= len(measured) < len(NAMES)


def test_the_own_attention(redrawn, scan):
    options = ("a b c a b", "--model", "mha", "--heads", "4", "--d-model", "20")
    document = scan(*options)
    assert document["metric"] == "output_mse"
    assert document["heads"][0]["loss_delta"] is None
    assert document["heads"][0]["output_mse"] > 0
    report = attnviz.ablate("mha", "a b c a b", head="L0H1")
    (effect,) = report.effects
    share = 100 * effect.value("output_mse") / report.to_dict()["baseline"]["output_square"]
    assert f"{share:.1f}% of its mean square" in without_words(report, effect)
    screen = redrawn("ablate", *options).out
    assert "Random weights: differences are noise, not a ranking." in screen
    assert "Mean squared change of the output when one head is ablated" in screen
    assert "no loss for each token" in redrawn("ablate", *options, "--by-token").out


# What cannot be measured --------------------------------------------------------------------------


CAT = "The cat sat on the mat."


def test_attention_alone_has_no_feed_forward_block(refused):
    for unit in ("ffn", "layer"):
        said = refused(5, "ablate", CAT, "--model", "mha", "--unit", unit)
        assert said.endswith("without a feed-forward block: choose --unit attention")


def test_a_text_of_one_token(refused, monkeypatch, texts):
    encode = Bundled.encode
    monkeypatch.setattr(Bundled, "encode", lambda model, text: encode(model, text).cut(1))
    said = refused(2, "ablate", "--texts", texts)
    assert said.startswith("text 1 (line 1) has 1 token: a loss needs at least 2")


def test_a_resume_file_of_another_run(refused, run, tmp_path):
    path = tmp_path / "scan.jsonl"
    options = ("ablate", CAT, "--head", "L0H0", "--resume", str(path))
    assert run(*options).code == 0
    whole = path.read_bytes()
    for others, said in (
        ((*options, "--mode", "mean"), "its mode is zero, here it is mean"),
        (("ablate", "Another text.", *options[2:]), "its texts are 1 ("),
        ((*options, "--model", "mha"), "its model is tiny, here it is mha"),
        ((*options, "--head", "L0H1"), "its removals are 1 ("),
    ):
        refusal = refused(2, *others)
        assert said in refusal
        assert "it is left as it is" in refusal
        assert path.read_bytes() == whole


def test_copies_of_a_text_are_no_evidence(run, tmp_path):
    """Ten copies of one would have given intervals without width."""
    same, mixed = tmp_path / "same.txt", tmp_path / "mixed.txt"
    same.write_text("The cat sat on the mat.\n" * 10)
    document = run("ablate", "--texts", str(same), "--head", "L0H0", "--json").document
    assert "texts" not in document
    assert any("9 of 10 texts are copies" in note for note in document["notes"])
    mixed.write_text("The cat sat on the mat.\nA dog ran.\nThe cat sat on the mat.\n")
    for extra in ([], ["--mode", "resample"]):
        asked = ("ablate", "--texts", str(mixed), "--head", "L0H0", "--json", *extra)
        document = run(*asked).document
        assert len(document.get("texts", ["one"])) == (1 if extra else 2)
        assert any("1 of 3 texts is a copy" in note for note in document["notes"])


@pytest.mark.parametrize("asked", [("--answer", "sad"), ("--answer", "sad", "--foil", "glad")])
def test_a_classifier_of_several_labels_compares_none(refused, tmp_path, asked):
    """A foil would not help: a text may have both labels, so neither leads over the other."""
    model = save_classifier(tmp_path / "m", problem_type="multi_label_classification")
    said = refused(2, "ablate", "the cat sat", "--model", model, *asked)
    assert "predicts no token and no single label; leave --answer and --foil out" in said
    assert "add --foil" not in said
