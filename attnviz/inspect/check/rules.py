"""The reader of a TOML file of rules; each fault in it is one sentence that names the rule."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.draw.labels import cut, visible
from attnviz.errors import UsageError
from attnviz.inspect.check.records import (
    BaselineRule,
    Bounds,
    CountRule,
    LabelRule,
    LossRule,
    RowsRule,
    Rule,
    RuleFile,
    ScoreRule,
    SpanRule,
)
from attnviz.measures.registry import LABELS, MEASURES, typed_names
from attnviz.models.shapes import nearest
from attnviz.reading import TABLES_BYTES, parse_toml, read_bytes

_TOP = ("model", "text", "check")
_COMMON = ("name", "warning")
_BOUNDS = ("at_least", "at_most")
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*check[ \t]*\]\]", re.MULTILINE)
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)[ ]?%")
_ROW_SUM = 1e-4
"""How far the sum of a row may be from one by default; float32 stays within 1e-6."""

_MOST_RULES = 1000
_NAME_COLUMNS = 40


class _Given(NamedTuple):
    """The TOML table of one rule before it becomes a ``Rule``.

    table: the rule's keys and values. common: the fields ``warning`` and ``line`` of the ``Rule``.
    folder: of the file, to which its paths are relative. text: the text that the file gives for all
        rules; a rule without a text of its own uses it.
    """

    table: Mapping[str, Any]
    common: Mapping[str, Any]
    folder: Path
    text: str | None

    def word(self, key: str, default: str | None = None) -> str:
        """Return the string under a key of the rule; raise ValueError if it is empty or no string.

        default: the string if the key is missing.
        """
        value = self.table.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"expected {key} as a text, got {_shown(value)}")
        return value

    def made(self, kind: type[Rule], name: str, bounds: Bounds | None = None, **more: Any) -> Rule:
        name = self.word("name", name)
        return kind(name, bounds or _bounds(self.table), **self.common, **more)

    def path(self, key: str) -> Path:
        """Return the path under a key of the rule, relative to the file's folder.

        Raises ValueError for a pipe, which could block.
        """
        name = self.word(key)
        path = self.folder / os.path.expanduser(name)
        is_pipe = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
        if is_pipe or "\0" in name:
            raise ValueError(f"expected {key} as a file, got {_shown(name)}")
        return path


def read_rules(path: Path) -> RuleFile:
    """Return the rules in a TOML file, as ``attnviz check --init`` writes it.

    path: of the file.
    Raises LoadError if it cannot be read, UsageError, with the nearest known name, if it is wrong.
    """
    shown = visible(str(path))
    content = read_bytes(path, name=repr(shown), most=TABLES_BYTES)
    data, text = parse_toml(content, f"{shown} is no TOML", UsageError), content.decode("utf-8-sig")
    for key in data:
        if key not in _TOP:
            raise UsageError(f"{shown} has an unknown key {visible(key)!r}{_nearest(key, _TOP)}")
    tables = data.get("check", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{shown}: expected rules as tables [[check]], got {_shown(tables)}")
    if not tables:
        raise UsageError(
            f"{shown} has no rules: write one below [[check]], or let attnviz check --init do it"
        )
    if len(tables) > _MOST_RULES:
        raise UsageError(f"{shown} has {len(tables):,} rules: expected at most {_MOST_RULES:,}")
    for key in ("model", "text"):
        if key in data and (not isinstance(data[key], str) or not data[key].strip()):
            raise UsageError(f"{shown}: expected {key} as a text, got {_shown(data[key])}")
    lines = [text.count("\n", 0, found.start()) + 1 for found in _HEADER.finditer(text)]
    lines = lines if len(lines) == len(tables) else [0] * len(tables)
    rules = []
    for number, (table, line) in enumerate(zip(tables, lines, strict=True), start=1):
        rules.append(_rule(table, line, path.parent, data.get("text"), f"{shown}, rule {number}"))
    for name, count in Counter(rule.name for rule in rules).items():
        if count > 1:
            raise UsageError(
                f"{shown}: {count} rules are called {visible(name)!r}: give each a name of its own"
            )
    return RuleFile(path, tuple(rules), _model(data.get("model"), path.parent))


def _model(name: str | None, folder: Path) -> str | None:
    """Return a model's name; if it is a directory next to the rules, the path of that."""
    beside = name is not None and name[:1] == "." and os.path.isdir(folder / name)
    return str(folder / name) if beside and name is not None else name


def _rule(table: dict[str, Any], line: int, folder: Path, text: str | None, place: str) -> Rule:
    if isinstance(table.get("name"), str):
        place += f" ({visible(table['name'])!r})"
    try:
        kinds = [key for key in _KINDS if key in table]
        if not kinds:
            asked = next((key for key in table if key not in (*_COMMON, *_BOUNDS, *_KEYS)), "")
            raise ValueError(
                f"expected what to check ({', '.join(_KINDS)}), got "
                f"{visible(asked) or 'none of them'!r}{_nearest(asked, _KINDS)}"
            )
        if len(kinds) > 1:
            raise ValueError(f"{kinds[0]} and {kinds[1]} are two rules: part them")
        kind = _KINDS[kinds[0]]
        known = (kinds[0], *kind.keys, *_COMMON, *(_BOUNDS if kind.bounded else ()))
        for key in table:
            if key not in known:
                raise ValueError(f"unknown key {visible(key)!r}{_nearest(key, known)}")
        warning = table.get("warning", False)
        if not isinstance(warning, bool):
            raise ValueError(f"expected warning = true or false, got {_shown(warning)}")
        common = {"warning": warning, "line": line}
        return kind.read(_Given(table, common, folder, text))
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from error


