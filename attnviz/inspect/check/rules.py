"""The reader of a TOML file of rules; each fault in it is one sentence that names the rule."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.draw.labels import visible
from attnviz.errors import UsageError
from attnviz.inspect.check import kinds
from attnviz.inspect.check.kinds import KINDS, nearest_or_all, shown
from attnviz.reading import TABLES_BYTES, parse_toml, read_bytes

_TOP = ("model", "text", "check")
_COMMON = ("name", "warning")
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*check[ \t]*\]\]", re.MULTILINE)
_MOST_RULES = 1000


@dataclass(frozen=True)
class RuleFile:
    """All rules of a file of rules, with the model that they are about.

    rules: in the order of the file.
    path: of the file. model: the name of the model, None if the file names none.
    """

    path: Path
    rules: tuple[kinds.MeasuredRule, ...]
    model: str | None = None

    @property
    def of_config(self) -> bool:
        """Return whether every rule is about the config alone."""
        return all(isinstance(rule, kinds.CountRule) for rule in self.rules)

    @property
    def baselines(self) -> tuple[Path, ...]:
        """Return the paths of the baselines that rules name, each once."""
        paths = [rule.path for rule in self.rules if isinstance(rule, kinds.BaselineRule)]
        return tuple(dict.fromkeys(paths))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts of the rules; rules on the built-in texts have none."""
        return tuple(text for rule in self.rules for text in rule.texts)

    @property
    def read(self) -> tuple[Path, ...]:
        """Return the paths of all files that a check reads: rules, their baselines, their texts."""
        return (self.path, *(rule.path for rule in self.rules if rule.path is not None))


def read_rules(path: Path) -> RuleFile:
    """Return the rules in a TOML file, as ``attnviz check --init`` writes it.

    path: of the file.
    Raises LoadError if it cannot be read, UsageError, with the nearest known name, if it is wrong.
    """
    file = visible(str(path))
    content = read_bytes(path, name=repr(file), most=TABLES_BYTES)
    data, text = parse_toml(content, f"{file} is no TOML", UsageError), content.decode("utf-8-sig")
    if unknown := [key for key in data if key not in _TOP]:
        nearest = nearest_or_all(unknown[0], _TOP)
        raise UsageError(f"{file} has an unknown key {visible(unknown[0])!r}{nearest}")
    tables = data.get("check", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{file}: expected rules as tables [[check]], got {shown(tables)}")
    if not tables:
        raise UsageError(
            f"{file} has no rules: write one below [[check]], or let attnviz check --init do it"
        )
    if len(tables) > _MOST_RULES:
        raise UsageError(f"{file} has {len(tables):,} rules: expected at most {_MOST_RULES:,}")
    for key in ("model", "text"):
        if key in data and (not isinstance(data[key], str) or not data[key].strip()):
            raise UsageError(f"{file}: expected {key} as a text, got {shown(data[key])}")
    lines = [text.count("\n", 0, header.start()) + 1 for header in _HEADER.finditer(text)]
    lines = lines if len(lines) == len(tables) else [0] * len(tables)
    rules = []
    for number, (table, line) in enumerate(zip(tables, lines, strict=True), start=1):
        place = f"{file}, rule {number}"
        if isinstance(table.get("name"), str):
            place += f" ({visible(table['name'])!r})"
        try:
            rules.append(_rule(table, line, path.parent, data.get("text")))
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error
    for name, count in Counter(rule.name for rule in rules).items():
        if count > 1:
            raise UsageError(
                f"{file}: {count} rules are called {visible(name)!r}: give each a name of its own"
            )
    model = data.get("model")
    if model is not None and model[:1] == "." and os.path.isdir(path.parent / model):
        model = str(path.parent / model)  # a directory next to the rules
    return RuleFile(path, tuple(rules), model)


def _rule(table: dict[str, Any], line: int, folder: Path, text: str | None) -> kinds.MeasuredRule:
    """Return the rule of a table; raise ValueError if it is wrong."""
    asked = [key for key in KINDS if key in table]
    if not asked:
        every = {key for _, keys in KINDS.values() for key in keys}
        name = next((key for key in table if key not in {*_COMMON, *kinds.BOUNDS, *every}), "")
        raise ValueError(
            f"expected what to check ({', '.join(KINDS)}), got "
            f"{visible(name) or 'none of them'!r}{nearest_or_all(name, KINDS)}"
        )
    if len(asked) > 1:
        raise ValueError(f"{asked[0]} and {asked[1]} are two rules: part them")
    read, keys = KINDS[asked[0]]
    known = (*asked, *keys, *_COMMON, *(() if asked[0] == "against" else kinds.BOUNDS))
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {visible(key)!r}{nearest_or_all(key, known)}")
    warning = table.get("warning", False)
    if not isinstance(warning, bool):
        raise ValueError(f"expected warning = true or false, got {shown(warning)}")
    return read(kinds.Given(table, {"warning": warning, "line": line}, folder, text))
