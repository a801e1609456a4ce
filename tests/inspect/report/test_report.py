"""``attnviz report``: its parts are those of the other commands over the same model and texts."""

import re
from dataclasses import replace

import pytest

import attnviz
from attnviz.inspect.interventions.study import Mean
from attnviz.inspect.report import report as module

from ..head.test_head import TEXTS


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    return "texts.txt"


@pytest.mark.long
def test_the_parts_are_those_of_the_other_commands(run, redrawn, texts):
    found = redrawn("report", "--texts", texts, "--cards", "2", "--json", "-q").document
    assert found["labels"] == run("patterns", "--json").document["heads"]
    ablated = run("ablate", "--texts", texts, "--json", "-q").document
    assert found["ablation"]["baseline"] == ablated["baseline"]
    for mine, other in zip(found["ablation"]["heads"], ablated["heads"], strict=True):
        names = ("layer", "head", "loss_delta", "ci_low", "ci_high", "adjusted_p", "kl")
        assert [mine[name] for name in names] == [other[name] for name in names]
    params = run("params", "--model", "tiny", "--json").document
    assert found["params"] == {name: params[name] for name in params if name != "schema"}
    assert found["vocabulary"] == len(attnviz.load("tiny").vocabulary().plain)
    worst = sorted(ablated["heads"], key=lambda each: -each["loss_delta"])[:2]
    assert [card["name"] for card in found["cards"]] == [each["name"] for each in worst]


@pytest.mark.long
def test_a_card_is_that_of_head(run, redrawn, texts):
    card, _ = redrawn("report", "--texts", texts, "--cards", "2", "--json", "-q").document["cards"]
    alone = run("head", card["name"], "--texts", texts, "--json", "-q").document
    for name in ("map", "fires", "writes", "one_token", "read_from", "cost"):
        assert card[name] == alone[name], name
    assert card["label"]["label"] == alone["label"]["label"]
    for name in ("scores", "base_rate"):
        assert card["label"][name] == pytest.approx(alone["label"][name])
    assert card["ablation"]["loss_delta"] == pytest.approx(alone["ablation"]["loss_delta"])
    for one, other in zip(card["read_by"], alone["read_by"], strict=True):
        assert one == pytest.approx(other)
    for one, other in zip(card["hurts"], alone["hurts"], strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_the_finding(redrawn):
    lines = redrawn("report", "--no-full").lines
    assert lines[1].startswith("13 of 24 heads have a label; 3 more are sink heads. Ablating L0H0")
    assert lines[2].endswith("followed by L1H1 and L3H1.")
    random = redrawn("report", "mha", "--no-full").out
    assert "Random weights: no head has a label" in random


def test_a_page_has_the_cards(redrawn, tmp_path):
    path = tmp_path / "report.html"
    assert redrawn("report", "--save", str(path), "-q").code == 0
    page = re.sub("<[^>]*>", "", path.read_text())
    assert "report on tiny" in page
    for words in ("L0H0: previous token .85", "L1H1: current token", "correction: 24 ablations"):
        assert words in page


@pytest.mark.long
def test_what_a_budget_leaves_out_and_fewer_cards_than_were_wanted_are_said(redrawn, texts):
    arguments = ("report", "--texts", texts, "--budget", "3 heads", "--cards", "99", "-q")
    found = redrawn(*arguments, "--json").document
    assert found["ablation"]["method"] == "budget"
    heads = found["ablation"]["heads"]
    costly = [head for head in heads if head["loss_delta"] > 0]
    assert len(found["cards"]) == len(costly) <= len(heads) == 3
    said = f"cards of {len(costly)} heads, not 99: no other ablated head costs loss"
    assert said in found["notes"]
    out = " ".join(redrawn(*arguments).out.split())
    assert said in out
    assert "budget: 21 heads of 24 not ablated" in out


def test_ctrl_c_keeps_what_is_done(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "ablate", interrupted)
    found = attnviz.report("tiny", TEXTS)
    assert not found.complete
    assert found.ablation is None
    assert found.scored is not None
    assert not found.cards
    assert found.missing["cards"] == "interrupted"
    monkeypatch.setattr(module, "patterns", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attnviz.report("tiny", TEXTS)


def test_ctrl_c_while_heads_are_ablated_concludes_nothing(monkeypatch):
    """Of the texts that are done nothing is concluded, and no card is begun."""
    whole = module.ablate

    def partly(*arguments, **options):
        found = whole(*arguments, **options)
        return replace(found, texts=found.texts[:1], texts_wanted=3, complete=False)

    monkeypatch.setattr(module, "ablate", partly)
    monkeypatch.setattr(module, "head_cards", None)
    found = attnviz.report("tiny", TEXTS[:1])
    assert found.missing["cards"] == "interrupted"
    assert not found.complete
    said = found.document().finding
    assert said.startswith("Incomplete, 1 of 3 texts. 13 of 24 heads")
    assert "No head clearly matters" not in said


def test_a_head_whose_removal_clearly_lowers_the_loss_is_named():
    """A head that does harm matters too: nobody reads that no head does."""
    found = attnviz.report("tiny", TEXTS[:1], cards=0)
    lower, unclear = Mean(-0.3, (-0.4, -0.2), 0.01), Mean(0.1, (-0.1, 0.3), 0.9)
    effects = tuple(
        replace(effect, means={"loss_delta": mean})
        for effect, mean in zip(found.ablation.effects[:2], (lower, unclear), strict=True)
    )
    said = replace(found, ablation=replace(found.ablation, effects=effects)).document().finding
    assert f"Ablating {found.ablation.name(effects[0].variant)} lowers the loss by 0.300" in said
    assert "the largest clear effect" in said
    assert "No head clearly matters" not in said
