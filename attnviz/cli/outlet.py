"""Where a command's result goes: the terminal, standard output as JSON, files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from attnviz.cli.output import SCREEN_ENDING, Output
from attnviz.cli.streams import printing
from attnviz.cli.terminal import messages, open_console
from attnviz.render.blocks import Block
from attnviz.render.labels import visible
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["Outlet", "Result", "open_outlet"]


class Result(Protocol):
    """One way to show each: heavy parts are imported by the way that is taken."""

    def screen(self, theme: Theme, console: Console) -> Block:
        """The answer for a person, as wide as the console."""

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """The answer for a program."""

    def save(self, path: Path, palette: str, screen_text: str) -> None:
        """Write a file of the kind that its name says.

        screen_text: what a file that holds the screen itself gets; empty for others.
        """


@dataclass(frozen=True)
class Outlet:
    """What a command writes to.

    console: that is drawn for, None where nothing is drawn. notices: for words beside the result.
    """

    output: Output
    console: Console | None
    notices: Console

    def show(self, result: Result) -> None:
        """Print the result, then write the files.

        Raises LoadError for what cannot be written.
        """
        output, console = self.output, self.console
        with printing():
            if output.json:
                result.write_json(sys.stdout)
            elif console is not None:
                theme = Theme.of(console, output.palette, output.ascii)
                console.print(result.screen(theme, console), end="")
        for path in output.save:
            screen_text = ""
            if console is not None and path.suffix.lower() == SCREEN_ENDING:
                # A file has no colours: glyphs and letters must tell there.
                theme = Theme(output.palette, colour=False, ascii=output.ascii)
                screen_text = result.screen(theme, console).plain
            result.save(path, output.palette, screen_text)
            self.notices.print(f"saved {visible(str(path))}", soft_wrap=True)


def open_outlet(output: Output, check_path: Callable[[Path], None]) -> Outlet:
    """To be opened before anything is measured, so that what cannot be written is refused first.

    check_path: refuses a file that cannot be saved.
    Raises UsageError or LoadError as ``check_path`` does, UsageError for a width that is none.
    """
    for path in output.save:
        check_path(path)
    console = open_console(output.width, output.colour) if output.drawn else None
    return Outlet(output, console, messages(output.quiet or output.json))
