"""What ``attnviz rollout`` does once its options are read: load, follow, show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console

from attnviz.analysis.rollout import rollout
from attnviz.analysis.words import joined
from attnviz.capture.over_text import Choice, attention_kind, encoded, target_tokens
from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.cli.streams import printing
from attnviz.cli.terminal import messages, open_console
from attnviz.models.model import TwoStackModel
from attnviz.models.resolve import LoadOptions, load
from attnviz.patterns import Rollout
from attnviz.render.blocks import Block
from attnviz.render.labels import visible
from attnviz.render.rollout import rollout_screen
from attnviz.render.theme import Theme

__all__ = ["show_rollout"]


def show_rollout(
    read_text: Callable[[], str],
    model_name: str,
    options: LoadOptions,
    choice: Choice,
    values: bool,
    explained: bool,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded.

    values: write the shares in the cells. explained: add a reading for newcomers.
    """
    console = open_console(output.width, output.colour) if output.drawn else None
    notices = messages(output.quiet or output.json)
    if output.save:
        from attnviz.render.export.rollout_save import check_save_path

        for path in output.save:
            check_save_path(path)
    text = read_text()
    with loading(model_name, notices) as progress:
        model = load(model_name, replace(options, progress=progress))
        kind = attention_kind(model, choice)
        tokens = encoded(model, text, choice.truncate)
        target = None
        if isinstance(model, TwoStackModel) and kind == "decoder":
            target = target_tokens(model, tokens, choice)
        found = rollout(model, tokens, kind=kind, target=target)

    decoded = None
    if target is not None:
        decoded = choice.target if choice.target is not None else joined(target)

    def screen(theme: Theme, room: int) -> Block:
        return rollout_screen(found, text, theme, room, values, explained, decoded)

    with printing():
        if output.json:
            from attnviz.render.export.rollout_save import write_rollout_json

            write_rollout_json(found, text, sys.stdout)
        elif console is not None:
            console.print(
                screen(Theme.of(console, output.palette, output.ascii), console.width), end=""
            )
    if output.save:
        _save(found, text, output, console, notices, screen)


def _save(
    found: Rollout,
    text: str,
    output: Output,
    console: Console | None,
    notices: Console,
    screen: Callable[[Theme, int], Block],
) -> None:
    from attnviz.render.export.rollout_save import save_rollout

    drawing = ""
    if console is not None:
        # A file has no colours: half blocks would all look the same there.
        theme = Theme(output.palette, colour=False, ascii=output.ascii)
        drawing = screen(theme, console.width).plain
    for path in output.save:
        save_rollout(found, text, path, output.palette, drawing)
        notices.print(f"saved {visible(str(path))}")
