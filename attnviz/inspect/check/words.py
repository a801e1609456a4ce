"""The words of ``check``: values and bounds as short texts, the finding, the explanation."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from attnviz.draw.labels import cut, short_name, visible
from attnviz.draw.numbers import counted
from attnviz.inspect.check.records import (
    Bounds,
    CheckReport,
    LabelRule,
    Outcome,
    Rule,
    ScoreRule,
)
from attnviz.measures.registry import label_named, said_name

_NAMED, _NAME = 2, 40
"""How many rules the finding names, and the columns of a name."""


def on_github() -> bool:
    """Return whether this runs in GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def said(text: str) -> str:
    """Return a foreign name safe to print; on GitHub it cannot begin a workflow command."""
    text = visible(text)
    return text.replace("::", ": :").replace("##[", "## [") if on_github() else text


def rule_name(rule: Rule) -> str:
    """Return the name of a rule as it is shown, in which measures have their display names."""
    name = rule.name
    if isinstance(rule, ScoreRule) and name == f"{rule.head} {rule.score}":
        name = f"{rule.head} {said_name(rule.score)}"
    if isinstance(rule, LabelRule) and name == f"heads labelled {rule.label}":
        name = f"heads labelled {label_named(rule.label).said}"
    return said(name)


def number_text(value: float) -> str:
    """Return a number as a string such as ``5,008,640``, ``0.6``; a dash if infinite or NaN."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:.12g}"


def value_text(outcome: Outcome) -> str:
    """Return an outcome's value as a string with enough digits to tell it from its bound.

    It has at least three digits.
    """
    value, bounds = outcome.value, outcome.rule.bounds
    if not math.isfinite(value) or value == int(value):
        return number_text(value)
    texts = (f"{value:#.{digits}g}".rstrip(".") for digits in (3, 4, 6, 9, 12))
    ends = [end for end in (bounds.at_least, bounds.at_most) if end is not None]
    told = (
        text
        for text in texts
        if bounds.hold(float(text)) == outcome.passed and (float(text) not in ends)
    )
    return next(told, repr(value))


def bound_text(bounds: Bounds) -> str:
    """Return bounds as a string such as ``≥ 0.6``, ``= 4`` or ``0.1 to 0.5``."""
    low, high = bounds.at_least, bounds.at_most
    if low is None:
        return f"≤ {number_text(high or 0.0)}"
    if high is None:
        return f"≥ {number_text(low)}"
    return f"= {number_text(low)}" if low == high else f"{number_text(low)} to {number_text(high)}"


def sources(report: CheckReport) -> list[tuple[str, str]]:
    """Return (short name, explanation) of the texts that the rules were measured on."""
    used = {outcome.over.partition(",")[0] for outcome in report.outcomes}
    return [(name, words) for name, words in report.sources.items() if name in used]


def measured_on(outcome: Outcome, *, detailed: bool) -> str:
    """Return the texts or heads that a value was measured on, and its unit, as a string.

    detailed: if the rule does not hold, add ``outcome.detail``, such as the heads beyond a bound.
    """
    detail = outcome.detail if detailed and not outcome.passed else ""
    return ", ".join(word for word in (outcome.over, outcome.unit, detail) if word)


def sign(outcome: Outcome) -> str:
    """Return the sign of a rule's outcome: ✓ if it holds, ! for a warning, ✗ if it fails."""
    if outcome.passed:
        return "✓"
    return "!" if outcome.rule.warning else "✗"


def brief(outcome: Outcome) -> str:
    """Return a rule's name, its value and its bounds as one string."""
    name = cut(rule_name(outcome.rule), _NAME)
    return f"{name} {value_text(outcome)} (rule: {bound_text(outcome.rule.bounds)})"


def finding(report: CheckReport) -> str:
    """Return the finding: in one sentence whether the rules hold."""
    total, failed, warned = len(report.outcomes), report.failed, report.warned
    more = f" {counted(len(warned), 'warning')}: {_some(warned)}." if warned else ""
    if failed and total == 1:
        return f"The rule fails: {_some(failed)}."
    if failed:
        fail = "fails" if len(failed) == 1 else "fail"
        return f"{len(failed)} of {counted(total, 'rule')} {fail}: {_some(failed)}.{more}"
    holding = total - len(warned)
    if not holding:
        return f"No rule fails.{more}"
    every = "The rule holds" if holding == 1 else f"All {holding} rules hold"
    return f"{every}.{more}"


def _some(outcomes: Sequence[Outcome]) -> str:
    rest = len(outcomes) - _NAMED
    named = "; ".join(map(brief, outcomes[:_NAMED]))
    return f"{named}; and {rest} more" if rest > 0 else named


def heading(report: CheckReport) -> list[tuple[str, bool]]:
    """Return the heading, as (words, whether they stand out): model, file, how many rules."""
    info = report.info
    name = [(said(short_name(report.name)), True)]
    revision = info.revision if info is not None else None
    return [
        *name,
        *([((revision or "")[:12], False)] if revision is not None else []),
        *([("random weights", False)] if info is not None and info.weights == "random" else []),
        (said(report.path.name), False),
        (counted(len(report.outcomes), "rule"), False),
    ]


def written_words(report: CheckReport) -> str:
    """Return a string that names the files that this run wrote."""
    return f"wrote {', '.join(said(str(path)) for path in report.written)}"
