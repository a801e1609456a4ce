"""The kinds of rules: how each is read from its TOML table, and what it measures.

Whatever is missing or not finite (a head, a token, a loss) makes the measured number NaN, which
lies within no bounds, and the detail says what is missing.
"""

from __future__ import annotations

import math
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnviz.draw.labels import cut, visible
from attnviz.engine.head_run import Head
from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.inspect.check.baseline import read_baseline
from attnviz.inspect.check.measure import BASELINE, PROBES, TEXTS, CheckedModel
from attnviz.inspect.check.report import Bounds, Outcome, Rule
from attnviz.measures.registry import LABELS, MEASURES, label_named, said_name, typed_names
from attnviz.measures.words import find_in
from attnviz.models.shapes import nearest
from attnviz.records import Input, Tokens

if TYPE_CHECKING:  # rules of params alone load no model
    from attnviz.inspect.patterns.report import PatternReport

BOUNDS = ("at_least", "at_most")

_AGAINST = ("js_divergence", "score_change")
_FURTHEST = 3  # how many of the heads beyond a bound are named
_NAME_COLUMNS = 40
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)[ ]?%")
_ROW_SUM = 1e-4  # how far the sum of a row may be from one by default; float32 stays within 1e-6


class Given(NamedTuple):
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
        """Return the string under a key, or ``default``; raise ValueError if it is none."""
        value = self.table.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"expected {key} as a text, got {shown(value)}")
        return value

    def made(self, kind: type[MeasuredRule], name: str, said: str = "", **own: Any) -> MeasuredRule:
        """Return the rule. name: if none is given; said: that name as it is shown."""
        given, bounds = self.word("name", name), own.pop("bounds", None) or bounds_of(self.table)
        return kind(given, bounds, said if given == name else "", **self.common, **own)

    def path(self, key: str) -> Path:
        """Return the path under a key; raise ValueError for a pipe, which could block."""
        name = self.word(key)
        path = self.folder / os.path.expanduser(name)
        is_pipe = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
        if is_pipe or "\0" in name:
            raise ValueError(f"expected {key} as a file, got {shown(name)}")
        return path


def bounds_of(table: Mapping[str, Any]) -> Bounds:
    """Return the bounds in a TOML table; raise ValueError if they are no numbers, or make none."""
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


def _measure(what: str, name: str, known: Iterable[str]) -> str:
    """Return the measure that a name means, which may be spelled in words or as formerly.

    what: the noun for such measures in the message. Raises ValueError for an unknown name.
    """
    names = typed_names(known)
    typed = " ".join(name.lower().replace("_", " ").split())
    if typed not in names:
        raise ValueError(f"no {what} {visible(typed)!r}{nearest_or_all(typed, names)}")
    return names[typed]


# The kinds -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredRule(Rule):
    """A rule of one kind. texts: those that it is about. path: of a file that it names."""

    texts: tuple[str, ...] = ()
    path: Path | None = None

    @abstractmethod
    def measured(self, model: CheckedModel) -> Outcome:
        """Return what the rule measures; raise UsageError if its head or text does not fit."""


@dataclass(frozen=True)
class ScoreRule(MeasuredRule):
    """A rule on a pattern score of one head, as in ``patterns``.

    head: as it is typed, such as ``L1H2``. score: the name of the score.
    """

    head: str = ""
    score: str = ""

    @classmethod
    def read(cls, given: Given) -> MeasuredRule:
        """Return the rule of a table; raise ValueError if the table is wrong."""
        head, score = given.word("head"), _measure("score", given.word("score"), MEASURES)
        said = f"{head} {said_name(score)}"
        return given.made(cls, f"{head} {score}", said, head=head, score=score)

    def measured(self, model: CheckedModel) -> Outcome:
        head = model.place(self.head)
        value = model.scores[head].get(self.score)
        known = [scores for scores in model.scores.values() if set(scores.values()) > {None}]
        if known and all(scores.get(self.score) is None for scores in known):
            why = model.patterns.not_measured.get(self.score, "it is measured of no head")
            raise UsageError(f"no score {self.score!r} here: {why}")
        unit, detail = MEASURES[self.score].unit.replace("share", ""), ""
        if value is None:
            value, detail = math.nan, _without_number([head])
        return Outcome(self, value, model.probed, PROBES, unit, detail)


