"""Labelled heads as a page: the grid, rankings and examples as drawings, every number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.drawing import Cells, Drawing, Item, Label, Tip
from attnviz.draw.legend_figure import legend_drawing
from attnviz.draw.map_figure import matrix_drawing
from attnviz.draw.page import Page, Section, Table
from attnviz.draw.palette import contrasting, to_hex
from attnviz.draw.provenance import model_parts
from attnviz.draw.theme import Theme
from attnviz.measures.registry import label_named
from attnviz.patterns.colours import label_palette, label_step, shade
from attnviz.patterns.csv import pattern_columns, pattern_row
from attnviz.patterns.numbers import NOT_MEASURED, percent, plain, score, short, signed
from attnviz.patterns.provenance import count, pattern_doubts, provenance_words
from attnviz.patterns.records import PatternReport, PatternScores
from attnviz.patterns.view import PatternView

__all__ = ["example_drawing", "grid_drawing", "label_key", "patterns_page", "ranking_drawing"]

_LEFT, _TOP = 44.0, 26.0
_TALL = 24.0
_WIDE, _NARROW = 58.0, 20.0
_MOST_WIDE = 16
_LINE = 22.0
_BAR = 180.0
_COLUMN = 74.0


def _square(name: str, strength: float, box: tuple[float, float, float, float]) -> Cells:
    """One cell in a label's colour."""
    return Cells(*box, np.array([[label_step(strength)]]), label_palette(name))


def _ink(name: str, strength: float) -> str:
    return to_hex(contrasting(shade(name, strength)))


def grid_drawing(report: PatternReport, name: str | None) -> Drawing:
    """A cell a head: its label and score, or its score of the one label ``name``."""
    heads = sorted({entry.head for entry in report.heads})
    layers = sorted({entry.layer for entry in report.heads})
    cell = _WIDE if len(heads) <= _MOST_WIDE else _NARROW
    width, height = len(heads) * cell, len(layers) * _TALL
    blank: NDArray[np.intp] = np.full((len(layers), len(heads)), -1)
    items: list[Item] = [Cells(_LEFT, _TOP, width, height, blank)]
    every = 1 if cell == _WIDE else 2
    for column in range(0, len(heads), every):
        middle = _LEFT + (column + 0.5) * cell
        text = (
            f"H{heads[column] + report.index_base}"
            if cell == _WIDE
            else str(heads[column] + report.index_base)
        )
        items.append(Label(middle, _TOP - 8, text, "axis", "middle"))
    for row, layer in enumerate(layers):
        text = f"L{layer + report.index_base}"
        items.append(Label(_LEFT - 8, _TOP + (row + 0.65) * _TALL, text, "axis", "end"))
    for entry in report.heads:
        x = _LEFT + heads.index(entry.head) * cell
        y = _TOP + layers.index(entry.layer) * _TALL
        items += _head(report, entry, name, (x, y, cell, _TALL))
    return Drawing("all heads", max(_LEFT + width + 8, 460), _TOP + height + 8, tuple(items))


def _head(
    report: PatternReport,
    entry: PatternScores,
    watched: str | None,
    box: tuple[float, float, float, float],
) -> Iterator[Item]:
    name = watched or entry.label
    x, y, width, height = box
    value = entry.scores.get(name) if name is not None else None
    if name is not None and value is not None:
        strength = entry.strength.get(name, 0.0)
        yield _square(name, strength, box)
        sign = "" if watched else f"{label_named(name).letter} "
        text = sign + short(value) if width == _WIDE else sign.strip()
        ink = _ink(name, strength)
        yield Label(x + width / 2, y + 16, text, "value", "middle", ink=ink)
    yield Tip(x, y, width, height, _tip(report, entry))


def _tip(report: PatternReport, entry: PatternScores) -> str:
    """Every score of a head with its base rate."""
    lines = [f"{report.name(entry.layer, entry.head)}: {entry.label or 'no label'}"]
    lines += [
        f"{name} {score(value)}, base {score(entry.base_rate.get(name))}"
        for name, value in entry.scores.items()
        if value is not None
    ]
    return "\n".join(lines)


