"""The kinds of rules: how each is read from its TOML table, and what it measures.

Whatever is missing or not finite (a head, a token, a loss) makes the measured number NaN, which
lies within no bounds, and the detail says what is missing.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnviz.draw.labels import cut, visible
from attnviz.engine.head_run import Head
from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.inspect.check.measure import BASELINE, PROBES, TEXTS, CheckedModel, read_baseline
from attnviz.inspect.check.report import Bounds, Outcome, Rule
from attnviz.measures.registry import LABELS, MEASURES, label_named, said_name, typed_names
from attnviz.measures.words import find_in
from attnviz.models.shapes import nearest
from attnviz.reading import TABLES_BYTES, parse_toml, read_bytes
from attnviz.records import Input, Tokens

BOUNDS = ("at_least", "at_most")

Measure = Callable[[CheckedModel], Mapping[str, Any]]
"""Measures what a rule is about: the fields of an ``Outcome`` but the rule. Raises UsageError if a
head or a text does not fit the model."""

_AGAINST = ("js_divergence", "score_change")
_FURTHEST = 3  # how many of the heads beyond a bound are named
_NAME_COLUMNS = 40
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)[ ]?%")
_ROW_SUM = 1e-4  # how far the sum of a row may be from one by default; float32 stays within 1e-6


class Given(NamedTuple):
    """The TOML table of one rule before it becomes a ``Rule``.

    table: the rule's keys and values. common: the fields ``kind``, ``warning`` and ``line`` of the
        ``Rule``. folder: of the file, to which its paths are relative. text: the text that the file
        gives for all rules; a rule without a text of its own uses it.
    """

    table: Mapping[str, Any]
    common: Mapping[str, Any]
    folder: Path
    text: str | None

    def word(self, key: str, default: str | None = None) -> str:
        """Return the string under a key, or ``default``; raise ValueError if it is not a string."""
        value = self.table.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"expected {key} as a text, got {shown(value)}")
        return value

    def rule(self, measure: Measure, name: str, display: str = "", **own: Any) -> Rule:
        """Return the rule, by default called ``name``, shown as ``display``. own: more fields."""
        given, bounds = self.word("name", name), own.pop("bounds", None) or bounds_of(self.table)
        display = display if given == name else ""
        return Rule(given, bounds, display, measure=measure, **self.common, **own)

    def path(self, key: str) -> Path:
        """Return the path under a key; raise ValueError for a pipe, which could block."""
        name = self.word(key)
        path = self.folder / os.path.expanduser(name)
        is_pipe = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
        if is_pipe or "\0" in name:
            raise ValueError(f"expected {key} as a file, got {shown(name)}")
        return path

    def measured(self, noun: str, key: str, known: Iterable[str]) -> str:
        """Return a key's measure, also by a former name; ValueError, with ``noun``, if unknown."""
        names = typed_names(known)
        typed = " ".join(self.word(key).lower().replace("_", " ").split())
        if typed not in names:
            raise ValueError(f"no {noun} {visible(typed)!r}{nearest_or_all(typed, names)}")
        return names[typed]


def bounds_of(table: Mapping[str, Any]) -> Bounds:
    """Return ``at_least`` and ``at_most`` of a TOML table; ValueError if no value could pass."""
    ends = {}
    for key in BOUNDS:
        value = table.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected {key} as a number, got {shown(value)}")
        try:
            ends[key] = float(value) if key in table else None
        except OverflowError as error:
            raise ValueError(f"expected a finite {key}") from error
    return Bounds(**ends)