@dataclass(frozen=True)
class LabelRule(MeasuredRule):
    """A rule on how many heads of the model get a label from ``patterns``. label: its name."""

    label: str = ""

    @classmethod
    def read(cls, given: Given) -> MeasuredRule:
        label = _measure("label", given.word("heads_labelled"), LABELS)
        name, said = f"heads labelled {label}", f"heads labelled {label_named(label).said}"
        return given.made(cls, name, said, label=label)

    def measured(self, model: CheckedModel) -> Outcome:
        report = model.patterns
        if report.unknown:  # any of them may have the label
            detail = _without_number([(entry.layer, entry.head) for entry in report.unknown])
            return Outcome(self, math.nan, model.probed, PROBES, detail=detail)
        if why := self._why_none(report):
            raise UsageError(f"no label {self.label!r} here: {why}")
        heads = [(entry.layer, entry.head) for entry in report.labelled(self.label)]
        detail = _named(map(report.head_name, heads))
        return Outcome(self, len(heads), model.probed, PROBES, detail=detail)

    def _why_none(self, report: PatternReport) -> str:
        """Return why no head of this model can get the label; empty if one can."""
        if self.label not in report.labels:
            return report.not_measured.get(self.label, "no head of this model can get it")
        if self.label in report.untestable:
            return (
                f"one fixed distance finds it in {report.untestable[self.label]:.0%} of the pairs"
            )
        return "random weights get none" if report.model.weights == "random" else ""


@dataclass(frozen=True)
class BaselineRule(MeasuredRule):
    """A rule on how far heads are from a saved baseline.

    path: of the baseline. share: the share of heads (0 to 1) that must lie within the bounds.
    of: the measure of distance: ``js_divergence`` of attention by distance in bits, or
        ``score_change``, the largest change of any pattern score.
    """

    path: Path = Path()
    of: str = "js_divergence"
    share: float = 1.0

    @classmethod
    def read(cls, given: Given) -> MeasuredRule:
        asked = [key for key in _AGAINST if key in given.table]
        if len(asked) != 1 or not isinstance(given.table[asked[0]], dict):
            raise ValueError(
                'expected one of js_divergence or score_change = { at_most = 0.02, heads = "95%" }'
            )
        (of,) = asked
        table = given.table[of]
        for key in table:
            if key not in ("at_most", "heads"):
                more = nearest_or_all(key, ("at_most", "heads"))
                raise ValueError(f"unknown key {f'{of}.{visible(key)}'!r}{more}")
        bounds, share = bounds_of(table), table.get("heads", "100%")
        percent = _PERCENT.fullmatch(share) if isinstance(share, str) else None
        if percent is None or not 0 < float(percent[1]) <= 100:
            raise ValueError(f'expected heads as a share such as "95%", got {shown(share)}')
        path = given.path("against")
        name = f"{of} from {path.name.partition('.')[0] or path.name}"
        return given.made(cls, name, bounds=bounds, path=path, of=of, share=float(percent[1]) / 100)

    def measured(self, model: CheckedModel) -> Outcome:
        now = model.baseline
        if self.path not in model.baselines:
            model.baselines[self.path] = read_baseline(self.path, now)
        saved = model.baselines[self.path]
        js = self.of == "js_divergence"
        apart = now.js_divergence(saved) if js else now.score_change(saved)
        ranked = sorted(apart, key=lambda head: -apart[head])
        within, total = math.ceil(self.share * len(ranked) - 1e-9), len(ranked)
        lost = [head for head in apart if math.isnan(apart[head])]
        beyond = [head for head in ranked if not self.bounds.hold(apart[head])]
        told = [f"L{layer}H{head} {apart[layer, head]:.2g}" for layer, head in beyond[:_FURTHEST]]
        detail = f"{len(beyond)} of {total} heads beyond: {', '.join(told)}" if beyond else ""
        if lost:
            detail = _without_number(lost) + ("" if js else ", here or in the baseline")
        share = "all heads" if within == total else f"{within} of {total} heads"
        read = f"{model.tokens} tokens" if js else model.probed
        return Outcome(
            self,
            math.nan if lost else apart[ranked[total - within]],
            f"{share}, baseline {saved.origin}, {read}",
            BASELINE + (f", {within} of {total}" if within < total else ""),
            "bits" if js else "",
            detail,
        )


