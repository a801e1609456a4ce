"""What a run leaves in its directory, and what it refuses to go on from."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.recipe import Optimiser, TrainingBudget
from attnviz.learn.train.train import CARD_FILE, STATE_FILE, TrainingRun

CPU = torch.device("cpu")
NO_STATE = "is not a training state, or is damaged"


def test_the_card_has_what_a_person_said_and_what_was_measured(finished):
    report = finished[1]
    card = (Path(report.directory) / CARD_FILE).read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["license"], front["language"]) == ("cc0-1.0", "en")
    assert "# my \\*model\\*\n\nMine.\n\nCats and\n\ndogs.\n\n" in card
    assert f"{report.valid_loss:.3f} nats per token" in card
    layer, head, best = report.scores.score("previous", "text").best
    assert f"| previous token | {best.mean:.2f} |" in card
    assert f"| L{layer}H{head} |" in card
    assert "budget tokens 5000" in card
    assert "Mine" not in card.partition("recipe: ")[2]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 1}, "seed is 0, here it is 1"),
        ({"budget": TrainingBudget(minutes=2)}, "budget tokens are 5000, here they are null"),
        ({"optimiser": Optimiser(clip=2.0)}, "optimiser clip is 1.0, here it is 2.0"),
        ({"last": {"period": (3, 8)}}, r"phase 2 period is \[3, 7\], here it is \[3, 8\];"),
        ({}, "validation text is"),
    ],
)
def test_another_recipe_or_text_is_no_resumption(texts, recipe, tmp_path, change, name):
    TrainingRun(*texts, recipe, tmp_path, CPU).save_state()
    before = (tmp_path / STATE_FILE).read_bytes()
    valid = texts[1] if change else replace(texts[1], digest="0" * 12)
    if "last" in change:
        change = {"phase": (recipe.phase[0], replace(recipe.phase[1], **change["last"]))}
    with pytest.raises(UsageError, match=f"is of another run: its {name}"):
        TrainingRun(texts[0], valid, replace(recipe, **change), tmp_path, CPU, resume=True)
    assert (tmp_path / STATE_FILE).read_bytes() == before


def _one_other_byte(content):
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _other(**fields):
    def change(content):
        changed = io.BytesIO()
        torch.save({**torch.load(io.BytesIO(content), weights_only=True), **fields}, changed)
        return changed.getvalue()

    return change


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (lambda _: b"", NO_STATE),
        (lambda content: content[:-1000], NO_STATE),
        (_one_other_byte, NO_STATE),
        (_other(points=[{"step": 1, "far": 2}]), r"training.pt. is damaged .*: begin again"),
        (_other(form=0), "another version of attnviz"),
    ],
)
def test_what_is_no_state_is_said(texts, recipe, tmp_path, damaged, said):
    TrainingRun(*texts, recipe, tmp_path, CPU).save_state()
    path = tmp_path / STATE_FILE
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(LoadError, match=said):
        TrainingRun(*texts, recipe, tmp_path, CPU, resume=True)
