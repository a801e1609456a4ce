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
    return value(default, FieldRule(f"{', '.join(most)} or {last}", lambda given: given in allowed))


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
        for member in fields(self):
            given, rule = getattr(self, member.name), member.metadata.get("rule")
            if rule is not None and given is not None:
                demand(rule.holds(given), f"{member.name} must be {rule.words}", given)


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
    kind: type[_Read], values: Mapping[str, Any], heading: str, root: type[FieldTable]
) -> _Read:
    """Return one table of a TOML file as a dataclass; raise UsageError for wrong names or types.

    heading: of the table, for messages. root: the class of the whole file.
    """
    own, types = _names(kind), get_type_hints(kind)
    read = {}
    for name, given in values.items():
        if name not in own:
            raise UsageError(f"{heading}has no field {name!r}{_hint(name, own, root)}")
        read[own[name]] = _value(name, types[own[name]], given, heading, root)
    try:
        return kind(**read)
    except UsageError as error:
        raise UsageError(f"{heading}{error}") from error


def _names(kind: type[FieldTable]) -> dict[str, str]:
    """Return the field name in the class ``kind`` for each key in the file."""
    return {member.metadata.get("name", member.name): member.name for member in fields(kind)}


def _part(name: str, kind: Any) -> tuple[str, type[FieldTable]] | None:
    """Return the heading and the class of a field for a table, or for a list of them; else None."""
    listed = get_origin(kind) is tuple
    row = get_args(kind)[0] if listed else kind
    if not (isinstance(row, type) and issubclass(row, FieldTable)):
        return None
    return (f"[[{name}]]" if listed else f"[{name}]"), row


def _value(name: str, kind: Any, given: Any, heading: str, root: type[FieldTable]) -> Any:
    """Return a value of a TOML file converted to the type of its field."""
    if part := _part(name, kind):
        below, row = part
        listed = below.startswith("[[")
        tables = given if listed else [given]
        if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
            words = "a list of tables" if listed else "a table"
            raise UsageError(f"{name} must be {words}: {below}")
        read = tuple(_read(row, table, f"{below} ", root) for table in tables)
        return read if listed else read[0]
    if kind == tuple[int, int]:
        if not (isinstance(given, list) and [*map(type, given)] == [int, int]):
            raise UsageError(f"{heading}{name} must be two whole numbers, got {given!r}")
        return tuple(given)
    types = (kind, *get_args(kind))
    wanted: tuple[type, ...] = (str,)
    words = "a text in quotes"
    if int in types:
        wanted, words = (int,), "a whole number"
    elif float in types:
        wanted, words = (int, float), "a number"
    if type(given) not in wanted:  # True is an int, and no number here
        raise UsageError(f"{heading}{name} must be {words}, got {given!r}")
    return given


def _hint(name: str, own: Mapping[str, str], root: type[FieldTable]) -> str:
    """Return a hint for an unknown field: a similar name, its table, or all known names.

    own: the known names of its table. root: the class of the whole file.
    """
    kinds = get_type_hints(root)
    parts = [_part(key, kinds[member]) for key, member in _names(root).items()]
    tables = dict(part for part in parts if part is not None)
    lists = {heading.strip("[]"): heading for heading in tables if heading.startswith("[[")}
    if close := difflib.get_close_matches(name, own, n=1, cutoff=0.5):
        return f"; did you mean {lists.get(close[0], repr(close[0]))}?"
    if headings := [heading for heading, kind in tables.items() if name in _names(kind)]:
        return f"; it belongs in {' or '.join(headings)}"
    return f"; known: {', '.join(lists.get(known, known) for known in own)}"


def table_text(table: FieldTable) -> str:
    """Return the table as TOML text with all defaults; ``read_table`` restores it from this."""
    kinds, values = get_type_hints(type(table)), {}
    parts: list[tuple[str, FieldTable]] = []
    for name, own in _names(type(table)).items():
        given = getattr(table, own)
        if part := _part(name, kinds[own]):
            parts += [(part[0], row) for row in (given if isinstance(given, tuple) else [given])]
        else:
            values[name] = given
    lines = _pairs(values)
    for heading, row in sorted(parts, key=lambda part: part[0].startswith("[[")):
        if pairs := _pairs(asdict(row)):
            lines += ["", heading, *pairs]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    """Return ``name = value`` lines without None, which TOML lacks, and without empty texts."""
    return [
        f"{name} = {json.dumps(given, ensure_ascii=False)}"  # JSON's values are TOML's
        for name, given in values.items()
        if given is not None and given != ""
    ]
