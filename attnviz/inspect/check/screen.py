"""The document of ``attnviz check``: a line per rule, those that fail first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, short_name
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words, notes_group
from attnviz.draw.theme import Tone
from attnviz.inspect.check.report import Bounds, CheckReport, Outcome, printable
from attnviz.records import Tokens

_TONES: dict[str, Tone] = {"✗": "bad", "!": "strong", "✓": "good"}
"""The signs of outcomes with their styles, in the order in which the rules are listed."""

_NAMED, _NAME = 2, 40  # how many rules the finding names, and the columns of a name
_LEAST_ROWS = 3
_LEAD = 9


def document(report: CheckReport) -> doc.Document:
    """Return the document of a check, with everything that it shows."""
    advice = [*([report.files_written] if report.written else []), "--explain"]
    about = [(printable(report.name), True)] if report.info is None else model_words(report.info)
    named = [("rules", printable(str(report.path))), *_sources(report)]
    facts = [doc.Facts([(words, False)], name, _LEAD) for name, words in named]
    wrong = (*report.failed, *report.warned)
    return doc.Document(
        name=f"rules about {report.name}",
        title=f"Rules about {report.name}",
        groups=[
            doc.Group([doc.Facts(about, "model", _LEAD), *facts]),
            notes_group(report.notes, Tokens((), (), ())),
            doc.Group([_rule_table(report)]),
            doc.Group([doc.Say(f"{own.rule.title}: {own.detail}") for own in wrong if own.detail]),
        ],
        explain=doc.Explanation("check", "each line is a rule of the file."),
        hints=doc.next_steps(advice, tone="faint"),
        heading=_heading(report),
        finding=finding(report),
        first=partial(_first, report),
    )


def _first(report: CheckReport, columns: int, lines: int) -> list[doc.Group]:
    shared = [(f"{name}: {words}", False) for name, words in _sources(report)]
    facts: list[doc.Part] = [doc.Facts(shared)] if shared else []
    return [doc.Group([*facts, _rule_table(report, _LEAST_ROWS)])]


def _rule_table(report: CheckReport, least: int = 0) -> doc.Table:
    """Return a row for each rule, broken ones first. least: the rows a first screen must show."""
    order = [*_TONES]

    def measured_on(outcome: Outcome) -> str:
        detail = outcome.detail if least and not outcome.passed else ""
        return ", ".join(filter(None, (outcome.over, outcome.unit, detail)))

    return doc.table(
        sorted(report.outcomes, key=lambda outcome: order.index(_sign(outcome))),
        doc.ColumnOf("", _sign, right=False),
        doc.ColumnOf("rule", lambda outcome: outcome.rule.title, right=False, cuts=True),
        doc.ColumnOf("value", value_text),
        doc.ColumnOf("bound", lambda outcome: _bound_text(outcome.rule.bounds), right=False),
        doc.ColumnOf("measured on", measured_on, right=False, tone="faint", cuts=True),
        row=lambda outcome: {"tones": {0: _TONES[_sign(outcome)]}},
        lead=2,
        least=least,
    )


def _heading(report: CheckReport) -> list[tuple[str, bool]]:
    info = report.info
    facts = [
        info.revision[:12] if info is not None and info.revision is not None else None,
        "random weights" if info is not None and info.weights == "random" else None,
        printable(report.path.name),
        counted(len(report.outcomes), "rule"),
    ]
    name = printable(short_name(report.name))
    return [(name, True), *((fact, False) for fact in facts if fact is not None)]


def _sources(report: CheckReport) -> list[tuple[str, str]]:
    used = {outcome.over.partition(",")[0] for outcome in report.outcomes}
    return [(name, words) for name, words in report.sources.items() if name in used]


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


def brief(outcome: Outcome) -> str:
    """Return a rule's name, its value and its bounds as one string."""
    name = cut(outcome.rule.title, _NAME)
    return f"{name} {value_text(outcome)} (rule: {_bound_text(outcome.rule.bounds)})"


def _sign(outcome: Outcome) -> str:
    """Return the sign of a rule's outcome: ✓ if it holds, ! for a warning, ✗ if it fails."""
    if outcome.passed:
        return "✓"
    return "!" if outcome.rule.warning else "✗"


def value_text(outcome: Outcome) -> str:
    """Return a value with at least three digits, and as many as tell it from its bound."""
    value, bounds = outcome.value, outcome.rule.bounds
    if not math.isfinite(value) or value == int(value):
        return _number_text(value)
    texts = (f"{value:#.{digits}g}".rstrip(".") for digits in (3, 4, 6, 9, 12))
    told = (
        text
        for text in texts
        if bounds.hold(float(text)) == outcome.passed and float(text) not in bounds.ends
    )
    return next(told, repr(value))


def _number_text(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:.12g}"


def _bound_text(bounds: Bounds) -> str:
    """Return bounds as a string such as ``≥ 0.6``, ``= 4`` or ``0.1 to 0.5``."""
    ends = [*map(_number_text, bounds.ends)]
    if len(ends) == 2:
        return f"= {ends[0]}" if bounds.at_least == bounds.at_most else " to ".join(ends)
    return f"{'≤' if bounds.at_least is None else '≥'} {ends[0]}"
