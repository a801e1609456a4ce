"""A recipe written as the TOML file that ``read_recipe`` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attnviz.training.recipe import Recipe

__all__ = ["recipe_text"]


def recipe_text(recipe: Recipe) -> str:
    """The whole recipe, what was left to defaults included."""
    values = recipe.values()
    phases = values.pop("phases")
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = list(_pairs({name: value for name, value in values.items() if name not in tables}))
    for name, table in tables.items():
        if pairs := list(_pairs(table)):
            lines += ["", f"[{name}]", *pairs]
    for phase in phases:
        lines += ["", "[[phase]]", *_pairs(phase)]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    """What says nothing is left out: TOML has no null, and an empty text is the default."""
    for name, value in values.items():
        if value is not None and value != "":
            # JSON's numbers, texts and lists are TOML's.
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
