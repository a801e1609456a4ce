"""Where a command's result goes: the terminal, standard output as JSON, files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attnviz.cli.output import SCREEN_ENDING, Output
from attnviz.cli.streams import printing
from attnviz.draw.labels import visible
from attnviz.errors import AttnvizError

if TYPE_CHECKING:  # an answer for a program needs nothing that draws
    from _typeshed import SupportsWrite
    from rich.console import Console

    from attnviz.draw.blocks import Block
    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer
    from attnviz.draw.theme import Theme

__all__ = ["ArrayReport", "Outlet", "Report", "Result", "open_outlet"]


@runtime_checkable
class Report(Protocol):
    """What a command has found, for a program and for people; every format follows from these.

    Each method is called when it is needed and imports what it needs: ``--json`` builds no
    document. A command is ported from ``Result`` by three steps: its screen's blocks become the
    parts of ``document`` (module ``document`` of its folder), its CSV writer becomes ``rows``
    (beside the JSON, module ``data``), ``files``, ``screen`` and its own endings go.
    """

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """The answer for a program, as one JSON object."""

    def rows(self) -> Iterable[Iterable[object]]:
        """The answer as a table of plain numbers and texts; the first row is the header."""

    def document(self) -> Document:
        """The answer for a person, on every outlet."""


@runtime_checkable
class ArrayReport(Report, Protocol):
    """A report with arrays, which have formats of their own."""

    def arrays(self) -> Mapping[str, Writer]:
        """What writes them, by the ending of the name."""


class Result(Protocol):
    """A report that still draws itself: one way to show each. Gone when all are ``Report``."""

    def screen(self, theme: Theme, console: Console) -> Block:
        """The answer for a person, as wide as the console."""

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """The answer for a program."""

    def files(self, palette: str) -> Mapping[str, Writer]:
        """What writes the answer to a file, by the ending of its name: all but JSON and text."""


@dataclass(frozen=True)
class Outlet:
    """What a command writes to.

    console: that is drawn for, None where nothing is drawn.
    """

    output: Output
    console: Console | None

    @cached_property
    def notices(self) -> Console:
        """For words beside the result."""
        from attnviz.cli.terminal import messages

        return messages(self.output.quiet or self.output.json)

    def show(self, result: Report | Result) -> None:
        """Write the files, then print the result: neither is lost with the other.

        The files come first, for a reader of standard output may leave, or never read on.
        Raises LoadError for what cannot be written.
        """
        shown: Result = _Drawn(result) if isinstance(result, Report) else result
        failed: AttnvizError | None = None
        saved = []
        for path in self.output.save:
            try:
                self._save(shown, path)
                saved.append(path)
            except AttnvizError as error:
                failed = failed or error
        try:
            self._print(shown)
        finally:
            for path in saved:
                self.notices.print(f"saved {visible(str(path))}", soft_wrap=True)
            if failed is not None:
                raise failed

    def _save(self, result: Result, path: Path) -> None:
        from attnviz.draw.files import save, text_file

        def screen(stream: SupportsWrite[str]) -> None:
            if self.console is not None:
                from attnviz.draw.theme import Theme

                # A file has no colours: glyphs and letters must tell there.
                theme = Theme(
                    self.output.palette,
                    colour=False,
                    ascii=self.output.ascii,
                    lines=self.console.height,
                )
                stream.write(result.screen(theme, self.console).plain)

        own = {".json": text_file(result.write_json), SCREEN_ENDING: text_file(screen)}
        save(path, {**own, **result.files(self.output.palette)})

    def _print(self, result: Result) -> None:
        with printing():
            if self.output.json:
                result.write_json(sys.stdout)
            elif self.console is not None:
                from attnviz.draw.theme import Theme

                theme = Theme.of(self.console, self.output.palette, self.output.ascii)
                self.console.print(result.screen(theme, self.console), end="")


class _Drawn:
    """A report with its document drawn; made once for all outlets."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._document = cache(report.document)
        self.write_json = report.write_json

    def screen(self, theme: Theme, console: Console) -> Block:
        from attnviz.draw.terminal import terminal_block

        return terminal_block(self._document(), theme, console.width)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import document_files, table_file

        report = self._report
        arrays = report.arrays() if isinstance(report, ArrayReport) else {}
        drawn = document_files(self._document, palette)
        return {".csv": table_file(report.rows), **drawn, **arrays}


def open_outlet(output: Output) -> Outlet:
    """To be opened before anything is measured, so that what cannot be written is refused first.

    Raises UsageError or LoadError as ``check_path`` does, UsageError for a width that is none.
    """
    if output.save:
        from attnviz.draw.files import check_path

        for path in output.save:
            check_path(path, output.endings)
    if not output.drawn:
        return Outlet(output, None)
    from attnviz.cli.terminal import open_console

    return Outlet(output, open_console(output.width, output.colour))
