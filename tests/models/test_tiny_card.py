"""The card of the bundled model: every score in it, computed anew from the weights."""

import csv
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import attnviz.models.bundled
from attnviz.learn.train.recipe import read_recipe
from attnviz.learn.train.scores import head_scores, open_decoder

TINY = Path(attnviz.models.bundled.__file__).parent.parent / "data" / "tiny"
ROOT = Path(__file__).parents[2]
WINDOWS = np.load(Path(__file__).with_name("tiny_windows.npy")).astype(np.int64)
"""The 32 windows of the validation books that the card speaks of, as token ids: (32, 257)."""

ROUNDED = 0.0006
"""Half a unit of the card's last digit, and what another processor rounds otherwise."""

CARD = (TINY / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def scores():
    return head_scores(open_decoder(TINY), WINDOWS, beginning=0)


def tables():
    """The tables of the card's results: for each head the means of its columns."""
    found = []
    for block in re.findall(r"\| head \|.*?(?=\n\n)", CARD, flags=re.DOTALL):
        rows = [line.strip("| ").replace("*", "").split(" | ") for line in block.splitlines()]
        found.append(
            {row[0]: [float(cell.split(" ± ")[0]) for cell in row[1:]] for row in rows[2:]}
        )
    return found


def best(scores, name, probe):
    scored = next(one for one in scores.scores if (one.name, one.probe) == (name, probe))
    return max(one.mean for row in scored.heads for one in row)


@pytest.mark.long
def test_every_score_of_the_card_is_what_its_weights_give(scores):
    stated = tables()
    assert len(stated) == 2
    for table, probe in zip(stated, ("text", "random"), strict=True):
        measured = [one for one in scores.scores if one.probe == probe]
        heads = {
            f"L{layer}H{head}": [one.heads[layer][head].mean for one in measured]
            for layer, row in enumerate(measured[0].heads)
            for head in range(len(row))
        }
        assert table.keys() == heads.keys() | {"uniform"}
        for head, means in heads.items():
            np.testing.assert_allclose(table[head], means, rtol=0, atol=ROUNDED)


@pytest.mark.long
def test_the_losses_of_the_card_are_what_its_weights_give(scores):
    second = re.search(r"second copy \*\*([\d.]+) ±", CARD)
    first = re.search(r"first copy ([\d.]+) ±", CARD)
    assert second is not None
    assert first is not None
    assert float(second[1]) == pytest.approx(scores.second_copy.mean, abs=ROUNDED)
    assert float(first[1]) == pytest.approx(scores.first_copy.mean, abs=ROUNDED)


@pytest.mark.long
def test_the_loss_on_text_is_that_of_transformers_on_the_same_windows():
    """The card's loss is over all of five books; the windows here are an even sample of them."""
    stated = re.search(r"\*\*([\d.]+) nats per token\*\*", CARD)
    assert stated is not None
    model = LlamaForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    ids = torch.from_numpy(WINDOWS)
    with torch.inference_mode():
        logits = model(ids[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), ids[:, 1:], reduction="none"
    ).mean(1)
    error = float(losses.std()) / math.sqrt(len(losses))
    assert abs(float(losses.mean()) - float(stated[1])) < 4 * error
    assert float(stated[1]) < 3.6


@pytest.mark.long
def test_it_shows_what_it_is_bundled_for(scores):
    config = open_decoder(TINY).shape
    assert config.layers * config.heads >= 24
    assert best(scores, "previous", "random") >= 0.9
    assert best(scores, "previous", "text") >= 0.85
    assert best(scores, "induction", "random") >= 0.85
    assert best(scores, "induction", "text") >= 0.35
    assert best(scores, "first", "random") >= 0.5
    assert best(scores, "first", "text") >= 0.5
    assert scores.second_copy.mean < 0.3


def test_its_recipe_and_its_curve_are_kept():
    recipe = read_recipe(ROOT / "configs" / "tiny.toml")
    assert f"seed {recipe.seed}" in CARD
    stated = re.search(r"```toml\n(.*?)```", CARD, flags=re.DOTALL)
    assert stated is not None
    told = tomllib.loads(stated[1])
    kept = tomllib.loads((ROOT / "configs" / "tiny.toml").read_text(encoding="utf-8"))
    for table in ("model", "optimiser", "budget"):
        assert {name: told[table][name] for name in kept[table]} == kept[table]
    for told_phase, kept_phase in zip(told["phase"], kept["phase"], strict=True):
        assert {name: told_phase[name] for name in kept_phase} == kept_phase
    with (TINY / "log.csv").open(newline="") as file:
        curve = list(csv.DictReader(file))
    assert int(curve[-1]["tokens"]) >= recipe.budget.tokens
    assert float(curve[-1]["valid_loss"]) < float(curve[0]["valid_loss"])
