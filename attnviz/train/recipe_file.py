"""A recipe read from a TOML file, every wrong field named."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnviz.errors import UsageError
from attnviz.reading import read_toml
from attnviz.train.recipe import Budget, Card, Optimiser, Phase, Recipe, Shape, Validation

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["read_recipe"]

_Part = TypeVar("_Part", bound="DataclassInstance")


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file; what it leaves out is as in ``Recipe()``.

    Raises LoadError where the file cannot be read or is no TOML, UsageError, naming the field,
    where it says something else than a recipe.
    """
    table = read_toml(path, "a recipe")
    try:
        return _recipe(table)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from error


_TABLES: Mapping[str, type[DataclassInstance]] = {
    "model": Shape,
    "optimiser": Optimiser,
    "budget": Budget,
    "validation": Validation,
    "card": Card,
}


def _recipe(table: Mapping[str, Any]) -> Recipe:
    parts = dict(table)
    if "phase" in parts:
        listed = parts.pop("phase")
        if not (isinstance(listed, list) and all(isinstance(item, dict) for item in listed)):
            raise UsageError("phase must be a list of tables: [[phase]]")
        parts["phases"] = tuple(_phase(item) for item in listed)
    elif "phases" in parts:
        raise UsageError("no field 'phases'; did you mean [[phase]]?")
    for name, kind in _TABLES.items():
        if name in parts:
            if not isinstance(parts[name], dict):
                raise UsageError(f"{name} must be a table: [{name}]")
            parts[name] = _part(kind, parts[name], f"[{name}] ")
    return _part(Recipe, parts, "")


def _phase(values: Mapping[str, Any]) -> Phase:
    parts = dict(values)
    if "period" in parts:
        period = parts["period"]
        if not (
            isinstance(period, list)
            and len(period) == 2
            and all(isinstance(one, int) and not isinstance(one, bool) for one in period)
        ):
            raise UsageError(f"[[phase]] period must be two whole numbers, got {period!r}")
        parts["period"] = tuple(period)
    return _part(Phase, parts, "[[phase]] ")


def _part(kind: type[_Part], values: Mapping[str, Any], place: str) -> _Part:
    """An instance of a part of the recipe; UsageError for unknown names and other types."""
    known = {one.name: str(one.type) for one in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"{place}has no field {name!r}{_hint(name, known)}")
        _check_type(place + name, known[name], value)
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{place}{error}") from error


def _hint(name: str, known: Iterable[str]) -> str:
    """Where a field that is not known here may belong, or how it may be written."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    tables = [f"[{table}]" for table, kind in _TABLES.items() if name in _fields(kind)]
    tables += ["[[phase]]"] if name in _fields(Phase) else []
    if tables:
        return f"; it belongs in {' or '.join(tables)}"
    written = ("[[phase]]" if one == "phases" else one for one in known)
    return f"; known: {', '.join(written)}"


def _fields(kind: type[DataclassInstance]) -> list[str]:
    return [one.name for one in fields(kind)]


def _check_type(name: str, kind: str, value: object) -> None:
    plain = not isinstance(value, bool)
    if kind.startswith("int") and not (plain and isinstance(value, int)):
        raise UsageError(f"{name} must be a whole number, got {value!r}")
    if kind.startswith("float") and not (plain and isinstance(value, int | float)):
        raise UsageError(f"{name} must be a number, got {value!r}")
    if kind in ("str", "StoredType") and not isinstance(value, str):
        raise UsageError(f"{name} must be a text in quotes, got {value!r}")
