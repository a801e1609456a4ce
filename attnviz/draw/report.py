"""The result of a question: numbers for programs, a document for people, files for both."""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # programs get numbers without anything that draws
    from _typeshed import SupportsWrite
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

    from attnviz.draw.blocks import Block
    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer
    from attnviz.draw.html import Framed
    from attnviz.draw.theme import Theme

_LEAST_WIDTH = 20
_LEAST_HEIGHT = 100  # pixels of a frame

SCREEN_ENDING = ".txt"
"""The ending of a file that holds the screen itself."""

EVERY = ".json .csv .md .txt .html .svg .png .pdf"
"""The endings of the files that every report can be written as."""


class Report(ABC):
    """The result of a question, from which all that is printed, drawn or saved is derived.

    ``print`` draws it in plain characters, ``rich.print`` in colour; a notebook shows the page that
    ``save("name.html")`` writes. A subclass provides ``data`` and ``rows``; people see what the
    module ``screen`` of its folder draws.

    command: the name of the question, which is that of the command and of the Python function.
    lists: the keys of ``data`` whose entries have a line each in JSON; None writes all in one line.
    palette, ascii: how it is drawn by default; ``palette`` is ``blues``, ``viridis``, ``magma`` or
        ``grey``.
    """

    command = ""
    lists: ClassVar[Sequence[str] | None] = ()
    palette = "blues"
    ascii = False

    @abstractmethod
    def data(self) -> dict[str, Any]:
        """Return the JSON object that ``--json`` prints; ``json_values`` completes it."""

    @abstractmethod
    def rows(self) -> Iterable[Iterable[object]]:
        """Yield the rows of the CSV table, numbers and strings; the first row is the header."""

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        """Return everything that can be shown, as a document that each output format draws.

        The function ``document`` of the module ``screen`` next to the report's own makes it.
        explain: True adds a glossary for newcomers. hints: True adds what to try next on the
            command line.
        """
        folder = type(self).__module__.rpartition(".")[0]
        shown: Document = import_module(f"{folder}.screen").document(self)
        asked = shown.shown(explain=explain, hints=hints)
        return asked._replace(command=self.command, glossary=shown.explain)

    def arrays(self) -> Mapping[str, Writer]:
        """Return the functions that write arrays to files, by the ending of the file's name."""
        return {}

    @property
    def finding(self) -> str:
        """Return the answer to the question in a sentence."""
        return self.document().finding

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Write ``data`` as one JSON object in ASCII."""
        from attnviz.draw.values import write_object

        write_object(self.data(), stream, self.lists)

    def brief(self) -> dict[str, Any]:
        """Return the finding and at most ten rows of its table: a JSON object of under 2 kB."""
        from attnviz.draw.values import brief

        return brief(self.command, self.document(hints=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``save("name.json")`` writes, as a dictionary."""
        stream = io.StringIO()
        self.write_json(stream)
        content: dict[str, Any] = json.loads(stream.getvalue())
        return content

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dictionary for each row of ``save("name.csv")``; pandas takes the result."""
        rows = iter(self.rows())
        header = [str(name) for name in next(rows)]
        return [dict(zip(header, row, strict=True)) for row in rows]

    def save(
        self, path: str | os.PathLike[str], *, slide: bool = False, contrast: float = 1.0
    ) -> None:
        """Save the report to ``path`` in the format of its ending, whole or not at all.

        slide: whether a picture is a slide of 16 to 9: the finding and what fills the rest.
        contrast: the weight from which cells have the full colour, in (0, 1].
        Raises UsageError for an unknown ending, LoadError if the file cannot be written.
        """
        from attnviz.draw.files import save
        from attnviz.draw.palette import contrasted
        from attnviz.draw.theme import Theme

        colours = contrasted(self.palette, contrast)

        def screen() -> str:
            return self._plain(Theme(colours, colour=False, ascii=self.ascii))

        save(Path(path), report_files(self, self.document, colours, screen, slide))

    def __repr__(self) -> str:
        from attnviz.draw.labels import visible

        document = self.document()
        return f"<attnviz.{self.command}: {visible(document.finding or document.title)}>"

    def __str__(self) -> str:
        """Return the report drawn in plain characters, as wide as the terminal."""
        from rich.console import Console

        from attnviz.draw.theme import Theme

        return self._plain(Theme.of(Console(), self.palette, self.ascii)).removesuffix("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from attnviz.draw.theme import Theme

        theme = Theme.of(console, self.palette, self.ascii)
        yield self._screen(theme, options.max_width, options.height or console.height)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(min(_LEAST_WIDTH, options.max_width), options.max_width)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the page of ``save("name.html")`` in a frame."""
        from attnviz.draw.html import framed_document

        return framed_document(self.document(), self.palette)

    def framed(self, height: int) -> Framed:
        """Return the page in a frame of a ``height`` in pixels; UsageError if it is below 100."""
        from attnviz.draw.html import Framed, framed_document
        from attnviz.errors import UsageError

        if height < _LEAST_HEIGHT:
            raise UsageError(f"a frame has at least {_LEAST_HEIGHT} pixels; not height={height}")
        return Framed(framed_document(self.document(), self.palette, height))

    def _plain(self, theme: Theme) -> str:
        from rich.console import Console

        console = Console()
        return self._screen(replace(theme, colour=False), console.width, console.height).plain

    def _screen(self, theme: Theme, width: int, height: int) -> Block:
        from attnviz.draw.terminal import terminal_block

        shown = replace(theme, lines=height)
        return terminal_block(self.document(), shown, max(width, _LEAST_WIDTH))


def report_files(
    report: Any,
    document: Callable[[], Document],
    palette: str,
    screen: Callable[[], str],
    slide: bool = False,
) -> dict[str, Writer]:
    """Return the functions that write a report to a stream, by the ending of the file's name.

    document: returns the document. screen: returns the screen in plain characters.
    palette: the name of the colours of cells. slide: whether a picture is a slide.
    """
    from attnviz.draw.files import CsvTable, document_files, text_file

    return {
        ".json": text_file(report.write_json),
        ".csv": text_file(lambda stream: CsvTable(stream).writerows(report.rows())),
        SCREEN_ENDING: text_file(lambda stream: stream.write(screen())),
        **document_files(document, palette, slide),
        **getattr(report, "arrays", dict)(),
    }


def fields_of(record: object, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of some fields of a record by name, in this order."""
    return {name: getattr(record, name) for name in names}
