"""Where a finished scan goes: the terminal, standard output as JSON, files."""

from __future__ import annotations

import sys

from rich.console import Console

from attnviz.ablation import AblationReport
from attnviz.cli.output import Output
from attnviz.cli.streams import printing
from attnviz.cli.terminal import open_console
from attnviz.render.ablation.screen import ablation_screen
from attnviz.render.ablation.view import AblationView
from attnviz.render.labels import visible
from attnviz.render.theme import Theme

__all__ = ["check_output", "show_report"]


def check_output(output: Output) -> Console | None:
    """The console that is drawn for, None where nothing is drawn.

    Raises UsageError or LoadError for a file that cannot be saved or a width that is none, before
    anything is measured.
    """
    if output.save:
        from attnviz.render.export.ablation_save import check_save_path

        for path in output.save:
            check_save_path(path)
    return open_console(output.width, output.colour) if output.drawn else None


def show_report(
    report: AblationReport,
    view: AblationView,
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    """Print the report, then write the files."""
    with printing():
        if output.json:
            from attnviz.render.export.ablation_json import write_ablation_json

            write_ablation_json(report, view, sys.stdout)
        elif console is not None:
            theme = Theme.of(console, output.palette, output.ascii)
            console.print(ablation_screen(report, view, theme, console.width), end="")
    if output.save:
        _save(report, view, output, console, notices)


def _save(
    report: AblationReport,
    view: AblationView,
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    from attnviz.render.export.ablation_save import save_ablation

    drawing = ""
    if console is not None:
        # A file has no colours: the signs must be told by glyphs there.
        theme = Theme(output.palette, colour=False, ascii=output.ascii)
        drawing = ablation_screen(report, view, theme, console.width).plain
    for path in output.save:
        save_ablation(report, view, path, output.palette, drawing)
        notices.print(f"saved {visible(str(path))}")
