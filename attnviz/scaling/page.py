"""What the scale 1/√d_k does, as a page: a case a section, its histograms as drawings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.draw.drawing import Anchor, Cells, Drawing, Item, Label, Tip
from attnviz.draw.page import Page, Section
from attnviz.draw.provenance import model_parts
from attnviz.draw.theme import Theme
from attnviz.scaling.case import case_title, expected_words
from attnviz.scaling.chart import EDGE_NAMES, SHADES, chart_top
from attnviz.scaling.numbers import LABELS, measured, percent
from attnviz.scaling.provenance import bars_legend, random_words
from attnviz.scaling.records import BIN_EDGES, MEASURES, ScalingCase, ScalingReport, Softened
from attnviz.scaling.seen import seen

__all__ = ["case_drawing", "case_heading", "scaling_page"]

_BAR, _TALL = 10.0, 110.0
_LEFT, _TOP = 48.0, 44.0
_APART = 40.0
_LINE = 20.0
_COLUMNS = (0.0, 230.0, 440.0)
_TITLES = {"plain": "without the scale", "scaled": "with the scale"}


def case_heading(report: ScalingReport, case: ScalingCase) -> str:
    """Which case and which scale, in one line."""
    return " · ".join(text for text, _ in case_title(report, case, Theme()))


def case_drawing(report: ScalingReport, case: ScalingCase) -> Drawing:
    """Both histograms side by side, the table of measures below them."""
    top = chart_top(case)
    bars = len(BIN_EDGES) - 1
    step = _LEFT + (bars + 1) * _BAR + _APART
    items: list[Item] = [
        Label(_LEFT - 6, _TOP + 10, percent(top), "faint", "end"),
        *_chart(case.plain, "plain", top, _LEFT),
        *_chart(case.scaled, "scaled", top, step),
    ]
    below = _TOP + _TALL + 40
    items += _table(report, case, below)
    height = below + _LINE * (len(MEASURES) + 1)
    return Drawing(report.name(case), step + (bars + 1) * _BAR + 8, height, tuple(items))


def _chart(side: Softened, name: str, top: float, x: float) -> Iterator[Item]:
    first, *_ = shares = side.shares()
    yield Label(x, 14, _TITLES[name], "name")
    below = f"{percent(first) if first else 'none'} below {EDGE_NAMES[min(EDGE_NAMES)]}"
    yield Label(x, 30, below, "faint")
    foot = _TOP + _TALL
    for place, share in enumerate(shares):
        left = x + _BAR * (place + (place > 0))  # a blank parts the bin without a lower end
        height = max(min(share / top, 1.0) * _TALL, 1.0 if share else 0.0)
        if height:
            steps = np.array([[SHADES[name]]])
            yield Cells(left, foot - height, _BAR - 1, height, steps)
        low, high = BIN_EDGES[place], BIN_EDGES[place + 1]
        words = f"{low:.2g} to {high:.2g}: {percent(share)} of the weights"
        yield Tip(left, _TOP, _BAR, _TALL, words)
    yield Label(x, foot + 14, "<", "axis-faint")
    decade = (len(BIN_EDGES) - 2) / -min(EDGE_NAMES)
    for exponent, words in EDGE_NAMES.items():
        at = x + _BAR * (2 + decade * (exponent - min(EDGE_NAMES)))
        anchor: Anchor = "end" if exponent == 0 else "start"
        yield Label(at, foot + 14, words, "axis-faint", anchor)


def _table(report: ScalingReport, case: ScalingCase, y: float) -> Iterator[Item]:
    theme = Theme()
    for x, words in zip(_COLUMNS[1:], _TITLES.values(), strict=True):
        yield Label(x, y, words, "name")
    for row, name in enumerate(MEASURES, start=1):
        yield Label(_COLUMNS[0], y + row * _LINE, LABELS[name], "text")
        for x, side in zip(_COLUMNS[1:], (case.plain, case.scaled), strict=True):
            words = measured(name, side.measures[name], theme)
            if name == "score_variance":
                words += f", {expected_words(report, side)}"
            yield Label(x, y + row * _LINE, words, "text")


def scaling_page(report: ScalingReport) -> Page:
    """A section a case: its histograms, with what is to be seen in them."""
    sections = [
        Section(case_heading(report, case), "", (case_drawing(report, case),))
        for case in report.cases
    ]
    name = "random queries and keys" if report.model is None else report.model.name
    title = f"What the scale 1/√d_k does to attention: {name}"
    return Page(f"scaling of {name}", title, list(_facts(report)), sections)


def _facts(report: ScalingReport) -> Iterator[str]:
    if report.model is None:
        yield " · ".join(random_words(report))
    else:
        parts = [words for words, _ in model_parts(report.model, Theme())]
        seed = [] if report.model.seed is None else [f"seed {report.model.seed}"]
        yield " · ".join([*parts, f"{report.keys:,} tokens", *seed])
        yield f"text: {' '.join(report.text.split())}"
        yield from report.notes
    yield bars_legend(report, Theme())
    yield from seen(report)