def shown(value: object) -> str:
    """Return a value of a rule, cut, for a message; ``nothing`` for None."""
    return "nothing" if value is None else cut(visible(repr(value)), _NAME_COLUMNS)


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the known name nearest to ``name``, or all of them."""
    known = tuple(known)
    return nearest(name[:80], known) or f"; there are {', '.join(known)}"


def score_rule(given: Given) -> Rule:
    """Return a rule on a pattern score of one head, as in ``patterns``."""
    typed, score = given.word("head"), given.measured("score", "score", MEASURES)

    def measure(model: CheckedModel) -> Mapping[str, Any]:
        head = model.head(typed)
        value = model.scores[head].get(score)
        known = [scores for scores in model.scores.values() if set(scores.values()) > {None}]
        if known and all(scores.get(score) is None for scores in known):
            why = model.patterns.not_measured.get(score, "it is measured of no head")
            raise UsageError(f"no score {score!r} here: {why}")
        lost = {"value": math.nan, "detail": _without_number([head])}
        unit = MEASURES[score].unit.replace("share", "")
        return _probed(model, unit=unit, **(lost if value is None else {"value": value}))

    return given.rule(measure, f"{typed} {score}", f"{typed} {said_name(score)}")


def label_rule(given: Given) -> Rule:
    """Return a rule on how many heads of the model get a label from ``patterns``."""
    label = given.measured("label", "heads_labelled", LABELS)

    def measure(model: CheckedModel) -> Mapping[str, Any]:
        report, why = model.patterns, ""
        if report.unknown:  # any of them may have the label
            detail = _without_number([entry.place for entry in report.unknown])
            return _probed(model, value=math.nan, detail=detail)
        if label not in report.labels:
            why = report.not_measured.get(label, "no head of this model can get it")
        elif label in report.untestable:
            why = f"one fixed distance finds it in {report.untestable[label]:.0%} of the pairs"
        elif report.model.weights == "random":
            why = "random weights get none"
        if why:
            raise UsageError(f"no label {label!r} here: {why}")
        heads = [report.head_name(entry.place) for entry in report.labelled(label)]
        return _probed(model, value=len(heads), detail=_named(heads))

    display = f"heads labelled {label_named(label).said}"
    return given.rule(measure, f"heads labelled {label}", display)


def _probed(model: CheckedModel, **fields: Any) -> Mapping[str, Any]:
    return {"measured_on": model.probed, "over": PROBES, **fields}


def baseline_rule(given: Given) -> Rule:
    """Return a rule on the share of heads whose attention or scores are near a baseline's."""
    asked = [key for key in _AGAINST if key in given.table]
    if len(asked) != 1 or not isinstance(given.table[asked[0]], dict):
        raise ValueError(
            'expected one of js_divergence or score_change = { at_most = 0.02, heads = "95%" }'
        )
    (of,) = asked
    table, js = given.table[of], of == "js_divergence"
    for key in table:
        if key not in ("at_most", "heads"):
            more = nearest_or_all(key, ("at_most", "heads"))
            raise ValueError(f"unknown key {f'{of}.{visible(key)}'!r}{more}")
    bounds, share = bounds_of(table), table.get("heads", "100%")
    percent = _PERCENT.fullmatch(share) if isinstance(share, str) else None
    if percent is None or not 0 < float(percent[1]) <= 100:
        raise ValueError(f'expected heads as a share such as "95%", got {shown(share)}')
    least = float(percent[1]) / 100
    path = given.path("against")

    def measure(model: CheckedModel) -> Mapping[str, Any]:
        now = model.baseline
        if path not in model.baselines:
            model.baselines[path] = read_baseline(path, now)
        saved = model.baselines[path]
        apart = now.js_divergence(saved) if js else now.score_change(saved)
        ranked = sorted(apart, key=lambda head: -apart[head])
        within, total = math.ceil(least * len(ranked) - 1e-9), len(ranked)
        lost = [head for head in apart if math.isnan(apart[head])]
        beyond = [head for head in ranked if not bounds.hold(apart[head])]
        named = [f"L{layer}H{head} {apart[layer, head]:.2g}" for layer, head in beyond[:_FURTHEST]]
        detail = f"{len(beyond)} of {total} heads beyond: {', '.join(named)}" if beyond else ""
        if lost:
            detail = _without_number(lost) + ("" if js else ", here or in the baseline")
        some = "all heads" if within == total else f"{within} of {total} heads"
        read = f"{model.tokens} tokens" if js else model.probed
        return {
            "value": math.nan if lost else apart[ranked[total - within]],
            "measured_on": f"{some}, baseline {saved.origin}, {read}",
            "over": BASELINE + (f", {within} of {total}" if within < total else ""),
            "unit": "bits" if js else "",
            "detail": detail,
        }

    name = f"{of} from {path.name.partition('.')[0] or path.name}"
    return given.rule(measure, name, bounds=bounds, path=path)


