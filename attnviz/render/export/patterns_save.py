"""``attnviz patterns --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from attnviz.patterns import PatternReport
from attnviz.render.export.path_check import check_path
from attnviz.render.export.patterns_csv import write_patterns_csv
from attnviz.render.export.patterns_json import write_patterns_json
from attnviz.render.export.patterns_page import patterns_page, patterns_table
from attnviz.render.export.saved_file import TextWriter, save_page, save_text
from attnviz.render.patterns.view import PatternView

__all__ = ["SAVED", "check_save_path", "save_patterns"]

SAVED = (".json", ".csv", ".svg", ".html", ".png", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_patterns`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def save_patterns(
    report: PatternReport, view: PatternView, path: Path, palette: str, screen_text: str
) -> None:
    """Write a report whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    writers: dict[str, TextWriter] = {
        ".json": partial(write_patterns_json, report, view),
        ".csv": partial(write_patterns_csv, report, view),
        ".txt": lambda out: out.write(screen_text),
    }
    write = writers.get(path.suffix.lower())
    if write is not None:
        save_text(path, write)
    else:
        save_page(path, patterns_page(report, view, palette), palette, [*patterns_table(report)])
