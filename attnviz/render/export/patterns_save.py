"""``attnviz patterns --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import codecs
from pathlib import Path

from attnviz.patterns import PatternReport
from attnviz.render.export.drawing_plot import write_drawing_png
from attnviz.render.export.path_check import check_path
from attnviz.render.export.patterns_csv import write_patterns_csv
from attnviz.render.export.patterns_json import write_patterns_json
from attnviz.render.export.patterns_page import patterns_page, patterns_table
from attnviz.render.export.sections import page_drawing, page_html
from attnviz.render.export.svg import svg_document
from attnviz.render.export.whole_file import whole_file
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
    ending = path.suffix.lower()
    with whole_file(path) as stream:
        text = codecs.getwriter("utf-8")(stream, "backslashreplace")
        if ending == ".json":
            write_patterns_json(report, view, text)
        elif ending == ".csv":
            write_patterns_csv(report, view, text)
        elif ending == ".txt":
            text.write(screen_text)
        elif ending == ".html":
            page = patterns_page(report, view, palette)
            text.writelines(
                f"{piece}\n" for piece in page_html(page, palette, [*patterns_table(report)])
            )
        else:
            drawing = page_drawing(patterns_page(report, view, palette))
            if ending == ".png":
                write_drawing_png(drawing, palette, stream)
            else:
                text.write(svg_document(drawing, palette))
