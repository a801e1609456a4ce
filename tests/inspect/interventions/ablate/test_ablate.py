"""``attnviz ablate`` on small models, as a pipe and as a program see it."""

import signal
import subprocess
import time

import numpy as np
import pytest

import attnviz
from attnviz.engine.effects import Scores, Variant
from attnviz.inspect.interventions.ablate.ablate import ablation_effects, mean_baseline
from attnviz.inspect.interventions.ablate.claims import without_words
from attnviz.measures.bootstrap import bootstrap_interval
from attnviz.models.bundled import Bundled

from ....command_line import json_of
from ....terminals import POSIX
from ...classifiers import save_classifier

SENTENCE = "When Mary and John went out, John gave a book to Mary."
TINY = Bundled().info
NAMES = [f"L{layer}H{head}" for layer in range(TINY.layers) for head in range(TINY.heads)]
TEXTS = ("The cat sat on the mat.", "Then the old man said so.", "Mary saw John, and John saw her.")

scan = json_of("ablate", runner="redrawn")
PAIR = ("When Mary and John went out, John gave a book to", "--answer", "Mary", "--foil", "John")
VARIANTS = [Variant(((0, head),)) for head in range(3)]
COUNT = 32


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
    assert "95% CI" not in screen
    assert "no intervals: 3 texts are too few" in screen
    assert any("no intervals: 3 texts" in note for note in document["notes"])
    assert "random vector of equal norm" in screen


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


def test_a_text_of_one_token(refused, monkeypatch, texts):
    encode = Bundled.encode
    monkeypatch.setattr(Bundled, "encode", lambda model, text: encode(model, text).cut(1))
    said = refused(2, "ablate", "--texts", texts)
    assert said.startswith("text 1 (line 1) has 1 token: a loss needs at least 2")


def test_a_resume_file_of_another_run(refused, run, tmp_path):
    path = tmp_path / "scan.jsonl"
    options = ("ablate", "A cat sat on it.", "--head", "L0H0", "--resume", str(path))
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


def intervals(effect):
    return {name: one.interval for name, one in effect.means.items() if one.interval}


def piece(text, variants, losses, clean=2.0):
    return Scores(
        text,
        variants,
        {"loss_delta": np.array(losses), "kl": np.array(losses) * 10},
        {"loss": clean},
    )


def test_the_mean_over_texts_in_any_pieces():
    pieces = [piece(1, (2, 0), [0.5, 0.1]), piece(0, (0,), [0.3]), piece(0, (2,), [1.5])]
    first, last = ablation_effects(pieces, VARIANTS, 0)
    assert (first.variant, last.variant) == (VARIANTS[0], VARIANTS[2])
    assert first.value("loss_delta") == pytest.approx(0.2)
    assert last.value("loss_delta") == pytest.approx(1.0)
    assert first.texts == last.texts == 2
    assert intervals(first) == {}


def test_five_texts_or_more_have_an_interval_of_each_metric():
    deltas = [0.1, 0.4, 0.2, 0.3, 0.9]
    pieces = [piece(text, (0, 1), [delta, -delta]) for text, delta in enumerate(deltas)]
    first, second = ablation_effects(pieces, VARIANTS, 3)
    low, high = bootstrap_interval(np.array(deltas)[:, None], 3)
    assert intervals(first)["loss_delta"] == pytest.approx((low[0], high[0]))
    assert intervals(first)["kl"] == pytest.approx((10 * low[0], 10 * high[0]))
    below, above = intervals(second)["loss_delta"]
    assert below < -high[0] * 0.8 < above
    (four,) = ablation_effects(pieces[1:], VARIANTS[:2], 3)[:1]
    assert (four.texts, intervals(four)) == (4, {})
    with pytest.raises(ValueError, match="at least 5 texts, got 4"):
        bootstrap_interval(np.ones((4, 1)), 0)


def test_token_losses_stand_in_the_order_of_the_texts():
    pieces = [
        Scores(text, (0,), {}, {}, token_losses=np.array([[np.nan, float(text)]]))
        for text in (2, 0, 1)
    ]
    (effect,) = ablation_effects(pieces, VARIANTS, 0)
    assert [losses[1] for losses in effect.token_losses] == [0.0, 1.0, 2.0]


def test_standard_errors_of_a_mean():
    pieces = [
        Scores(text, (0,), {"kl": np.array([1.0])}, {}, {"kl": np.array([error])})
        for text, error in enumerate((0.3, 0.4))
    ]
    (effect,) = ablation_effects(pieces, VARIANTS, 0)
    assert effect.means["kl"].error == pytest.approx(0.25)  # sqrt(0.09 + 0.16) / 2


def test_the_baseline_counts_a_text_once():
    pieces = [piece(0, (0,), [0.0], 1.0), piece(0, (1,), [0.0], 1.0), piece(1, (0,), [0.0], 4.0)]
    assert mean_baseline(pieces) == {"loss": 2.5}


@pytest.fixture
def many_texts(tmp_path):
    path = tmp_path / "texts.txt"
    lines = [
        f"Text {n}: Mary saw John, and John saw {'Mary ' * (1 + n % 3)}\n" for n in range(COUNT)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def pieces(path):
    """Whole lines behind the first."""
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


@POSIX
def test_ctrl_c_shows_what_is_done(program, environment, many_texts, tmp_path):
    path = tmp_path / "scan.jsonl"
    process = subprocess.Popen(
        [*program, "ablate", "--texts", str(many_texts), "--resume", str(path), "--width", "100"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while pieces(path) < 4:
        assert process.poll() is None, "the scan ended before it could be stopped"
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = (stream.decode() for stream in process.communicate(timeout=600))
    assert process.returncode == 130
    assert "Incomplete, " in out
    assert f"of {COUNT} texts" in out
    assert err.endswith("attnviz: interrupted\n")
    assert pieces(path) >= 4
