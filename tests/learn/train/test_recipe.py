"""A recipe is a TOML file; whatever is wrong in it is said with the field's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.recipe import (
    DecoderShape,
    Optimiser,
    Phase,
    Recipe,
    TrainingBudget,
    read_recipe,
)
from attnviz.learn.train.tables import table_text

ROOT = Path(__file__).parents[3]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_left_out_is_the_default(tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path, "")) == Recipe()


def test_every_part_is_read(tmp_path: Path) -> None:
    text = """
        vocabulary = 300
        seed = 7
        stored = "float16"
        [model]
        layers = 3
        context = 31
        [optimiser]
        learning_rate = 1
        [budget]
        tokens = 11
        [[phase]]
        name = "a"
        until = 0.25
        length = 5
        period = [2, 3]
        [[phase]]
        length = 31
        period = [4, 9]
        [validation]
        every = 0.5
        [card]
        license = "mit"
        """
    recipe = read_recipe(written(tmp_path, text))
    assert (recipe.vocabulary, recipe.seed, recipe.stored) == (300, 7, "float16")
    assert recipe.model == DecoderShape(layers=3, context=31)
    assert recipe.optimiser == Optimiser(learning_rate=1)
    assert recipe.budget == TrainingBudget(tokens=11)
    first, second = recipe.phases
    assert first == Phase("a", 0.25, length=5, period=(2, 3))
    assert second == Phase(length=31, period=(4, 9))
    assert (recipe.validation.every, recipe.card.license) == (0.5, "mit")


@pytest.mark.parametrize("path", [None, ROOT / "configs" / "tiny.toml"])
def test_a_recipe_is_written_as_it_is_read(tmp_path: Path, path: Path | None) -> None:
    recipe = Recipe() if path is None else read_recipe(path)
    assert read_recipe(written(tmp_path, table_text(recipe))) == recipe


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vocabulary = 257", r"vocabulary must be from 258 \(.* to 1,000,000, got 257"),
        ("seed = 1.5", "seed must be a whole number, got 1.5"),
        ('autocast = "int8"', "autocast must be auto, bfloat16 or float32, got 'int8'"),
        ("learning_rate = 1", r"no field 'learning_rate'; it belongs in \[optimiser\]"),
        ("length = 9", r"'length'; it belongs in \[\[phase\]\] or \[validation\]"),
        ("lr = 9", r"no field 'lr'; known: vocabulary, seed, .*, \[\[phase\]\], "),
        ('[[phase]]\nname = "a\\u001b[31m"', "name must be text that can be printed, got"),
        ("[model]\ninitializer_range = inf", "initializer_range must be above 0, and finite"),
        ("sed = 1", "no field 'sed'; did you mean 'seed'?"),
        ("[model]\nlayer = 2", r"\[model\] has no field 'layer'; did you mean 'layers'?"),
        ("[[phase]]\ntokens = 5", "the last phase goes on to the end: leave out its tokens"),
        ("[[phase]]\nuntil = 0.5\ntokens = 0\n[[phase]]", "tokens must be 1 or more, got 0"),
        ("[optimiser]\nweight_decay = inf", "weight_decay must be 0 or more, and finite"),
        ("[budget]\ntokens = 5\nminutes = 1", "tokens or of minutes: give one"),
        ("[validation]\nlength = 2048", "length must be at most the model's context, 1024"),
        ("phase = 3", "phase must be a list of tables"),
        ("[[phase]]\nuntil = 0.5", "until must rise, the last one to 1"),
        ("[[phase]]\nlength = 1025", "length must be at most the model's context, 1024"),
        ("[[phase]]\nrepeated_tokens = 0.6\nrepeated_passages = 0.6", "shares of the sequences"),
        ("[[phase]]\nperiod = 3", "period must be two whole numbers"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read_recipe(written(tmp_path, text))
    assert "recipe.toml" in str(caught.value)


@pytest.mark.parametrize("text", ["a = = 1", None])
def test_a_file_that_is_no_toml_or_not_there(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "none.toml" if text is None else written(tmp_path, text)
    with pytest.raises(LoadError, match="cannot be read as a recipe"):
        read_recipe(path)


def test_the_share_of_a_budget_that_is_used() -> None:
    assert TrainingBudget(tokens=200).used(50, 1e9) == 0.25
    assert TrainingBudget(minutes=2).used(10**9, 30) == 0.25
    assert (str(TrainingBudget(tokens=1234)), str(TrainingBudget(minutes=1))) == (
        "1,234 tokens",
        "1 minute",
    )
    assert str(TrainingBudget(minutes=1.5)) == "1.5 minutes"


def test_phases_follow_one_another_by_share_or_tokens() -> None:
    recipe = Recipe(phases=(Phase("a", 0.25), Phase("b", 0.5), Phase("c")))
    assert recipe.phase(0.3, index=1, read=10**9) == 1
    assert [recipe.phase(used) for used in (0, 0.24, 0.25, 0.49, 0.5, 0.99, 1)] == [
        *(0, 0, 1, 1, 2, 2, 2)
    ]
    recipe = Recipe(phases=(Phase("a", 0.5, tokens=100), Phase("b", 0.75, tokens=100), Phase("c")))
    assert [recipe.phase(0.1, 0, read) for read in (0, 99, 100, 500)] == [0, 0, 1, 1]
    assert recipe.phase(0.5, 0, 10) == 1
    assert recipe.phase(0.75, 0, 10) == 2
    assert recipe.phase(0.1, 1, 100) == 2
