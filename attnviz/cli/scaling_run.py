"""What ``attnviz scaling`` does once its options are read: draw or load, measure, show."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from attnviz.analysis.scaling.model_scores import model_scaling, needed_text_bytes
from attnviz.analysis.scaling.random_scores import needed_bytes, random_scaling
from attnviz.capture.over_text import encoded
from attnviz.capture.selection import choose_heads
from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.cli.scaling_wish import ModelWish, RandomWish
from attnviz.cli.scan_progress import scanning
from attnviz.cli.streams import printing
from attnviz.cli.terminal import messages, open_console
from attnviz.cli.texts_input import read_texts
from attnviz.errors import UsageError
from attnviz.models.memory import byte_text, free_memory
from attnviz.models.resolve import LoadOptions, load
from attnviz.render.labels import visible
from attnviz.render.scaling.screen import scaling_screen
from attnviz.render.theme import Theme
from attnviz.scaling import ScalingReport

__all__ = ["show_model_scaling", "show_random_scaling"]


def show_random_scaling(wish: RandomWish, explain: bool, output: Output) -> None:
    """Measure random queries and keys. What can be refused is refused before any is drawn."""
    console = _checked(output)
    notices = messages(output.quiet or output.json)
    needed = needed_bytes(wish.sizes, wish.seq, wish.samples)
    _require_memory(needed, "choose a smaller --d-k, --seq or --samples")
    with scanning("softening scores", notices) as advance:
        report = random_scaling(wish.sizes, wish.seq, wish.samples, wish.seed, advance)
    hints = ("next: --from-model shows a trained model's own queries and keys",)
    _show(report, explain, hints, output, console, notices)


def show_model_scaling(
    name: str, options: LoadOptions, wish: ModelWish, explain: bool, output: Output
) -> None:
    """Measure a model's queries and keys. What can be refused is refused before it is loaded."""
    console = _checked(output)
    notices = messages(output.quiet or output.json)
    texts = read_texts(wish.text, wish.file, None)
    text = texts.texts[0]
    with loading(name, notices) as progress:
        model = load(name, replace(options, progress=progress))
        info = model.info
        heads = choose_heads(wish.layers, wish.heads, info.layers, info.heads, wish.index_base)
        tokens = encoded(model, text, wish.truncate)
        if len(tokens) < 2:
            raise UsageError(
                "the text has one token: expected at least two, or there is nothing to choose"
            )
        _require_memory(needed_text_bytes(len(tokens)), "shorten the text, or add --truncate")
        report = model_scaling(
            model,
            tokens,
            heads,
            seed=options.seed,
            by_head=bool(wish.heads),
            index_base=wish.index_base,
        )
    report = replace(report, text=text, source=texts.source)
    hints = [] if wish.heads else ["next: --head L0H0 shows one head"]
    _show(report, explain, hints, output, console, notices)


def _checked(output: Output) -> Console | None:
    """The console that is drawn for, None where nothing is; refuses what cannot be saved."""
    if output.save:
        from attnviz.render.export.scaling_save import check_save_path

        for path in output.save:
            check_save_path(path)
    return open_console(output.width, output.colour) if output.drawn else None


def _require_memory(needed: int, advice: str) -> None:
    free = free_memory()
    if free is not None and needed > free:
        raise UsageError(
            f"the scores and weights take {byte_text(needed)}, {byte_text(free)} are free: {advice}"
        )


def _show(
    report: ScalingReport,
    explain: bool,
    hints: Sequence[str],
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    """Print the report, then write the files."""
    if output.quiet:
        hints = ()
    elif not explain:
        hints = (*hints, "--explain reads it for you")
    with printing():
        if output.json:
            from attnviz.render.export.scaling_json import write_scaling_json

            write_scaling_json(report, sys.stdout)
        elif console is not None:
            theme = Theme.of(console, output.palette, output.ascii)
            screen = scaling_screen(report, theme, console.width, hints, explain)
            console.print(screen, end="")
    if output.save:
        _save(report, explain, hints, output, console, notices)


def _save(
    report: ScalingReport,
    explain: bool,
    hints: Sequence[str],
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    from attnviz.render.export.scaling_save import save_scaling

    drawing = ""
    if console is not None:
        # A file has no colours.
        theme = Theme(output.palette, colour=False, ascii=output.ascii)
        drawing = scaling_screen(report, theme, console.width, hints, explain).plain
    for path in output.save:
        save_scaling(report, path, output.palette, drawing)
        notices.print(f"saved {visible(str(path))}")
