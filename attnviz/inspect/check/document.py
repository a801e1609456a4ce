"""The document of ``attnviz check``: a line per rule, those that fail first."""

from __future__ import annotations

from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.provenance import model_words, notes_group
from attnviz.draw.theme import Tone
from attnviz.inspect.check.records import CheckReport, Outcome
from attnviz.inspect.check.words import (
    bound_text,
    finding,
    heading,
    measured_on,
    rule_name,
    said,
    sign,
    sources,
    value_text,
    written_words,
)
from attnviz.records import Tokens

_TONES: dict[str, Tone] = {"✓": "good", "✗": "bad", "!": "strong"}
_ORDER = "✗!✓"
_LEAST_ROWS = 3
_LEAD = 9


def check_document(report: CheckReport) -> doc.Document:
    """Return the document of a check, with everything that it shows."""
    advice = [*([written_words(report)] if report.written else []), "--explain"]
    about: doc.Words = [(said(report.name), True)]
    if report.info is not None:
        about = model_words(report.info)
    facts: list[doc.Part] = [
        doc.Facts(about, "model", _LEAD),
        doc.Facts([(said(str(report.path)), False)], "rules", _LEAD),
        *(doc.Facts([(words, False)], name, _LEAD) for name, words in sources(report)),
    ]
    beyond = [
        doc.Say(f"{rule_name(outcome.rule)}: {outcome.detail}")
        for outcome in (*report.failed, *report.warned)
        if outcome.detail
    ]
    return doc.Document(
        name=f"rules about {report.name}",
        title=f"Rules about {report.name}",
        groups=[
            doc.Group(facts),
            notes_group(report.notes, Tokens((), (), ())),
            doc.Group([rule_table(report)]),
            doc.Group(beyond),
        ],
        explain=doc.Explanation("check", "each line is a rule of the file."),
        hints=doc.next_steps(advice, tone="faint"),
        heading=heading(report),
        quoted="",
        finding=finding(report),
        first=partial(_first, report),
    )


def rule_table(report: CheckReport, least: int = 0) -> doc.Table:
    """Return a table with a row for each rule; those that do not hold come first.

    Otherwise the order is that of the file. least: how many rows a first screen must show, in full;
    0 for the whole table.
    """
    rows = [
        doc.Row(_cells(outcome, detailed=bool(least)), tones={0: _TONES[sign(outcome)]})
        for outcome in sorted(report.outcomes, key=lambda outcome: _ORDER.index(sign(outcome)))
    ]
    heads = [
        doc.Column("", right=False),
        doc.Column("rule", right=False, cuts=True),
        doc.Column("value"),
        doc.Column("bound", right=False),
        doc.Column("measured on", right=False, tone="faint", cuts=True),
    ]
    return doc.Table(heads, rows, lead=2, least=least)


def _cells(outcome: Outcome, *, detailed: bool) -> list[str]:
    return [
        sign(outcome),
        rule_name(outcome.rule),
        value_text(outcome),
        bound_text(outcome.rule.bounds),
        measured_on(outcome, detailed=detailed),
    ]


def _first(report: CheckReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: the texts that the rules were measured on, then the rules."""
    shared = [(f"{name}: {words}", False) for name, words in sources(report)]
    facts: list[doc.Part] = [doc.Facts(shared)] if shared else []
    return [doc.Group([*facts, rule_table(report, _LEAST_ROWS)])]
