"""``attnviz scaling --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attnviz.render.export.path_check import check_path
from attnviz.render.export.saved_file import TextWriter, save_page, save_text
from attnviz.render.export.scaling_csv import write_scaling_csv
from attnviz.render.export.scaling_figure import case_drawing, case_heading
from attnviz.render.export.scaling_json import write_scaling_json
from attnviz.render.export.sections import Page, Section
from attnviz.render.facts import model_parts
from attnviz.render.scaling.facts import bars_legend, random_words
from attnviz.render.scaling.seen import seen
from attnviz.render.theme import Theme
from attnviz.scaling import ScalingReport

__all__ = ["SAVED", "check_save_path", "save_scaling"]

SAVED = (".json", ".csv", ".svg", ".html", ".png", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_scaling`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def _page(report: ScalingReport) -> Page:
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


def save_scaling(report: ScalingReport, path: Path, palette: str, screen_text: str) -> None:
    """Write a report whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    writers: dict[str, TextWriter] = {
        ".json": partial(write_scaling_json, report),
        ".csv": partial(write_scaling_csv, report),
        ".txt": lambda out: out.write(screen_text),
    }
    write = writers.get(path.suffix.lower())
    if write is not None:
        save_text(path, write)
    else:
        save_page(path, _page(report), palette)
