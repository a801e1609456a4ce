"""Where labelled heads go: the terminal, standard output as JSON, files."""

from __future__ import annotations

import sys

from rich.console import Console

from attnviz.cli.output import Output
from attnviz.cli.streams import printing
from attnviz.cli.terminal import open_console
from attnviz.patterns import PatternReport
from attnviz.render.labels import visible
from attnviz.render.patterns.screen import patterns_screen
from attnviz.render.patterns.view import PatternView
from attnviz.render.theme import Theme

__all__ = ["check_patterns_output", "show_pattern_report"]


def check_patterns_output(output: Output) -> Console | None:
    """The console that is drawn for, None where nothing is drawn.

    Raises UsageError or LoadError for a file that cannot be saved or a width that is none, before
    anything is scored.
    """
    if output.save:
        from attnviz.render.export.patterns_save import check_save_path

        for path in output.save:
            check_save_path(path)
    return open_console(output.width, output.colour) if output.drawn else None


def show_pattern_report(
    report: PatternReport,
    view: PatternView,
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    """Print the report, then write the files."""
    with printing():
        if output.json:
            from attnviz.render.export.patterns_json import write_patterns_json

            write_patterns_json(report, view, sys.stdout)
        elif console is not None:
            theme = Theme.of(console, output.palette, output.ascii)
            console.print(patterns_screen(report, view, theme, console.width), end="")
    if output.save:
        _save(report, view, output, console, notices)


def _save(
    report: PatternReport,
    view: PatternView,
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    from attnviz.render.export.patterns_save import save_patterns

    drawing = ""
    if console is not None:
        # A file has no colours: letters and glyphs must tell there.
        theme = Theme(output.palette, colour=False, ascii=output.ascii)
        drawing = patterns_screen(report, view, theme, console.width).plain
    for path in output.save:
        save_patterns(report, view, path, output.palette, drawing)
        notices.print(f"saved {visible(str(path))}")
