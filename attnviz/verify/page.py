"""A verification for people: tables as drawings, in one picture or on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.draw.drawing import Anchor, Drawing, Item, Label, Style, flow
from attnviz.draw.labels import width
from attnviz.draw.page import Page, Section, Table
from attnviz.draw.provenance import model_parts
from attnviz.draw.theme import Theme
from attnviz.verify.records import Check, Matrix, Step, Verdict, Verification
from attnviz.verify.screen import OWN_NAME, own_facts
from attnviz.verify.steps_screen import (
    axes_words,
    matrix_rows,
    numbers_shown,
    single_matrices,
)
from attnviz.verify.words import (
    INKS,
    bound_words,
    difference,
    epsilon_words,
    summary,
    verdict,
)

__all__ = ["verification_page"]

_LETTER, _LINE, _GAP = 6.7, 19.0, 18.0
_ROOM = 1000.0

_Row = tuple[Verdict | None, tuple[str, ...]]
"""The cells of a line; the first is in the ink of the verdict."""


def verification_page(found: Verification) -> Page:
    """What was verified, the steps if there are any, then every check."""
    about = OWN_NAME if found.model is None else found.model.name
    title = f"{about}: {', '.join(text for text, _ in summary(found))}"
    sections = [_step_section(place, step, found) for place, step in enumerate(found.steps, 1)]
    groups = dict.fromkeys(check.group for check in found.checks)
    for group in groups:
        checks = [check for check in found.checks if check.group == group]
        rows = [row for check in checks for row in _rows(check)]
        sections.append(Section(group, found.cases.get(group, ""), (_table(rows),)))
    facts, numbers = list(_facts(found)), _numbers(found)
    return Page(f"verification of {about}", title, facts, sections, [numbers])


def _facts(found: Verification) -> Iterator[str]:
    if found.model is None:
        yield " · ".join(own_facts(found))
    else:
        parts = [text for text, _ in model_parts(found.model, Theme())]
        yield " · ".join([*parts, *(f"{count} tokens" for count in found.tokens)])
        for name, content in (("text", found.text), ("target", found.target)):
            if content is not None:
                yield f"{name}: {' '.join(content.split())}"
        yield from found.model.notes
    yield epsilon_words(found)


def _step_section(place: int, step: Step, found: Verification) -> Section:
    words = " · ".join(word for word in (step.formula, axes_words(step), step.note) if word)
    drawn: tuple[Drawing, ...] = ()
    if numbers_shown(found):
        drawings = [_matrix(matrix) for matrix in single_matrices(step)]
        drawn = (flow(step.name, drawings, _ROOM, 28),)
    return Section(f"{place} {step.name}", words, drawn)


def _matrix(matrix: Matrix) -> Drawing:
    rows: list[_Row] = [(None, tuple(row)) for row in matrix_rows(matrix.values)]
    return _table(rows, matrix.symbol, right=True)


def _rows(check: Check) -> Iterator[_Row]:
    """A line a measure; the first names the check."""
    name = check.name if not check.against else f"{check.name} · {check.against}"
    if check.skipped is not None:
        yield check.verdict, (verdict(check), name, check.skipped, "", "", "")
    for place, measure in enumerate(check.measures):
        sign = "≤" if measure.passed else ">"
        yield (
            check.verdict,
            (
                "" if place else verdict(check),
                "" if place else name,
                measure.name,
                f"{difference(measure.difference)} {sign} {difference(measure.tolerance.value)}",
                measure.where,
                ": ".join(w for w in (bound_words(measure.tolerance), measure.reason) if w),
            ),
        )
    for note in check.notes:
        yield None, ("", "", note, "", "", "")


def _table(rows: Sequence[_Row], caption: str = "", right: bool = False) -> Drawing:
    """Rows of texts in columns as wide as their cells; words of several columns run on."""
    columns = range(max((len(cells) for _, cells in rows), default=0))
    # A sentence in place of numbers must not widen its column for all.
    full = [cells for _, cells in rows if right or any(cells[3:])]
    widths = [max((width(cells[n]) for cells in full), default=0) for n in columns]
    items: list[Item] = [Label(0, 13, caption, "axis-faint")] if caption else []
    y, across = _LINE if caption else 0.0, 0.0
    for ending, cells in rows:
        x = 0.0
        for place, cell in enumerate(cells):
            column = widths[place] * _LETTER
            end = x + column if right else x + width(cell) * _LETTER
            if cell:
                style: Style = "axis-faint" if ending in (None, "skipped") and place else "axis"
                style = "axis" if right else style
                ink = INKS[ending] if ending is not None and not place else None
                anchor: Anchor = "end" if right else "start"
                items.append(Label(end if right else x, y + 13, cell, style, anchor, ink=ink))
                across = max(across, end)
            x += column + _GAP
        y += _LINE
    least = width(caption) * _LETTER
    return Drawing(caption or "checks", max(across, least, 1.0), max(y, 1.0), tuple(items))


def _numbers(found: Verification) -> Table:
    """Every number, which can be searched and copied."""
    titles = ("verdict", "case", "check", "against", "measure", "difference", "tolerance", "where")
    rows: list[tuple[str, ...]] = []
    for check in found.checks:
        of = (verdict(check), check.group, check.name, check.against)
        for measure in check.measures:
            numbers = difference(measure.difference), difference(measure.tolerance.value)
            rows.append((*of, measure.name, *numbers, measure.where))
        if check.skipped is not None:
            rows.append((*of, check.skipped, "", "", ""))
    return Table("Every number", titles, rows, titles)