def _bounds(table: Mapping[str, Any]) -> Bounds:
    ends = {key: _number(key, table[key]) for key in _BOUNDS if key in table}
    return Bounds(**ends)


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected {key} as a number, got {_shown(value)}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"expected a finite {key}") from error


def _known(what: str, name: str, known: Iterable[str]) -> str:
    known = tuple(known)
    if name not in known:
        raise ValueError(f"no {what} {visible(name)!r}{_nearest(name, known)}")
    return name


def _measure(what: str, name: str, known: Iterable[str]) -> str:
    """Return the one of the ``known`` measures that a name means, which may be spelled in words.

    what: the noun for such measures in the message. name: as typed, perhaps as in files of older
        releases. Raises ValueError for an unknown name.
    """
    found = typed_names(known)
    return found[_known(what, " ".join(name.lower().replace("_", " ").split()), found)]


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the known name nearest to ``name``, or all of them."""
    known = tuple(known)
    return nearest(name[:80], known) or f"; there are {', '.join(known)}"


def _shown(value: object) -> str:
    return "nothing" if value is None else cut(visible(repr(value)), _NAME_COLUMNS)


# The kinds -----------------------------------------------------------------------------------


def _score(given: _Given) -> Rule:
    head, score = given.word("head"), _measure("score", given.word("score"), MEASURES)
    return given.made(ScoreRule, f"{head} {score}", head=head, score=score)


def _labelled(given: _Given) -> Rule:
    label = _measure("label", given.word("heads_labelled"), LABELS)
    return given.made(LabelRule, f"heads labelled {label}", label=label)


def _against(given: _Given) -> Rule:
    asked = [key for key in _AGAINST if key in given.table]
    if len(asked) != 1 or not isinstance(given.table[asked[0]], dict):
        raise ValueError(
            'expected one of js_divergence or score_change = { at_most = 0.02, heads = "95%" }'
        )
    table = given.table[asked[0]]
    for key in table:
        if key not in ("at_most", "heads"):
            found = f"{asked[0]}.{visible(key)}"
            raise ValueError(f"unknown key {found!r}{_nearest(key, ('at_most', 'heads'))}")
    bounds, share = _bounds(table), table.get("heads", "100%")
    percent = _PERCENT.fullmatch(share) if isinstance(share, str) else None
    if percent is None or not 0 < float(percent[1]) <= 100:
        raise ValueError(f'expected heads as a share such as "95%", got {_shown(share)}')
    path = given.path("against")
    name = f"{asked[0]} from {path.name.partition('.')[0] or path.name}"
    more = {"path": path, "of": asked[0], "share": float(percent[1]) / 100}
    return given.made(BaselineRule, name, bounds, **more)


def _loss(given: _Given) -> Rule:
    text = given.word("loss_on")
    if text == "built-in texts":
        return given.made(LossRule, "loss on built-in texts")
    return given.made(LossRule, f"loss on “{cut(text, _NAME_COLUMNS)}”", texts=(text,))


def _losses(given: _Given) -> Rule:
    from attnviz.texts import read_texts_file

    path = given.path("loss_on_file")
    texts = read_texts_file(path, "loss_on_file")
    return given.made(LossRule, f"loss on {visible(path.name)}", texts=texts.texts, path=path)


def _span(given: _Given) -> Rule:
    if given.text is None and "text" not in given.table:
        raise ValueError('a span stands in a text: add text = "…" here or at the top of the file')
    text, span = given.word("text", given.text), given.word("span")
    queries = given.word("mass_from", "last")
    head = given.word("head") if "head" in given.table else ""
    name = " ".join(part for part in (head, f"mass from {queries} on “{span}”") if part)
    return given.made(SpanRule, name, text=text, span=span, queries=queries, head=head)


def _params(given: _Given) -> Rule:
    number = given.word("params")
    return given.made(CountRule, f"params {number}", number=number)


def _rows(given: _Given) -> Rule:
    if given.table["rows_sum_to_one"] is not True:
        raise ValueError("expected rows_sum_to_one = true")
    bounds = None if set(_BOUNDS) & set(given.table) else Bounds(at_most=_ROW_SUM)
    return given.made(RowsRule, "rows sum to one", bounds)


class _Kind(NamedTuple):
    """How a rule of one kind is made from its TOML table.

    read: makes the rule from the table. keys: those that such a table may have, in addition to the
        key of its kind and those of every rule. bounded: whether the rule must give bounds.
    """

    read: Callable[[_Given], Rule]
    keys: tuple[str, ...] = ()
    bounded: bool = True


_AGAINST = ("js_divergence", "score_change")
_KINDS = {
    "score": _Kind(_score, ("head",)),
    "heads_labelled": _Kind(_labelled),
    "against": _Kind(_against, _AGAINST, bounded=False),
    "loss_on": _Kind(_loss),
    "loss_on_file": _Kind(_losses),
    "span": _Kind(_span, ("text", "mass_from", "head")),
    "params": _Kind(_params),
    "rows_sum_to_one": _Kind(_rows),
}
"""The kinds of rules, by the key that tells each."""

_KEYS = {key for kind in _KINDS.values() for key in kind.keys}
