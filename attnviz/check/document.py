"""What ``attnviz check`` has to say: one line a rule, what fails first."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.check.records import CheckReport, Outcome
from attnviz.check.words import (
    EXPLANATION,
    bound_text,
    finding,
    heading,
    measured_on,
    sign,
    value_text,
)
from attnviz.draw import document as doc
from attnviz.draw.labels import cut, visible, width
from attnviz.draw.provenance import model_words, notes_group
from attnviz.draw.theme import Tone
from attnviz.records import Tokens

_TONES: dict[str, Tone] = {"✓": "good", "✗": "bad", "!": "strong"}
_ORDER = "✗!✓"
_LEAST_ROWS = 3
_LEAST_NAME, _MOST_NAME, _SPELLED = 28, 40, 4
"""Columns of a rule's name where it must be cut, and anyway; those that ASCII takes more."""


def check_document(
    report: CheckReport, explain: bool = False, hints: Sequence[str] = ()
) -> doc.Document:
    """Everything that one run shows."""
    about: doc.Words = [(visible(report.name), True)]
    if report.info is not None:
        about = model_words(report.info)
    facts: list[doc.Part] = [
        doc.Facts(about, "model", 7),
        doc.Facts([(visible(str(report.path)), False)], "rules", 7),
    ]
    return doc.Document(
        f"rules about {report.name}",
        f"Rules about {report.name}",
        [
            doc.Group(facts),
            notes_group(report.notes, Tokens((), (), ())),
            doc.Group([rule_table(report)]),
        ],
        [doc.Say(text, 100) for text in EXPLANATION] if explain else (),
        [doc.Facts([(hint, False) for hint in hints], tone="faint")] if hints else (),
        heading(report),
        "",
        finding(report),
        lambda columns, lines: [doc.Group([rule_table(report, columns, _LEAST_ROWS)])],
    )


def rule_table(report: CheckReport, columns: int = 0, least: int = 0) -> doc.Table:
    """A row a rule, those that do not hold first, else in the order of the file.

    columns: that it is to fit into, each row in one line; 0 for as many as it needs.
    """
    ranked = sorted(report.outcomes, key=lambda outcome: _ORDER.index(sign(outcome)))
    cells = [_cells(outcome) for outcome in ranked]
    if columns:
        mark, name, value, bound, words = (
            max(map(width, each)) for each in zip(*cells, strict=True)
        )
        room = columns - mark - value - bound - 2 * len(cells[0]) - _SPELLED
        name = min(name, max(room - words, _LEAST_NAME))
        for row in cells:
            row[1], row[4] = cut(row[1], name), cut(row[4], max(room - name, 1))
    rows = [doc.Row(row, tones={0: _TONES[row[0]]}) for row in cells]
    heads = [
        doc.Column("", right=False),
        doc.Column("rule", right=False),
        doc.Column("value"),
        doc.Column("bound", right=False),
        doc.Column("measured on", right=False, tone="faint", wraps=not columns),
    ]
    return doc.Table(heads, rows, lead=2, least=least)


def _cells(outcome: Outcome) -> list[str]:
    return [
        sign(outcome),
        cut(visible(outcome.rule.name), _MOST_NAME),
        value_text(outcome),
        bound_text(outcome.rule.bounds),
        measured_on(outcome),
    ]