@dataclass(frozen=True)
class LossRule(MeasuredRule):
    """A rule on the mean loss in nats per token over texts, without any over the built-in ones."""

    @classmethod
    def of_text(cls, given: Given) -> MeasuredRule:
        text = given.word("loss_on")
        if text == "built-in texts":
            return given.made(cls, "loss on built-in texts")
        return given.made(cls, f"loss on “{cut(text, _NAME_COLUMNS)}”", texts=(text,))

    @classmethod
    def of_file(cls, given: Given) -> MeasuredRule:
        from attnviz.texts import read_texts_file

        path = given.path("loss_on_file")
        texts = read_texts_file(path, "loss_on_file").texts
        return given.made(cls, f"loss on {visible(path.name)}", texts=texts, path=path)

    def measured(self, model: CheckedModel) -> Outcome:
        if self.texts:
            inputs = [_whole(model.probing, text) for text in self.texts]
            sizes = [len(given.keys(model.probing.kind)) for given in inputs]
            every = [model.losses(given) for given in inputs]
        else:
            sizes = [each.tokens for each in model.built_in]
            every = [each.losses for each in model.built_in]
        losses = [each for each in every if each is not None]
        if len(losses) < len(every):
            raise UsageError(f"{model.model.info.name!r} predicts no next token: it has no loss")
        for number, each in enumerate(losses, start=1):
            if not len(each):
                text = f"text {number}" if len(losses) > 1 else "the text"
                raise UsageError(
                    f"{text} has one token: a loss needs two, one to read, one to predict"
                )
        over = (f"{len(sizes)} texts, " if len(sizes) > 1 else "") + f"{sum(sizes):,} tokens"
        value = float(np.concatenate(losses).mean())
        return Outcome(self, value, over, over if self.texts else TEXTS, "nats/token")


@dataclass(frozen=True)
class SpanRule(MeasuredRule):
    """A rule on the attention of some queries to a span of a text, mean over heads and queries.

    span: a word, words, or an index, as for ``heads --token``. queries: likewise, or ``last`` or
        ``all``. head: one head as typed; empty for all.
    """

    span: str = ""
    queries: str = "last"
    head: str = ""

    @classmethod
    def read(cls, given: Given) -> MeasuredRule:
        if given.text is None and "text" not in given.table:
            raise ValueError(
                'a span stands in a text: add text = "…" here or at the top of the file'
            )
        text, span = given.word("text", given.text), given.word("span")
        queries = given.word("mass_from", "last")
        head = given.word("head") if "head" in given.table else ""
        name = " ".join(part for part in (head, f"mass from {queries} on “{span}”") if part)
        return given.made(cls, name, texts=(text,), span=span, queries=queries, head=head)

    def measured(self, model: CheckedModel) -> Outcome:
        probing = model.probing
        given = _whole(probing, self.texts[0])
        tokens = given.keys(probing.kind)
        key = self._found(self.span, tokens)
        rows = range(len(tokens)) if self.queries == "all" else range(len(tokens))[-1:]
        if self.queries not in ("last", "all"):
            rows = self._found(self.queries, tokens)
        if probing.causal and rows[-1] < key[0]:
            raise UsageError(
                f"{visible(self.queries)!r} stands before {visible(self.span)!r}, which it cannot "
                "see: its mass is 0 whatever the model does"
            )
        masses = model.masses(given, rows, key)
        if self.head:
            layer, head = model.place(self.head)
            chosen = masses[layer][head : head + 1]
        else:
            chosen = np.concatenate([masses[layer] for layer in sorted(masses)])
        over = f"{len(tokens)} tokens" + ("" if self.head else f", mean of {len(chosen)} heads")
        return Outcome(self, float(chosen.mean()), over, over)

    def _found(self, words: str, tokens: Tokens) -> range:
        """Return the positions of some words in the text; raise UsageError without them."""
        found = find_in(tokens, words)
        if found is None:
            known = set(re.findall(r"\w+", self.texts[0]))
            raise UsageError(
                f"{visible(words)!r} does not stand in its text{nearest(words, known)}"
            )
        return found.span


