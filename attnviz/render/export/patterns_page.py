"""Labelled heads for people: one drawing, or a page with every number in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.patterns import PatternReport
from attnviz.render.export.drawing import Drawing
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.page import Page, Section, Table
from attnviz.render.export.patterns_csv import pattern_columns, pattern_row
from attnviz.render.export.patterns_figure import (
    example_drawing,
    grid_drawing,
    label_key,
    ranking_drawing,
)
from attnviz.render.facts import model_parts
from attnviz.render.meanings import meaning
from attnviz.render.patterns.facts import count, pattern_doubts, provenance_words
from attnviz.render.patterns.view import PatternView
from attnviz.render.theme import Theme

__all__ = ["patterns_page"]

_LISTED, _WATCHED = 8, 24
_MAPPED = 2
_MOST_ROWS = 4096


def patterns_page(report: PatternReport, view: PatternView, palette: str) -> Page:
    """The grid, then for each label its best heads and what they look like."""
    labelled = sum(entry.label is not None for entry in report.heads)
    names = _shown(report, view)
    title = f"What each head does: {labelled} of {count(len(report.heads), 'head')} labelled"
    if view.watch is not None:
        title = f"{view.watch}: {meaning(view.watch)}"
    key = label_key(report, names)
    sections = [Section("", "", (grid_drawing(report, view.watch), key))]
    sections += [_section(report, view, name) for name in names]
    maps = _maps(report, view, names, palette)
    if maps:
        words = "the best of each label" if view.watch is None else "the best heads"
        sections.append(Section("What it looks like", words, (legend_drawing(),)))
        sections.append(Section("", "", tuple(maps), beside=True))
    name = f"patterns of {report.model.name}"
    return Page(name, title, list(_facts(report, view)), sections, [_table(report)])


def _shown(report: PatternReport, view: PatternView) -> list[str]:
    if view.watch is not None:
        return [view.watch] if report.ranked(view.watch) else []
    return [name for name in report.labels if report.labelled(name)]


def _facts(report: PatternReport, view: PatternView) -> Iterator[str]:
    parts = [text for text, _ in model_parts(report.model, Theme())]
    parts += [] if report.kind == "self" else [f"{report.kind} attention"]
    parts += [] if report.model.seed is None else [f"seed {report.model.seed}"]
    yield " · ".join(parts)
    if view.text is not None:
        yield f"text: {' '.join(view.text.split())}"
    if view.target is not None:
        yield f"target: {' '.join(view.target.split())}"
    for name, words in provenance_words(report, view):
        yield f"{name}: {words}" if name else words
    yield from (*report.model.notes, *report.notes)
    if view.watch is None:
        yield from pattern_doubts(report)
    elif not report.ranked(view.watch):
        reason = report.not_measured.get(view.watch, "this attention has no such score")
        yield f"not measured: {reason}"


def _section(report: PatternReport, view: PatternView, name: str) -> Section:
    heads = report.labelled(name) if view.watch is None else report.ranked(name)
    listed = heads[: view.top or (_LISTED if view.watch is None else _WATCHED)]
    ranking = ranking_drawing(report, name, listed, name)
    more = f", the first {len(listed)} are listed" if len(listed) < len(heads) else ""
    words = f"{count(len(heads), 'head')}{more}; {meaning(name)}"
    return Section(name, words, (ranking,))


def _maps(
    report: PatternReport, view: PatternView, names: Sequence[str], palette: str
) -> list[Drawing]:
    """The best head of each label, or the best few of the one that is watched."""
    most = 1 if view.watch is None else _MAPPED
    drawn = (
        example_drawing(report, entry, name, palette)
        for name in names
        for entry in report.labelled(name)[:most]
    )
    return [drawing for drawing in drawn if drawing is not None]


def _table(report: PatternReport) -> Table:
    """Every number of every head; a dash where nothing was measured."""
    rows = []
    for entry in report.heads[:_MOST_ROWS]:
        label, *numbers = list(pattern_row(report, entry))[2:]
        told = (f"{float(number):.4g}" if number else "–" for number in numbers)
        rows.append([report.name(entry.layer, entry.head), label or "–", *told])
    return Table("Every head", ["name", *pattern_columns(report)[2:]], rows, ("name", "label"))
