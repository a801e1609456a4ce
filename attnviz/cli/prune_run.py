"""What ``attnviz prune`` does once its options are read: load, measure, store, show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.cli.prune_wish import PruneWish
from attnviz.cli.scan_progress import scanning
from attnviz.cli.streams import printing
from attnviz.cli.terminal import messages, open_console
from attnviz.cli.texts_input import Texts
from attnviz.errors import UsageError
from attnviz.models.resolve import LoadOptions, load
from attnviz.models.whole_directory import check_new_directory
from attnviz.pruning import PruneReport
from attnviz.render.export.pruning_save import check_save_path, save_prune
from attnviz.render.labels import visible
from attnviz.render.pruning.screen import prune_screen
from attnviz.render.theme import Theme

__all__ = ["PruneWish", "show_prune"]


def show_prune(
    read_texts: Callable[[], Texts],
    model_name: str,
    options: LoadOptions,
    wish: PruneWish,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded."""
    if model_name == "mha":
        raise UsageError(
            "'mha' is attention with random weights, without a loss to prune by: choose tiny or a "
            "language model"
        )
    console = open_console(output.width, output.colour) if output.drawn else None
    for path in output.save:
        check_save_path(path)
    if wish.out is not None:
        check_new_directory(wish.out)
    notices = messages(output.quiet or output.json)
    texts = read_texts()
    with loading(model_name, notices) as progress:
        model = load(model_name, replace(options, progress=progress))
    from attnviz.cli.prune_job import prune_model  # brings torch

    with scanning("removing heads", notices) as advance:
        report = prune_model(model, texts, wish, advance)
    hints = () if output.quiet else _hints(report, wish)
    with printing():
        if output.json:
            from attnviz.render.export.pruning_json import write_prune_json

            write_prune_json(report, sys.stdout)
        elif console is not None:
            theme = Theme.of(console, output.palette, output.ascii)
            screen = prune_screen(report, theme, console.width, hints, wish.explain)
            console.print(screen, end="")
    _save(report, wish, output, console, notices)


def _save(
    report: PruneReport, wish: PruneWish, output: Output, console: Console | None, notices: Console
) -> None:
    drawing = ""
    if console is not None and output.save:
        theme = Theme(output.palette, colour=False, ascii=output.ascii)
        drawing = prune_screen(report, theme, console.width, explain=wish.explain).plain
    for path in output.save:
        save_prune(report, path, drawing)
        notices.print(f"saved {visible(str(path))}")


def _hints(report: PruneReport, wish: PruneWish) -> Sequence[str]:
    """What to try next."""
    hints = []
    if report.steps and wish.out is None:
        hints.append("--out DIR writes the pruned model")
    masked = report.pruned.form == "masked" and report.pruned.shrinks
    if masked and not wish.uniform and not wish.heads:
        hints.append("--uniform takes as many from every layer, so that they can be cut")
    if not wish.rerank:
        hints.append("--rerank ranks again after each removal")
    return (f"next: {hints[0]}", *hints[1:]) if hints else ()
