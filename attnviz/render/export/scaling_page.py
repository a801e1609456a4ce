"""What the scale 1/√d_k does, as a page."""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.render.export.page import Page, Section
from attnviz.render.export.scaling_figure import case_drawing, case_heading
from attnviz.render.facts import model_parts
from attnviz.render.scaling.facts import bars_legend, random_words
from attnviz.render.scaling.seen import seen
from attnviz.render.theme import Theme
from attnviz.scaling import ScalingReport

__all__ = ["scaling_page"]


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
