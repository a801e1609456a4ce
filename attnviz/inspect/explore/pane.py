"""A pane of the screen draws one ``View`` and sends only the lines that have changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import geometry
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from attnviz.draw.blocks import Line
from attnviz.draw.theme import Theme
from attnviz.inspect.explore.view import View

_PLAIN = Style.null()  # textual's filters want one
LEAST_COLUMNS, LEAST_ROWS = 40, 12
"""The smallest terminal in which anything but a note is drawn."""


class Pane(Widget):
    """The base of the panes of explore: draws its ``lines``, and sends only changed ones."""

    def __init__(self, name: str, view: View, theme: Theme) -> None:
        super().__init__(id=name)
        self.view, self.look = view, theme
        self.note = ""
        self._strips: list[Strip] = []
        self._drawn_for: geometry.Size | None = None

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        """Return the lines to show; every pane has its own.

        columns, rows: the available width in characters and lines.
        """
        # Textual's widgets have a metaclass of their own, which no ABC can share, and its
        # ``query`` takes no abstract class.
        raise NotImplementedError

    def show(self, view: View, theme: Theme) -> None:
        self.view, self.look = view, theme
        self.redraw()

    def redraw(self) -> None:
        """Draw every line anew and send the changed ones."""
        columns, rows = self.size
        if self._drawn_for != self.size or not columns or not rows:
            return  # all of it is drawn when it is shown
        before = self._strips
        self._strips = self._draw()
        for row, (old, new) in enumerate(zip(before, self._strips, strict=True)):
            if old != new:  # from the left: textual sends a line from its first column on
                self.refresh(Region(0, row, columns - _same_end(old, new), 1))

    def _draw(self) -> list[Strip]:
        columns, rows = self.size
        across, down = self.app.size
        if across < LEAST_COLUMNS or down < LEAST_ROWS:
            lines = self.too_small()[:rows]
        else:
            lines = self.lines(columns, rows)[:rows]
        return [strip_of(line, columns) for line in (*lines, *[[]] * (rows - len(lines)))]

    def too_small(self) -> Sequence[Line]:
        """Return the lines to show in a terminal that is too small."""
        return []

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != self.size:
            self._drawn_for, self._strips = self.size, self._draw()
        return self._strips[y]

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()


def strip_of(line: Line, columns: int) -> Strip:
    """Return a line as textual's strip of exactly this width; equal styles are joined.

    columns: the width in characters.
    """
    kept = [Segment(text, style or _PLAIN) for text, style, _ in line if text]
    return Strip(kept, Segment.get_line_length(kept)).simplify().adjust_cell_length(columns, _PLAIN)


class Lines(Widget):
    """A widget that shows the lines that it is given."""

    def __init__(self, name: str, told: Sequence[Line] = ()) -> None:
        super().__init__(id=name)
        self._told = told

    def tell(self, told: Sequence[Line]) -> None:
        self._told = told
        self.refresh()

    def render_line(self, y: int) -> Strip:
        return strip_of(self._told[y] if y < len(self._told) else [], self.size.width)

    def get_content_width(self, container: geometry.Size, viewport: geometry.Size) -> int:
        return max((Segment.get_line_length(line) for line in self._told), default=0)

    def get_content_height(
        self, container: geometry.Size, viewport: geometry.Size, width: int
    ) -> int:
        return len(self._told)


def _same_end(old: Strip, new: Strip) -> int:
    """Return how many characters at the ends of two equally long lines look alike."""
    same = 0
    for one, other in zip(reversed([*old]), reversed([*new]), strict=False):
        if one.style != other.style:
            break
        if one.text != other.text:
            blank = [len(each.text) - len(each.text.rstrip(" ")) for each in (one, other)]
            return same + min(blank)
        same += one.cell_length
    return same
