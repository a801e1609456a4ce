"""The card says what was measured, and nothing in it acts as anything but text."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from tokenizers import Tokenizer

from attnviz.learn.train.card import card_text
from attnviz.learn.train.recipe import Card, Recipe, read_recipe
from attnviz.learn.train.report import TrainReport
from attnviz.learn.train.scores import head_scores, open_decoder, text_windows
from attnviz.learn.train.texts import Corpus, encode
from attnviz.learn.train.train import TrainingRun

from .conftest import points_of

Texts = tuple[Corpus, Corpus]
CARD = Card(
    name="my *model*", license="cc0-1.0", language="en", data="Mine.", limits="Cats\nand\n\ndogs."
)


@pytest.fixture(scope="module")
def result(texts: Texts, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> TrainReport:
    directory = tmp_path_factory.mktemp("trained") / "m"
    run = TrainingRun(*texts, replace(recipe, card=CARD), directory, torch.device("cpu"))
    points_of(run)
    return run.finish()


def front(card: str) -> dict[str, object]:
    """Its YAML, as Hugging Face reads it."""
    found = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(found, dict)
    return found


def scores_in(card: str) -> list[dict[str, float]]:
    """The two tables of head scores: by ``L0H0 previous``."""
    tables: list[dict[str, float]] = []
    names: list[str] = []
    for line in card.splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if cells[0] == "head":
            names = cells[1:]
            tables.append({})
        elif re.fullmatch(r"L\d+H\d+", cells[0]):
            for name, cell in zip(names, cells[1:], strict=True):
                tables[-1][f"{cells[0]} {name}"] = float(cell.split(" ±")[0])
    return tables


def test_scores_of_the_card_come_from_the_stored_weights(
    result: TrainReport, texts: Texts, recipe: Recipe
) -> None:
    directory = Path(result.directory)
    card = (directory / "README.md").read_text()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    windows = text_windows(encode(tokenizer, texts[1].texts, 0), recipe.phases[-1].length, 0)
    again = head_scores(open_decoder(directory), windows, beginning=0)
    assert again == result.scores
    for table, probe in zip(scores_in(card), ("text", "random"), strict=True):
        measured = {
            f"L{layer}H{head} {scored.name}": one.mean
            for scored in again.scores
            if scored.probe == probe
            for layer, row in enumerate(scored.heads)
            for head, one in enumerate(row)
        }
        assert table == pytest.approx(measured, abs=6e-4)
    text, random = front(card)["model-index"][0]["results"]  # type: ignore[index]
    assert text["metrics"][0]["value"] == pytest.approx(result.valid_loss, abs=1e-4)
    assert random["metrics"][0]["value"] == pytest.approx(again.second_copy.mean, abs=1e-4)


def test_it_says_what_a_person_said(result: TrainReport) -> None:
    card = (Path(result.directory) / "README.md").read_text()
    said = front(card)
    assert (said["license"], said["language"]) == ("cc0-1.0", "en")
    assert "# my \\*model\\*\n" in card
    assert "Mine." in card
    assert "## Limits\n\nCats and\n\ndogs.\n\nA toy: " in card
    assert f"{result.valid_loss:.3f} nats per token" in card


def test_its_recipe_trains_the_same(
    result: TrainReport, texts: Texts, recipe: Recipe, tmp_path: Path
) -> None:
    match = re.search(r"```toml\n(.*?)```", card_text(result, recipe, *texts), re.DOTALL)
    assert match is not None
    assert tomllib.loads(match[1])["budget"] == {"tokens": 5000}
    path = tmp_path / "recipe.toml"
    path.write_text(match[1])
    assert read_recipe(path) == recipe


def test_files_are_listed_and_their_names_are_harmless(
    result: TrainReport, texts: Texts, recipe: Recipe
) -> None:
    name = "a|b<script>\x1b[31m[x](y).txt"
    train = replace(texts[0], names=(name,), files=((name, 1, "ab"),))
    card = card_text(result, recipe, train, texts[1])
    assert "\x1b" not in card
    assert "<script>" not in card.replace("\\<", "")
    assert "a\\|b\\<script\\>" in card
    assert "the last tenth of the same text" in card
    apart = card_text(result, recipe, train, replace(texts[1], held_out=False))
    assert "that it never saw" in apart
