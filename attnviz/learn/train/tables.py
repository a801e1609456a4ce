"""TOML files as frozen dataclasses: a class per table, a field per value.

Each field declares its default and its rule once, for checking, reading and writing.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from attnviz.errors import UsageError
from attnviz.reading import read_toml

_Read = TypeVar("_Read", bound="FieldTable")


@dataclass(frozen=True)
class FieldRule:
    """A condition on a TOML file's value. words: describes it. holds: tests the value."""

    words: str
    holds: Callable[[Any], bool]


def value(default: Any, rule: FieldRule) -> Any:
    """Return a field whose value must follow a rule or be None.

    default: the value if the file does not set it.
    """
    return field(default=default, metadata={"rule": rule})


def choice(default: str, *allowed: str) -> Any:
    """Return a field whose value must be one of the ``allowed`` strings.

    default: the value if the file does not set it.
    """
    *most, last = allowed
    return value(default, FieldRule(f"{', '.join(most)} or {last}", lambda one: one in allowed))


def listed(default: tuple[FieldTable, ...], name: str) -> Any:
    """Return a field for a list of tables, each written as ``[[name]]`` in the file.

    default: the tables if the file has none.
    """
    return field(default=default, metadata={"name": name})


def demand(holds: bool, rule: str, given: object) -> None:
    """Raise UsageError, with the rule and the given value in its message, unless ``holds``.

    rule: a description of the rule.
    """
    if not holds:
        raise UsageError(f"{rule}, got {given!r}")


@dataclass(frozen=True)
class FieldTable:
    """A base class for tables of a TOML file; each field is a key.

    Raises UsageError that names the field if a value breaks its rule.
    """

    def __post_init__(self) -> None:
        for one in fields(self):
            given, rule = getattr(self, one.name), one.metadata.get("rule")
            if rule is not None and given is not None:
                demand(rule.holds(given), f"{one.name} must be {rule.words}", given)


def read_table(kind: type[_Read], path: Path, what: str) -> _Read:
    """Return the contents of a TOML file as a dataclass; missing fields have their defaults.

    kind: the class to make. path: of the file. what: a name for the file, such as ``a recipe``.
    Raises LoadError if the file cannot be read or is not TOML, UsageError that names the field if a
    value is not valid.
    """
    values = read_toml(path, what)
    try:
        return _read(kind, values, "", kind)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from error


def _read(
    kind: type[_Read], values: Mapping[str, Any], place: str, root: type[FieldTable]
) -> _Read:
    """Return one table of a TOML file as a dataclass; raise UsageError for wrong names or types.

    kind: the class to make. values: the parsed table. place: its heading, for messages. root: the
    class of the whole file.
    """
    own, types = _names(kind), get_type_hints(kind)
    read = {}
    for name, given in values.items():
        if name not in own:
            raise UsageError(f"{place}has no field {name!r}{_hint(name, own, root)}")
        read[own[name]] = _value(name, types[own[name]], given, place, root)
    try:
        return kind(**read)
    except UsageError as error:
        raise UsageError(f"{place}{error}") from error


def _names(kind: type[FieldTable]) -> dict[str, str]:
    """Return the field name in the class ``kind`` for each key in the file."""
    return {one.metadata.get("name", one.name): one.name for one in fields(kind)}


def _value(name: str, kind: Any, given: Any, place: str, root: type[FieldTable]) -> Any:
    """Return a value of a TOML file converted to the type of its field."""
    if _is_table(kind):
        if not isinstance(given, dict):
            raise UsageError(f"{name} must be a table: [{name}]")
        return _read(kind, given, f"[{name}] ", root)
    if row := _listed(kind):
        if not (isinstance(given, list) and all(isinstance(one, dict) for one in given)):
            raise UsageError(f"{name} must be a list of tables: [[{name}]]")
        return tuple(_read(row, one, f"[[{name}]] ", root) for one in given)
    if kind == tuple[int, int]:
        if not (isinstance(given, list) and [*map(type, given)] == [int, int]):
            raise UsageError(f"{place}{name} must be two whole numbers, got {given!r}")
        return tuple(given)
    types = (kind, *get_args(kind))
    wanted: tuple[type, ...] = (str,)
    words = "a text in quotes"
    if int in types:
        wanted, words = (int,), "a whole number"
    elif float in types:
        wanted, words = (int, float), "a number"
    if type(given) not in wanted:  # True is an int, and no number here
        raise UsageError(f"{place}{name} must be {words}, got {given!r}")
    return given


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, FieldTable)


def _listed(kind: Any) -> Any:
    """Return the class of the tables in a list field; None if the field is not a list of tables."""
    return get_args(kind)[0] if get_origin(kind) is tuple and _is_table(get_args(kind)[0]) else None


def _tables(root: type[FieldTable]) -> dict[str, type[FieldTable]]:
    """Return the classes of the tables of a file by their headings, such as ``[model]``."""
    kinds, found = get_type_hints(root), {}
    for name, own in _names(root).items():
        if _is_table(kinds[own]):
            found[f"[{name}]"] = kinds[own]
        elif row := _listed(kinds[own]):
            found[f"[[{name}]]"] = row
    return found


def _hint(name: str, own: Mapping[str, str], root: type[FieldTable]) -> str:
    """Return a hint for an unknown field: a similar name, its table, or all known names.

    name: as it is in the file. own: the known names of its table. root: the class of the whole
    file.
    """
    tables = _tables(root)
    lists = {place.strip("[]"): place for place in tables if place.startswith("[[")}
    if close := difflib.get_close_matches(name, own, n=1, cutoff=0.5):
        return f"; did you mean {lists.get(close[0], repr(close[0]))}?"
    if places := [place for place, kind in tables.items() if name in _names(kind)]:
        return f"; it belongs in {' or '.join(places)}"
    return f"; known: {', '.join(lists.get(one, one) for one in own)}"


def table_text(table: FieldTable) -> str:
    """Return the table as TOML text with all defaults; ``read_table`` restores it from this."""
    values: dict[str, Any] = {}
    tables: list[tuple[str, FieldTable]] = []
    lists: list[tuple[str, FieldTable]] = []
    for name, own in _names(type(table)).items():
        given = getattr(table, own)
        if isinstance(given, FieldTable):
            tables.append((f"[{name}]", given))
        elif name != own:
            lists += [(f"[[{name}]]", row) for row in given]
        else:
            values[name] = given
    lines = _pairs(values)
    for title, part in (*tables, *lists):
        if pairs := _pairs(asdict(part)):
            lines += ["", title, *pairs]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    """Return ``name = value`` lines without None, which TOML lacks, and without empty texts."""
    return [
        f"{name} = {json.dumps(given, ensure_ascii=False)}"  # JSON's values are TOML's
        for name, given in values.items()
        if given is not None and given != ""
    ]
