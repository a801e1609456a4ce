"""``--save FILE.svg``: the sheet as one drawing; no font, script or style from elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from attnviz.draw.labels import visible, width
from attnviz.draw.palette import colour_table, to_hex
from attnviz.params.sheet import Grid, Row, Sheet, Tone
from attnviz.params.table import TINTS

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_params_svg"]

_STYLE = """
.attnviz { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono",
  "Noto Sans Mono CJK KR", monospace; font-size: 12px; fill: #1f2328; }
.attnviz .paper { fill: #ffffff; }
.attnviz .strong { font-weight: 700; }
.attnviz .faint { fill: #667080; }
.attnviz .rule { stroke: #98a2b0; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  .attnviz { fill: #e8ebf0; }
  .attnviz .paper { fill: #12161c; }
  .attnviz .faint { fill: #98a2b0; }
}
"""
_MARGIN, _LINE, _LETTER = 28, 18, 7.3
_GAP, _BAR, _TEXT = 2, 24, 96  # in letters


class _Page:
    """Elements placed one line below the other."""

    def __init__(self, palette: str) -> None:
        self.palette = palette
        self.y = float(_MARGIN)
        self.letters = float(_TEXT)
        self.elements: list[str] = []

    def text(self, column: float, content: str, tone: Tone = "plain", end: bool = False) -> None:
        """A text from a column of letters on, or up to it."""
        if not content.strip():
            return
        place = f'x="{_MARGIN + column * _LETTER:.1f}" y="{self.y + 13:.1f}"'
        anchor = ' text-anchor="end"' if end else ""
        self.elements.append(f'<text class="{tone}" {place}{anchor}>{_safe(content)}</text>')
        self.letters = max(self.letters, column + (0 if end else width(content)))

    def bar(self, column: float, row: Row) -> None:
        """The bar of a row from a column of letters on."""
        if row.bar is None or not row.bar[1]:
            return
        part, whole = row.bar
        long = max(_BAR * _LETTER * part / whole, 1.0)
        colour = to_hex(colour_table(self.palette)[TINTS[row.role]])
        self.elements.append(
            f'<rect x="{_MARGIN + column * _LETTER:.1f}" y="{self.y + 3:.1f}" width="{long:.1f}" '
            f'height="11" rx="2" fill="{colour}"/>'
        )
        self.letters = max(self.letters, column + _BAR)

    def rule(self, columns: float) -> None:
        """A line across so many letters."""
        end = _MARGIN + columns * _LETTER
        self.elements.append(
            f'<line class="rule" x1="{_MARGIN}" x2="{end:.1f}" y1="{self.y:.1f}" '
            f'y2="{self.y:.1f}"/>'
        )

    def paragraph(self, content: str, tone: Tone = "plain", start: int = 0) -> None:
        """A text broken into lines."""
        for line in textwrap.wrap(visible(content), _TEXT - start):
            self.text(start, line, tone)
            self.y += _LINE

    def grid(self, grid: Grid) -> None:
        """A table."""
        if grid.heading:
            self.paragraph(grid.heading, "strong")
        rows = [Row(tuple(column.title for column in grid.columns)), *grid.rows]
        widths = [
            max(width(row.cells[place]) + (2 * row.depth if not place else 0) for row in rows)
            for place in range(len(grid.columns))
        ]
        across = sum(widths) + _GAP * (len(widths) - 1)
        for row in rows:
            if row.ruled:
                self.rule(across)
            left = 0
            for place, (column, text) in enumerate(zip(grid.columns, row.cells, strict=True)):
                tone = row.tone if row.tone != "plain" else column.tone
                indent = 2 * row.depth if not place else 0
                where = left + widths[place] if column.right else left + indent
                self.text(where, text, tone, end=column.right)
                left += widths[place] + _GAP
            self.bar(left, row)
            self.y += _LINE
            for text in row.below:
                self.paragraph(text, "faint", 2 * (row.depth + 2))

    def facts(self, sheet: Sheet) -> None:
        """All sections, their values in one column."""
        every = [fact for section in sheet.sections.values() for fact in section]
        labels = max((width(fact.label) + 2 * fact.depth for fact in every), default=0) + 2
        values = max((width(fact.value) for fact in every), default=0)
        for heading, section in sheet.sections.items():
            self.y += _LINE / 2
            self.paragraph(heading, "strong")
            for fact in section:
                self.text(2 + 2 * fact.depth, fact.label)
                self.text(labels + _GAP + values, fact.value, "strong", end=True)
                self.text(labels + values + 2 * _GAP, fact.note, "faint")
                self.y += _LINE


def _safe(text: str) -> str:
    return escape(visible(text), quote=True)


def _pieces(sheet: Sheet, palette: str) -> Iterator[str]:
    drawn = _Page(palette)
    drawn.paragraph(sheet.title[0], "strong")
    drawn.paragraph(" · ".join(sheet.title[1:]))
    for line in sheet.lines:
        drawn.paragraph(line, "faint")
    for grid in sheet.grids:
        drawn.y += _LINE / 2
        drawn.grid(grid)
    drawn.facts(sheet)
    drawn.y += _LINE / 2
    for sentence in sheet.sentences:
        drawn.paragraph(sentence)
    across = 2 * _MARGIN + drawn.letters * _LETTER
    down = drawn.y + _MARGIN
    size = f'width="{across:.0f}" height="{down:.0f}" viewBox="0 0 {across:.0f} {down:.0f}"'
    name = f"what {_safe(sheet.title[0])} costs"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="attnviz" role="img" aria-label="{name}"'
    yield f"{size}>\n<title>{name}</title>\n<style>{_STYLE}</style>"
    yield '<rect class="paper" width="100%" height="100%"/>'
    yield from drawn.elements
    yield "</svg>"


def write_params_svg(sheet: Sheet, palette: str, stream: SupportsWrite[str]) -> None:
    """Write the title, the tables with their bars, the facts and the sentences."""
    for piece in _pieces(sheet, palette):
        stream.write(piece + "\n")
