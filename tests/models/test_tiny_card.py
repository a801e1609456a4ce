"""The card of the bundled model tells the recipe and the curve that it was trained by."""

import csv
import re
import tomllib
from pathlib import Path

import attnviz.models.bundled
from attnviz.learn.train.recipe import read_recipe

TINY = Path(attnviz.models.bundled.__file__).parent.parent / "data" / "tiny"
ROOT = Path(__file__).parents[2]

CARD = (TINY / "README.md").read_text(encoding="utf-8")


def test_its_recipe_and_its_curve_are_kept():
    recipe = read_recipe(ROOT / "configs" / "tiny.toml")
    assert f"seed {recipe.seed}" in CARD
    stated = re.search(r"```toml\n(.*?)```", CARD, flags=re.DOTALL)
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
