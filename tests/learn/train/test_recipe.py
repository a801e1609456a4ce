"""A recipe is a TOML file; whatever is wrong in it is said with the field's name."""

from pathlib import Path

import pytest
import yaml

from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.recipe import (
    DecoderShape,
    Optimiser,
    Phase,
    Recipe,
    TrainingBudget,
    read_recipe,
)

_MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))


def written(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_left_out_is_the_default(tmp_path):
    assert read_recipe(written(tmp_path, "")) == Recipe()
    recipe = read_recipe(Path(__file__).with_name("partial.toml"))
    assert (recipe.vocabulary, recipe.seed, recipe.stored) == (300, 0, "float16")
    assert recipe.model == DecoderShape(layers=3, context=31)
    assert recipe.optimiser == Optimiser(learning_rate=1)
    assert recipe.budget == TrainingBudget(tokens=11)
    first, second = Phase("a", 0.25, length=5, period=(2, 3)), Phase(length=31, period=(4, 9))
    assert recipe.phase == (first, second)
    assert (recipe.validation.every, recipe.card.license) == (0.5, "mit")
    facts = recipe.identity()
    assert (facts["phase 1 until"], facts["phase 2 period"]) == (0.25, (4, 9))
    assert not any(name.startswith("card") for name in facts)


@pytest.mark.parametrize(("text", "words"), _MISTAKES)
def test_a_mistake_is_named(tmp_path, text, words):
    with pytest.raises(UsageError, match=words) as caught:
        read_recipe(written(tmp_path, text))
    assert "recipe.toml" in str(caught.value)


def test_what_is_no_toml_is_said(tmp_path):
    for path in (written(tmp_path, "a = = 1"), tmp_path / "none.toml"):
        with pytest.raises(LoadError, match="cannot be read as a recipe"):
            read_recipe(path)


@pytest.mark.parametrize(
    ("layers", "rule"),
    [
        ((2, 1), "layers must not shrink, got 2 and then 1"),
        ((1, 1), "the last phase has the model's own shape"),
        ((3, None), "layers must not shrink, got 3 and then 2"),
        ((0, None), "layers must be at least 1, got 0"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(layers, rule):
    phases = tuple(
        Phase(f"p{number}", until, layers=depth, length=13, period=(2, 5))
        for number, (until, depth) in enumerate(zip((0.5, 1.0), layers, strict=True))
    )
    with pytest.raises(UsageError, match=rule):
        Recipe(model=DecoderShape(layers=2), phase=phases)


def test_the_share_of_a_budget_that_is_used():
    assert TrainingBudget(tokens=200).used(50, 1e9) == 0.25
    assert TrainingBudget(minutes=2).used(10**9, 30) == 0.25
    assert str(TrainingBudget(tokens=1234)) == "1,234 tokens"
    assert str(TrainingBudget(minutes=1)) == "1 minute"
    assert str(TrainingBudget(minutes=1.5)) == "1.5 minutes"


def test_phases_follow_one_another_by_share_or_tokens():
    recipe = Recipe(phase=(Phase("a", 0.25), Phase("b", 0.5), Phase("c")))
    assert recipe.phase_at(0.3, index=1, read=10**9) == 1
    assert [recipe.phase_at(used) for used in (0, 0.24, 0.25, 0.49, 0.5, 0.99, 1)] == [
        *(0, 0, 1, 1, 2, 2, 2)
    ]
    recipe = Recipe(phase=(Phase("a", 0.5, tokens=100), Phase("b", 0.75, tokens=100), Phase("c")))
    assert [recipe.phase_at(0.1, 0, read) for read in (0, 99, 100, 500)] == [0, 0, 1, 1]
    assert recipe.phase_at(0.5, 0, 10) == 1
    assert recipe.phase_at(0.75, 0, 10) == 2
    assert recipe.phase_at(0.1, 1, 100) == 2