def loss_rule(given: Given) -> Rule:
    """Return a rule on the mean loss in nats per token over a text, a file, or built-in texts."""
    name, path, texts = "built-in texts", None, tuple[str, ...]()
    if "loss_on_file" in given.table:
        from attnviz.texts import read_texts_file

        path = given.path("loss_on_file")
        name, texts = visible(path.name), read_texts_file(path, "loss_on_file").texts
    elif (text := given.word("loss_on")) != name:
        name, texts = f"“{cut(text, _NAME_COLUMNS)}”", (text,)

    def measure(model: CheckedModel) -> Mapping[str, Any]:
        inputs = [_whole(model.probing, text) for text in texts]
        runs = [*map(model.passed, inputs)] if texts else model.built_in
        losses = [run.losses for run in runs if run.losses is not None]
        if len(losses) < len(runs):
            raise UsageError(f"{model.model.info.name!r} predicts no next token: it has no loss")
        if empty := [number for number, own in enumerate(losses, start=1) if not len(own)]:
            text = f"text {empty[0]}" if len(losses) > 1 else "the text"
            raise UsageError(f"{text} has one token: a loss needs two, one to read, one to predict")
        over = f"{len(runs)} texts, " if len(runs) > 1 else ""
        over += f"{sum(run.tokens for run in runs):,} tokens"
        told = {"measured_on": over, "over": over if texts else TEXTS, "unit": "nats/token"}
        return {"value": float(np.concatenate(losses).mean()), **told}

    return given.rule(measure, f"loss on {name}", texts=texts, path=path)


def span_rule(given: Given) -> Rule:
    """Return a rule on the mean attention of queries to a span of a text, of one or all heads."""
    if given.text is None and "text" not in given.table:
        raise ValueError('a span belongs to a text: add text = "…" here or at the top of the file')
    text, span = given.word("text", given.text), given.word("span")
    queries = given.word("mass_from", "last")
    typed = given.word("head") if "head" in given.table else ""

    def positions(words: str, tokens: Tokens) -> range:
        if (match := find_in(tokens, words)) is None:
            near = nearest(words, set(re.findall(r"\w+", text)))
            raise UsageError(f"{visible(words)!r} does not occur in its text{near}")
        return match.span

    def measure(model: CheckedModel) -> Mapping[str, Any]:
        probing = model.probing
        whole = _whole(probing, text)
        tokens = whole.keys(probing.kind)
        keys = positions(span, tokens)
        rows = range(len(tokens)) if queries == "all" else range(len(tokens))[-1:]
        if queries not in ("last", "all"):
            rows = positions(queries, tokens)
        if probing.causal and rows[-1] < keys[0]:
            raise UsageError(
                f"{visible(queries)!r} stands before {visible(span)!r}, which it cannot "
                "see: its mass is 0 whatever the model does"
            )
        masses = model.masses(whole, rows, keys)
        chosen = np.concatenate([masses[layer] for layer in sorted(masses)])
        if typed:
            layer, head = model.head(typed)
            chosen = masses[layer][head : head + 1]
        over = f"{len(tokens)} tokens" + ("" if typed else f", mean of {len(chosen)} heads")
        return {"value": float(chosen.mean()), "measured_on": over, "over": over}

    name = " ".join(part for part in (typed, f"mass from {queries} on “{span}”") if part)
    return given.rule(measure, name, texts=(text,))


def count_rule(given: Given) -> Rule:
    """Return a rule on one number that ``params`` counts, such as ``kv_cache.bytes_per_token``."""
    number = given.word("params")

    def measure(model: CheckedModel) -> Mapping[str, Any]:
        value, known = model.params.get(number), model.params
        if value is None:
            raise UsageError(f"params has no number {visible(number)!r}{nearest(number, known)}")
        return {"value": value, "measured_on": "its config", "over": "config"}

    return given.rule(measure, f"params {number}")


def rows_rule(given: Given) -> Rule:
    """Return a rule on the largest distance of a query's sum of attention weights from one."""
    if given.table["rows_sum_to_one"] is not True:
        raise ValueError("expected rows_sum_to_one = true")

    def measure(model: CheckedModel) -> Mapping[str, Any]:
        apart = float(np.max([run.apart for run in model.built_in]))
        return {"value": apart, "measured_on": model.read, "over": TEXTS}

    bounds = None if set(BOUNDS) & set(given.table) else Bounds(at_most=_ROW_SUM)
    return given.rule(measure, "rows sum to one", bounds=bounds)


class RuleKind(NamedTuple):
    """A kind of rule: its name in JUnit, how it is read (or ValueError), its further keys."""

    name: str
    read: Callable[[Given], Rule]
    keys: tuple[str, ...] = ()


