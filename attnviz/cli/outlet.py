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
from attnviz.errors import LoadError
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
        """Write the files, then print the result: neither is lost with the other.

        The files come first, for a reader of standard output may leave, or never read on.
        Raises LoadError for what cannot be written.
        """
        failed: LoadError | None = None
        saved = []
        for path in self.output.save:
            try:
                self._save(result, path)
                saved.append(path)
            except LoadError as error:
                failed = failed or error
        try:
            self._print(result)
        finally:
            for path in saved:
                self.notices.print(f"saved {visible(str(path))}", soft_wrap=True)
            if failed is not None:
                raise failed

    def _save(self, result: Result, path: Path) -> None:
        screen_text = ""
        if self.console is not None and path.suffix.lower() == SCREEN_ENDING:
            # A file has no colours: glyphs and letters must tell there.
            theme = Theme(self.output.palette, colour=False, ascii=self.output.ascii)
            screen_text = result.screen(theme, self.console).plain
        result.save(path, self.output.palette, screen_text)

    def _print(self, result: Result) -> None:
        with printing():
            if self.output.json:
                result.write_json(sys.stdout)
            elif self.console is not None:
                theme = Theme.of(self.console, self.output.palette, self.output.ascii)
                self.console.print(result.screen(theme, self.console), end="")


def open_outlet(output: Output, check_path: Callable[[Path], None]) -> Outlet:
    """To be opened before anything is measured, so that what cannot be written is refused first.

    check_path: refuses a file that cannot be saved.
    Raises UsageError or LoadError as ``check_path`` does, UsageError for a width that is none.
    """
    for path in output.save:
        check_path(path)
    console = open_console(output.width, output.colour) if output.drawn else None
    return Outlet(output, console, messages(output.quiet or output.json))