@dataclass(frozen=True)
class CountRule(MeasuredRule):
    """A rule on one number that ``params`` counts.

    number: its keys in ``attnviz params --json``, such as ``kv_cache.bytes_per_token``.
    """

    number: str = "total"

    @classmethod
    def read(cls, given: Given) -> MeasuredRule:
        number = given.word("params")
        return given.made(cls, f"params {number}", number=number)

    def measured(self, model: CheckedModel) -> Outcome:
        value, known = model.params.get(self.number), model.params
        if value is None:
            more = nearest(self.number, known)
            raise UsageError(f"params has no number {visible(self.number)!r}{more}")
        return Outcome(self, value, "its config", "config")


@dataclass(frozen=True)
class RowsRule(MeasuredRule):
    """A rule on the largest distance of a query's sum of attention weights from one.

    It is measured over the built-in texts.
    """

    @classmethod
    def read(cls, given: Given) -> MeasuredRule:
        if given.table["rows_sum_to_one"] is not True:
            raise ValueError("expected rows_sum_to_one = true")
        bounds = None if set(BOUNDS) & set(given.table) else Bounds(at_most=_ROW_SUM)
        return given.made(cls, "rows sum to one", bounds=bounds)

    def measured(self, model: CheckedModel) -> Outcome:
        apart = float(np.max([each.apart for each in model.built_in]))
        return Outcome(self, apart, model.read, TEXTS)


KINDS: Mapping[str, tuple[Callable[[Given], MeasuredRule], tuple[str, ...]]] = {
    "score": (ScoreRule.read, ("head",)),
    "heads_labelled": (LabelRule.read, ()),
    "against": (BaselineRule.read, _AGAINST),
    "loss_on": (LossRule.of_text, ()),
    "loss_on_file": (LossRule.of_file, ()),
    "span": (SpanRule.read, ("text", "mass_from", "head")),
    "params": (CountRule.read, ()),
    "rows_sum_to_one": (RowsRule.read, ()),
}
"""What reads a rule, and which keys its table may have in addition to those of every rule, by the
key that tells its kind."""


def outcome(model: CheckedModel, rule: MeasuredRule) -> Outcome:
    """Measure the value that a rule is about; return it next to the rule's bounds.

    Raises UsageError, which begins with the rule's name, for a head or a text that does not fit the
    model.
    """
    try:
        found = rule.measured(model)
    except UsageError as error:
        raise UsageError(f"rule {rule.said!r}: {error}") from error
    if math.isfinite(found.value) or found.detail:
        return found
    return replace(found, detail="what it is measured on has no number")


def _without_number(heads: Sequence[Head]) -> str:
    """Return a string that names the heads without a finite value, about which no rule can hold."""
    return f"no number of {_named(f'L{layer}H{head}' for layer, head in heads)}"


def _named(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - _FURTHEST} more" if len(every) > _FURTHEST else ""
    return ", ".join(every[:_FURTHEST]) + more


def _whole(probing: Probing, text: str) -> Input:
    """Return a whole text as the model's input.

    Raises UsageError if it is too long for the model. probing: prepares the texts for the model.
    """
    given, tokens = probing.input_of(text), len(probing.model.encode(text))
    if tokens > len(given.text):
        raise UsageError(
            f"its text has {tokens:,} tokens, the model takes at most {len(given.text):,}: "
            "shorten it"
        )
    return given
