"""The outcomes of rules: what each of them measures, as one number next to its bounds.

Whatever is missing or not finite (a head, a token, a loss) makes the number NaN, which lies within
no bounds, and the detail says what is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.draw.labels import visible
from attnviz.engine.head_run import Head
from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.inspect.check.baseline import read_baseline
from attnviz.inspect.check.measure import BASELINE, PROBES, TEXTS, CheckedModel
from attnviz.inspect.check.records import (
    BaselineRule,
    CountRule,
    LabelRule,
    LossRule,
    Outcome,
    RowsRule,
    Rule,
    ScoreRule,
    SpanRule,
)
from attnviz.inspect.check.words import rule_name
from attnviz.measures.registry import MEASURES
from attnviz.measures.words import find_in
from attnviz.models.shapes import nearest
from attnviz.records import Input

if TYPE_CHECKING:  # rules of params alone load no model
    from attnviz.inspect.patterns.report import PatternReport

_FURTHEST = 3
"""How many of the heads beyond a bound are named."""


def outcome(measured: CheckedModel, rule: Rule) -> Outcome:
    """Measure the value that a rule is about; return it next to the rule's bounds.

    Raises UsageError, which begins with the rule's name, for a head or a text that does not fit the
    model.
    """
    try:
        found = _OUTCOMES[type(rule)](measured, rule)
    except UsageError as error:
        raise UsageError(f"rule {rule_name(rule)!r}: {error}") from error
    if math.isfinite(found.value) or found.detail:
        return found
    return replace(found, detail="what it is measured on has no number")


def _score(measured: CheckedModel, rule: ScoreRule) -> Outcome:
    head = measured.place(rule.head)
    value = measured.scores[head].get(rule.score)
    known = [scores for scores in measured.scores.values() if set(scores.values()) > {None}]
    if known and all(scores.get(rule.score) is None for scores in known):
        why = measured.patterns.not_measured.get(rule.score, "it is measured of no head")
        raise UsageError(f"no score {rule.score!r} here: {why}")
    unit = MEASURES[rule.score].unit.replace("share", "")
    found = Outcome(rule, math.nan, measured.probed, PROBES, unit, _without_number([head]))
    return found if value is None else replace(found, value=value, detail="")


def _without_number(heads: Sequence[Head]) -> str:
    """Return a string that names the heads without a finite value, about which no rule can hold."""
    named = ", ".join(f"L{layer}H{head}" for layer, head in heads[:_FURTHEST])
    more = f" and {len(heads) - _FURTHEST} more" if len(heads) > _FURTHEST else ""
    return f"no number of {named}{more}"


def _labelled(measured: CheckedModel, rule: LabelRule) -> Outcome:
    report = measured.patterns
    if report.unknown:  # any of them may have the label
        detail = _without_number([(entry.layer, entry.head) for entry in report.unknown])
        return Outcome(rule, math.nan, measured.probed, PROBES, detail=detail)
    if why := _cannot_be_given(report, rule.label):
        raise UsageError(f"no label {rule.label!r} here: {why}")
    heads = report.labelled(rule.label)
    names = ", ".join(report.head_name((entry.layer, entry.head)) for entry in heads[:_FURTHEST])
    more = f" and {len(heads) - _FURTHEST} more" if len(heads) > _FURTHEST else ""
    return Outcome(rule, len(heads), measured.probed, PROBES, detail=names + more)


def _cannot_be_given(report: PatternReport, label: str) -> str:
    """Return why no head of this model can get a label; empty if one can."""
    if label not in report.labels:
        return report.not_measured.get(label, "no head of this model can get it")
    if label in report.untestable:
        return f"one fixed distance finds it in {report.untestable[label]:.0%} of the pairs"
    return "random weights get none" if report.model.weights == "random" else ""


def _against(measured: CheckedModel, rule: BaselineRule) -> Outcome:
    now = measured.baseline
    if rule.path not in measured.baselines:
        measured.baselines[rule.path] = read_baseline(rule.path, now)
    saved = measured.baselines[rule.path]
    js = rule.of == "js_divergence"
    apart = now.js_divergence(saved) if js else now.score_change(saved)
    ranked = sorted(apart, key=lambda head: -apart[head])
    within = math.ceil(rule.share * len(ranked) - 1e-9)
    lost = [head for head in apart if math.isnan(apart[head])]
    value = math.nan if lost else apart[ranked[len(ranked) - within]]
    share = "all heads" if within == len(ranked) else f"{within} of {len(ranked)} heads"
    read = f"{measured.tokens} tokens" if js else measured.probed
    beyond = [head for head in ranked if not rule.bounds.hold(apart[head])]
    told = ", ".join(
        f"L{layer}H{head} {apart[layer, head]:.2g}" for layer, head in beyond[:_FURTHEST]
    )
    detail = f"{len(beyond)} of {len(ranked)} heads beyond: {told}" if beyond else ""
    if lost:
        renew = "" if js else ", here or in the baseline"
        detail = f"{_without_number(lost)}{renew}"
    unit = "bits" if js else ""
    over = BASELINE + (f", {within} of {len(ranked)}" if within < len(ranked) else "")
    words = f"{share}, baseline {saved.origin}, {read}"
    return Outcome(rule, value, words, over, unit, detail)


def _loss(measured: CheckedModel, rule: LossRule) -> Outcome:
    if rule.texts:
        inputs = [_whole(measured.probing, text) for text in rule.texts]
        sizes = [len(given.keys(measured.probing.kind)) for given in inputs]
        found = [measured.losses(given) for given in inputs]
    else:
        sizes = [each.tokens for each in measured.built_in]
        found = [each.losses for each in measured.built_in]
    losses = [each for each in found if each is not None]
    if len(losses) < len(found):
        raise UsageError(f"{measured.model.info.name!r} predicts no next token: it has no loss")
    for number, each in enumerate(losses, start=1):
        if not len(each):
            text = f"text {number}" if len(losses) > 1 else "the text"
            raise UsageError(f"{text} has one token: a loss needs two, one to read, one to predict")
    every = np.concatenate(losses)
    texts = f"{len(sizes)} texts, " if len(sizes) > 1 else ""
    over = f"{texts}{sum(sizes):,} tokens"
    short = over if rule.texts else TEXTS
    return Outcome(rule, float(every.mean()), over, short, "nats/token")


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


def _span(measured: CheckedModel, rule: SpanRule) -> Outcome:
    probing = measured.probing
    given = _whole(probing, rule.text)
    tokens = given.keys(probing.kind)
    key = find_in(tokens, rule.span)
    query = None if rule.queries in ("last", "all") else find_in(tokens, rule.queries)
    asked = rule.queries not in ("last", "all")
    if key is None or (asked and query is None):
        missing = rule.span if key is None else rule.queries
        words = set(re.findall(r"\w+", rule.text))
        raise UsageError(
            f"{visible(missing)!r} does not stand in its text{nearest(missing, words)}"
        )
    rows = range(len(tokens)) if rule.queries == "all" else range(len(tokens) - 1, len(tokens))
    rows = rows if query is None else query.span
    if probing.causal and rows[-1] < key.span[0]:
        raise UsageError(
            f"{visible(rule.queries)!r} stands before {visible(rule.span)!r}, which it cannot see: "
            "its mass is 0 whatever the model does"
        )
    masses = measured.masses(given, rows, key.span)
    if rule.head:
        layer, head = measured.place(rule.head)
        chosen = masses[layer][head : head + 1]
    else:
        chosen = np.concatenate([masses[layer] for layer in sorted(masses)])
    over = f"{len(tokens)} tokens" + ("" if rule.head else f", mean of {len(chosen)} heads")
    return Outcome(rule, float(chosen.mean()), over, over)


def _count(measured: CheckedModel, rule: CountRule) -> Outcome:
    value = measured.params.get(rule.number)
    if value is None:
        raise UsageError(
            f"params has no number {visible(rule.number)!r}{nearest(rule.number, measured.params)}"
        )
    return Outcome(rule, value, "its config", "config")


def _rows(measured: CheckedModel, rule: RowsRule) -> Outcome:
    apart = float(np.max([each.apart for each in measured.built_in]))
    return Outcome(rule, apart, measured.read, TEXTS)


_OUTCOMES: Mapping[type[Rule], Callable[[CheckedModel, Any], Outcome]] = {
    ScoreRule: _score,
    LabelRule: _labelled,
    BaselineRule: _against,
    LossRule: _loss,
    SpanRule: _span,
    CountRule: _count,
    RowsRule: _rows,
}
