"""``attnviz head``: each part of a card is what another command says of the same head."""

import json
import math

import numpy as np
import pytest

import attnviz
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import Theme
from attnviz.engine.attribution.circuits import one_token_writes
from attnviz.inspect.head import head as module
from attnviz.inspect.head.report import Firing, link_words
from attnviz.records import Tokens

from ..classifiers import save_classifier

TEXT = "Then Mary saw Tom. Then Mary saw"
TEXTS = [
    "When Mary and John went out, John gave Mary a book.",
    "The old house stood at the end of the lane, and the house was dark.",
    "The king had three sons, and the king loved the youngest.",
    "Tom Brown met Jane Green, and Tom liked Jane.",
    "She put down the book and took up the letter.",
    "The rain came and the wind came and the boats went out.",
]
WORDS = "the cat sat on the mat the cat"


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    return "texts.txt"


@pytest.fixture
def words(tmp_path):
    text = "the cat sat on the mat\non the mat sat the cat\nthe cat the mat the cat\n"
    (tmp_path / "words.txt").write_text(text)
    return "words.txt"


@pytest.fixture
def card(redrawn, texts):
    return redrawn("head", "L1H2", TEXT, "--texts", texts, "--json", "-q").document


def test_the_map_is_that_of_heads(run, card):
    (other,) = run("heads", TEXT, "--head", "L1H2", "--json").document["heads"]
    assert card["map"]["weights"] == other["weights"]


def test_the_label_is_that_of_patterns(run, card):
    (other,) = run("patterns", "--head", "L1H2", "--json").document["heads"]
    assert card["label"] == other
    assert other["label"] == "induction"


def test_the_loss_is_that_of_ablate(run, card, texts):
    found = run("ablate", "--texts", texts, "--head", "L1H2", "--by-token", "--json", "-q").document
    (other,) = found["heads"]
    losses = other.pop("token_loss_deltas")
    mine = card["ablation"]
    assert mine["baseline"] == found["baseline"]
    assert {name: mine[name] for name in other} == other
    flat = [
        (change, text, place)
        for text, row in enumerate(losses)
        for place, change in enumerate(row)
        if change is not None
    ]
    assert card["predictions"] == len(flat)
    assert [(one["loss_delta"], one["text"], one["place"]) for one in card["hurts"]] == [
        (change, text, place) for change, text, place in sorted(flat, reverse=True)[:5]
    ]


def test_what_it_writes_is_that_of_why(run, card):
    found = run("why", TEXT, "--json").document
    (other,) = [part for part in found["parts"] if (part["layer"], part["head"]) == (1, 2)]
    assert card["writes"]["contribution"] == other["contribution"]
    assert card["writes"]["base_rate"] == other["base_rate"]
    assert card["writes"]["answer"] == found["answer"]["token"] == " Tom"


def near(entry):
    """The entry, whose numbers may differ by the rounding of float32.

    A card follows several heads at once, and NumPy sums in an order that depends on how many.
    """
    return {
        name: pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value
        for name, value in entry.items()
    }


def test_what_it_reads_and_who_reads_it_is_that_of_path(run, card):
    heads = run("path", "L1H2", "--json").document["heads"]
    assert len(heads) == len(card["read_by"])
    by_place = {(one["layer"], one["head"], one["into"]): one for one in heads}
    for one in card["read_by"]:
        assert one == near(by_place[one["layer"], one["head"], one["into"]])
    first = card["read_from"][0]
    assert (first["sender"], first["into"]) == ([0, 0], "key")
    for sender in range(4):
        heads = run("path", f"L0H{sender}", "--json").document["heads"]
        other = {one["into"]: one for one in heads if (one["layer"], one["head"]) == (1, 2)}
        mine = {one["into"]: one for one in card["read_from"] if one["sender"] == [0, sender]}
        assert other.keys() == mine.keys()
        for into, one in mine.items():
            assert {name: value for name, value in one.items() if name != "sender"} == near(
                other[into]
            )


def test_the_cost_is_that_of_params(run, card):
    found = run("params", "--model", "tiny", "--json").document
    cost = card["cost"]
    assert {name: cost[name] for name in found["per_head"]} == found["per_head"]
    cache = found["kv_cache"]["bytes_per_token"]
    assert cost["cache_bytes"] * 24 == cache
    assert cost["total"] == 4 * 256 * 32


def test_where_it_fires_is_the_largest_weight_of_each_text(run, card):
    """An oracle by hand: neither the first token's column nor the diagonal."""
    expected = []
    for number, text in enumerate(TEXTS):
        (head,) = run("heads", text, "--head", "L1H2", "--json").document["heads"]
        weights = np.array(head["weights"])
        weights[:, 0] = weights[0] = 0
        np.fill_diagonal(weights, 0)
        query, key = np.unravel_index(weights.argmax(), weights.shape)
        expected.append((float(weights.max()), number, int(query), int(key)))
    expected.sort(reverse=True)
    for one, (weight, *place) in zip(card["fires"], expected, strict=False):
        assert one["weight"] == pytest.approx(weight, abs=1e-6)
        assert [one["text"], one["query"], one["key"]] == place
    assert len(card["fires"]) == 5


def test_one_token_writes_by_hand():
    """What the head writes over one token, through the norm's scale of this run, in plain NumPy."""
    model = attnviz.load("tiny")
    stack = model.stack
    found = one_token_writes(model, [("self", 1, 2)], tokens=8, most=8)["self", 1, 2]
    for read, written, logits in found.strongest:
        trace = stack.traced([read], lambda layer, weights: weights)
        layer = trace.layers[1]
        part = layer.output[:, 2] @ layer.values[2][0]
        scale = math.sqrt(float(np.mean(trace.residual[0] ** 2)) + stack.shape.norm_eps)
        raised = stack.unembedding[0] @ (part / scale * stack.tensors["final_norm.weight"])
        assert written == raised.argmax()
        assert logits == pytest.approx(float(raised.max() - raised.mean()), rel=1e-4)