def label_key(report: PatternReport, names: Sequence[str]) -> Drawing:
    """The colour of each label, its letter, and in how many heads it is."""
    items: list[Item] = []
    x = y = 0.0
    for name in names:
        count = len(report.labelled(name))
        words = f"{label_named(name).letter} {name} in {count}"
        wide = 34 + 7.0 * len(words)
        if x and x + wide > 900:
            x, y = 0.0, y + _LINE
        items.append(_square(name, 1.0, (x, y + 4, 18, 14)))
        items.append(Label(x + 24, y + 15, words, "text"))
        x += wide
    return Drawing("labels", 940, y + _LINE + 2, tuple(items))


def ranking_drawing(
    report: PatternReport, name: str, heads: Sequence[PatternScores], title: str
) -> Drawing:
    """A row a head: its name, the bar of its score, base rate, margin, agreement, statistics."""
    columns: dict[str, list[str]] = {
        "score": [score(entry.scores.get(name)) for entry in heads],
        "base": [score(entry.base_rate.get(name)) for entry in heads],
        "margin": [signed(_margin(entry, name)) for entry in heads],
        "agreement": [percent(e.agreement) if e.label == name else "" for e in heads],
    }
    if report.control is not None:
        columns["random"] = [score(entry.control.get(name)) for entry in heads]
    if set(columns["agreement"]) <= {"", NOT_MEASURED}:
        del columns["agreement"]
    columns["entropy"] = [plain(entry.statistics.get("entropy")) for entry in heads]
    columns["distance"] = [plain(entry.statistics.get("distance")) for entry in heads]
    columns["confidence"] = [score(entry.statistics.get("confidence")) for entry in heads]
    columns["first"] = [score(entry.statistics.get("first")) for entry in heads]
    items = [*_table_head(columns), *_table_rows(report, name, heads, columns)]
    width = _LEFT + 20 + _BAR + _COLUMN * len(columns) + 12
    return Drawing(title, width, _LINE * (len(heads) + 1), tuple(items))


def _margin(entry: PatternScores, name: str) -> float | None:
    value, base = entry.scores.get(name), entry.base_rate.get(name)
    return None if value is None or base is None else value - base


def _place(column: int) -> float:
    return _LEFT + 20 + _BAR + _COLUMN * (column + 1)


def _table_head(columns: Mapping[str, Sequence[str]]) -> Iterator[Item]:
    for place, title in enumerate(columns):
        yield Label(_place(place), 14, title, "faint", "end")


def _table_rows(
    report: PatternReport,
    name: str,
    heads: Sequence[PatternScores],
    columns: Mapping[str, Sequence[str]],
) -> Iterator[Item]:
    for row, entry in enumerate(heads):
        y = (row + 1) * _LINE
        value = min(max(entry.scores.get(name) or 0.0, 0.0), 1.0)
        yield Label(0, y + 15, report.name(entry.layer, entry.head), "name")
        box = (_LEFT + 20, y + 3, max(_BAR * value, 1.0), _LINE - 7)
        yield _square(name, entry.strength.get(name, 0.0), box)
        for place, cells in enumerate(columns.values()):
            yield Label(_place(place), y + 15, cells[row], "text", "end")


def example_drawing(
    report: PatternReport, entry: PatternScores, name: str, palette: str
) -> Drawing | None:
    """The map of a head over a text on which its label can be seen; None without one."""
    example = entry.example
    if example is None:
        return None
    words = f"{name} {score(entry.scores.get(name))} · base {score(entry.base_rate.get(name))}"
    return matrix_drawing(
        (report.name(entry.layer, entry.head), words),
        example.weights,
        (example.tokens, example.keys),
        report.causal and example.keys is example.tokens,
        palette,
        report.index_base,
    )


_LISTED, _WATCHED = 8, 24
_MAPPED = 2
_MOST_ROWS = 4096


def patterns_page(report: PatternReport, view: PatternView, palette: str) -> Page:
    """The grid, then for each label its best heads and what they look like."""
    labelled = sum(entry.label is not None for entry in report.heads)
    names = _shown(report, view)
    title = f"What each head does: {labelled} of {count(len(report.heads), 'head')} labelled"
    if view.watch is not None:
        title = f"{view.watch}: {label_named(view.watch).meaning}"
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
    words = f"{count(len(heads), 'head')}{more}; {label_named(name).meaning}"
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