KINDS: Mapping[str, RuleKind] = {
    "score": RuleKind("ScoreRule", score_rule, ("head",)),
    "heads_labelled": RuleKind("LabelRule", label_rule),
    "against": RuleKind("BaselineRule", baseline_rule, _AGAINST),
    "loss_on": RuleKind("LossRule", loss_rule),
    "loss_on_file": RuleKind("LossRule", loss_rule),
    "span": RuleKind("SpanRule", span_rule, ("text", "mass_from", "head")),
    "params": RuleKind("CountRule", count_rule),
    "rows_sum_to_one": RuleKind("RowsRule", rows_rule),
}
"""The kinds of rules, by the key of the table that tells the kind."""


def outcome(model: CheckedModel, rule: Rule) -> Outcome:
    """Measure what a rule is about; UsageError, with its name, for what does not fit the model."""
    try:
        result = Outcome(rule, **rule.measure(model))
    except UsageError as error:
        raise UsageError(f"rule {rule.title!r}: {error}") from error
    if math.isfinite(result.value) or result.detail:
        return result
    return replace(result, detail="what it is measured on has no number")


def _without_number(heads: Sequence[Head]) -> str:
    return f"no number of {_named([f'L{layer}H{head}' for layer, head in heads])}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FURTHEST} more" if len(names) > _FURTHEST else ""
    return ", ".join(names[:_FURTHEST]) + more


def _whole(probing: Probing, text: str) -> Input:
    """Return a whole text as the model's input; raise UsageError if it is too long for it."""
    given, tokens = probing.input_of(text), len(probing.model.encode(text))
    if tokens > len(given.text):
        raise UsageError(
            f"its text has {tokens:,} tokens, the model takes at most {len(given.text):,}: "
            "shorten it"
        )
    return given


_TOP = ("model", "text", "check")
_COMMON = ("name", "warning")
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*check[ \t]*\]\]", re.MULTILINE)
_MOST_RULES = 1000


@dataclass(frozen=True)
class RuleFile:
    """All rules of a file of rules, with the model that they are about, or None."""

    path: Path
    rules: tuple[Rule, ...]
    model: str | None = None

    @property
    def baselines(self) -> tuple[Path, ...]:
        """Return the paths of the baselines that rules name, each once."""
        rules = (rule for rule in self.rules if rule.kind == "BaselineRule")
        return tuple(dict.fromkeys(rule.path for rule in rules if rule.path is not None))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts of the rules; rules on the built-in texts have none."""
        return tuple(text for rule in self.rules for text in rule.texts)

    @property
    def read(self) -> tuple[Path, ...]:
        """Return the paths of all files that a check reads: of rules, baselines and texts."""
        return (self.path, *(rule.path for rule in self.rules if rule.path is not None))


def read_rules(path: Path) -> RuleFile:
    """Return the rules in a TOML file; LoadError if that is unreadable, UsageError if wrong."""
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
        try:
            rules.append(_rule(table, line, path.parent, data.get("text")))
        except ValueError as error:
            name = table.get("name")
            called = f" ({visible(name)!r})" if isinstance(name, str) else ""
            raise UsageError(f"{file}, rule {number}{called}: {error}") from error
    for name, count in Counter(rule.name for rule in rules).items():
        if count > 1:
            raise UsageError(
                f"{file}: {count} rules are called {visible(name)!r}: give each a name of its own"
            )
    model = data.get("model")
    if model is not None and model[:1] == "." and os.path.isdir(path.parent / model):
        model = str(path.parent / model)  # a directory next to the rules
    return RuleFile(path, tuple(rules), model)


def _rule(table: dict[str, Any], line: int, folder: Path, text: str | None) -> Rule:
    asked = [key for key in KINDS if key in table]
    if not asked:
        every = {key for kind in KINDS.values() for key in kind.keys}
        name = next((key for key in table if key not in {*_COMMON, *BOUNDS, *every}), "")
        raise ValueError(
            f"expected what to check ({', '.join(KINDS)}), got "
            f"{visible(name) or 'none of them'!r}{nearest_or_all(name, KINDS)}"
        )
    if len(asked) > 1:
        raise ValueError(f"{asked[0]} and {asked[1]} are two rules: part them")
    kind = KINDS[asked[0]]
    known = (*asked, *kind.keys, *_COMMON, *(() if asked[0] == "against" else BOUNDS))
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {visible(key)!r}{nearest_or_all(key, known)}")
    warning = table.get("warning", False)
    if not isinstance(warning, bool):
        raise ValueError(f"expected warning = true or false, got {shown(warning)}")
    common = {"kind": kind.name, "warning": warning, "line": line}
    return kind.read(Given(table, common, folder, text))
