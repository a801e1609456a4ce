"""What ``attnviz heads`` does once its options are read: load, observe, score, show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from attnviz.analysis.heads_report import heads_report
from attnviz.capture.over_text import Choice, observe
from attnviz.cli.heads_view import Wish, make_view
from attnviz.cli.output import SCREEN_ENDING, Output
from attnviz.cli.progress import loading
from attnviz.cli.streams import printing
from attnviz.cli.terminal import messages, open_console
from attnviz.models.resolve import LoadOptions, load
from attnviz.records import HeadsReport
from attnviz.render.labels import visible
from attnviz.render.screen import View, heads_screen
from attnviz.render.theme import Theme

__all__ = ["Choice", "Wish", "show_heads"]


def show_heads(
    read_text: Callable[[], str],
    model_name: str,
    options: LoadOptions,
    choice: Choice,
    wish: Wish,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded."""
    console = open_console(output.width, output.colour) if output.drawn else None
    notices = messages(output.quiet or output.json)
    if output.save:
        from attnviz.render.export.save import check_save_path

        for path in output.save:
            check_save_path(path)
    text = read_text()
    with loading(model_name, notices) as progress:
        model = load(model_name, replace(options, progress=progress))
        record, selected = observe(model, text, choice)
    report = heads_report(record, selected, choice.index_base, wish.sort, wish.reverse)
    view = make_view(report, text, choice.target, wish, hinting=not output.quiet)
    with printing():
        if output.json:
            _print_json(report, view)
        elif console is not None:
            theme = Theme.of(console, output.palette, output.ascii)
            screen = heads_screen(report, view, theme, console.width, console.height)
            console.print(screen, end="")
    for path in output.save:
        _save(report, view, path, output, console)
        notices.print(f"saved {visible(str(path))}")


def _print_json(report: HeadsReport, view: View) -> None:
    from attnviz.render.export.heads_json import write_heads_json

    write_heads_json(report, view.text, view.target, sys.stdout)


def _save(
    report: HeadsReport, view: View, path: Path, output: Output, console: Console | None
) -> None:
    from attnviz.render.export.save import save

    drawing = ""
    if console is not None and path.suffix.lower() == SCREEN_ENDING:
        # A file has no colours: half blocks would all look the same there.
        theme = Theme(output.palette, colour=False, ascii=output.ascii)
        drawing = heads_screen(report, view, theme, console.width, console.height).plain
    save(
        report,
        path,
        text=view.text,
        target=view.target,
        palette=output.palette,
        screen_text=drawing,
    )