def test_the_finding_is_about_this_head(redrawn):
    shown = redrawn("head", "L1H2", "--no-full").lines
    assert shown[1].startswith(
        "L1H2: induction .87 (chance .02, 95% CI .85–.90, 9 texts). Ablating it"
    )
    assert "has no label" in redrawn("head", "L3H2", "--no-full").lines[1]


def test_a_link_between_two_copies_of_a_word_names_no_pieces():
    pieces = Tokens(tuple(range(5)), ("Fat", "oum", " and", " Fat", "oum"), (False,) * 5)
    link = Firing(0, pieces, pieces, query=4, key=0, weight=1.0)
    assert link_words(link) == "Fatoum (3) → Fatoum (0)"


def test_random_weights_claim_nothing(run):
    shown = run("head", "L0H1", TEXT, "--model", "mha").out
    assert "Random weights: L0H1 has learnt nothing; its numbers are arbitrary." in shown
    assert "label    none: random weights" in shown


def test_shared_keys_say_so(redrawn, checkpoint, words):
    arguments = "head", "L1H3", WORDS, "--texts", words, "--model", str(checkpoint("llama")), "-q"
    found = redrawn(*arguments, "--json").document
    info = found["model"]
    assert found["cost"]["group"] == info["heads"] // info["kv_heads"] > 1
    assert found["cost"]["cache_bytes"] == 2 * info["head_dim"] * 4
    assert "keys and values shared by" in redrawn(*arguments).out


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ((), {"writes", "copies", "paths"}),
        pytest.param(("--kind", "cross"), {"label", "copies", "paths"}, marks=pytest.mark.long),
    ],
)
def test_what_a_model_does_not_have_is_said(run, checkpoint, words, tmp_path, options, missing):
    """The tokenizer knows no word of the built-in pairs, so that no path is followed."""
    model = "--model", str(checkpoint("t5"))
    saved = tmp_path / "card.json"
    arguments = ("head", "L1H1", WORDS, "--texts", words, *model, *options, "-q")
    lines = [
        line for line in run(*arguments, "--save", str(saved)).lines if " not measured:" in line
    ]
    assert set(json.loads(saved.read_text())["missing"]) == missing
    assert {line.split()[0] for line in lines} >= {"copies", "reads"} & missing


def test_an_encoder_without_predictions(run, trained_bert, words):
    arguments = "head", "L0H1", WORDS, "--texts", words, "--model", str(trained_bert), "-q"
    found = run(*arguments, "--json").document
    assert {"writes", "copies"} <= set(found["missing"])
    assert found["cost"]["cache_bytes"] == 0
    assert found["ablation"]["output_mse"] > 0


def test_every_file(redrawn, tmp_path):
    names = [f"card.{ending}" for ending in ("csv", "md", "html", "svg")]
    saved = [word for name in names for word in ("--save", str(tmp_path / name))]
    assert redrawn("head", "L1H2", *saved, "-q").code == 0
    rows = (tmp_path / "card.csv").read_text().splitlines()
    assert rows[0] == "layer,head,part,of,value"
    assert any(row.startswith("1,2,score,induction,0.87") for row in rows)
    assert all("L1H2" in (tmp_path / name).read_text() for name in names[1:])


def test_ctrl_c_keeps_what_is_done(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "why", interrupted)
    found = attnviz.head("tiny", (1, 2), TEXT, TEXTS)
    assert not found.complete
    assert found.effect is not None
    assert found.why is None
    assert found.missing["writes"] == found.missing["paths"] == "interrupted"
    assert found.finding.startswith("Incomplete. L1H2 (induction")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "L1H2",
            "Then Mary saw Tom. Then Mary saw",
            "from “saw” (8) to “Tom”, which followed “saw” (3)",
        ),
        (
            "L3H1",
            "The cat sat because it was tired.",
            "of two words here from “it” to “because” (.89)",
        ),
        ("L3H1", "The boy carried the lamp home.", "L3H1 (object 1.0) attends (.9"),
    ],
)
def test_the_finding_is_about_a_given_text(name, text, said):
    card = attnviz.head("tiny", name, text, TEXTS[:1])
    assert said in card.finding
    told = f"{card.written.value:+.2f}"[:4] in card.finding
    assert told == (abs(card.written.value) >= 0.1 * abs(card.why.logit))


@pytest.mark.long
def test_a_small_screen_on_a_given_text_keeps_label_and_loss():
    """The finding is about the text then, and says neither."""
    card = attnviz.head("tiny", "L1H2", "Anna lost the key, so Peter asked Anna where the key")
    shown = first_screen(card.document(), Theme(colour=False), 80, 23).plain.splitlines()
    assert any(line.startswith("label    induction .87 · chance .02") for line in shown)
    assert any(line.startswith("ablated  +0.0343 nats/token") for line in shown)


def test_the_card_of_a_classifier(run, texts, tmp_path):
    """Its labels have numbers as keys in the config that transformers has read."""
    place = save_classifier(tmp_path)
    found = run("head", "L1H0", WORDS, "--model", place, "--texts", texts, "--json", "-q").document
    (other,) = run("heads", WORDS, "--model", place, "--head", "L1H0", "--json").document["heads"]
    np.testing.assert_allclose(found["map"]["weights"], other["weights"], atol=1e-6)
    why = run("why", WORDS, "--model", place, "--json", "-q").document
    assert found["writes"]["answer"] == why["answer"]["token"]
    total = run("params", place, "--json").document["total"]
    assert attnviz.params(attnviz.load(place)).to_dict()["total"] == total
