"""What every result shows of itself: in a terminal, as text, in a notebook, as a table's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement

from attnviz.draw.blocks import Block
from attnviz.draw.document import Document
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme

_LEAST_WIDTH = 20


class Drawn(ABC):
    """A result with a ``document``: ``print`` draws it in plain characters, ``rich.print`` in
    colour, a notebook as the page that ``save("name.html")`` writes.

    palette: ``viridis``, ``magma``, ``blues`` or ``grey``. ascii: whether ASCII alone is drawn.
    """

    palette: str = "viridis"
    ascii: bool = False

    @property
    @abstractmethod
    def document(self) -> Document:
        """All that there is to see, for any outlet."""

    def __str__(self) -> str:
        """The drawing in plain characters, as wide as the terminal."""
        return self._plain(Theme.of(Console(), self.palette, self.ascii)).removesuffix("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        theme = Theme.of(console, self.palette, self.ascii)
        yield self._screen(theme, options.max_width, options.height or console.height)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_LEAST_WIDTH, options.max_width), options.max_width)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page of ``save("name.html")`` in a frame of its own."""
        from attnviz.draw.html import framed_document

        return framed_document(self.document, self.palette)

    def _plain(self, theme: Theme) -> str:
        console = Console()
        plain = replace(theme, colour=False)
        return self._screen(plain, console.width, console.height).plain

    def _screen(self, theme: Theme, width: int, height: int) -> Block:
        return terminal_block(self.document, replace(theme, lines=height), max(width, _LEAST_WIDTH))
