"""Draws a table on a terminal: cells under their titles, and a bar for the compared value.

Columns are left out if room is short. A table that is still too wide is broken into bands below
each other, each with the leading columns again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, stack
from attnviz.draw.document import Row, Table, Tint, Tone
from attnviz.draw.labels import at_blanks, cut, width
from attnviz.draw.palette import DIVERGING
from attnviz.draw.prose import faint_lines, words_block
from attnviz.draw.theme import Theme

_INDENT = "  "
_GAP = 2
_BAR = -1  # the index that stands for the bar among the columns
_LEAST_BAR, _WANTED_BAR, _MOST_BAR = 6, 10, 24
_YIELDS_TO_BARS, _STAYS = 3, 9
_LEAST_LABEL, _LONGEST_RANKED = 4, 28
_LEAST_WORDS = 24
_LEAST_CUT = 8

_SIGNS = {True: Tint(215, DIVERGING), False: Tint(40, DIVERGING)}
_OTHER = Tint(140)


def bar_tint(row: Row, table: Table) -> Tint:
    """Return the colour of a row's bar: its own, or else the colour for the value's sign."""
    return row.tint or (_SIGNS[row.bar is None or row.bar[0] >= 0] if table.ranked else _OTHER)


def table_block(table: Table, theme: Theme, max_width: int) -> Block:
    """Return the table under its title, with columns left out if it is wider than ``max_width``."""
    title = words_block(table.title, theme, max_width)
    table = _spelled(table, theme)
    widths = _widths(table, max_width)
    indices = _kept(table, widths, max_width)
    wraps = table.columns[indices[-1]].wraps
    bands = [indices] if wraps else _bands(indices, widths, max_width, table.lead)
    if len(bands) == 1 and any(row.bar is not None for row in table.rows):
        most = max(max_width // 3, _MOST_BAR) if theme.framed else _MOST_BAR
        widths[_BAR] = min(max_width - _used_by(indices, widths) - _GAP, most)
        if widths[_BAR] >= _LEAST_BAR:
            bands[0].insert(1 if table.ranked else len(indices) - wraps, _BAR)
    tones: dict[int, Tone] = {_BAR: "faint"}
    for index, column in enumerate(table.columns):
        tones[index] = "faint" if table.ranked or column.tone == "faint" else "strong"
    headings = Row([column.title for column in table.columns], tones=tones)
    layout, blocks = _Layout(table, widths, theme, max_width), []
    for band in bands:
        lines: list[Line] = []
        split = wraps and _used_by(band[:-1], widths) > max_width  # the titles are not cut
        if any(column.title for column in table.columns) and not split:
            lines.append(layout.line(headings, band))
        for row in table.rows:
            lines += [[]] if row.spaced and bool(lines) else []
            lines += layout.row(row, band, below=band is bands[-1])
        blocks.append(Block(tuple(lines), max_width))
    more = faint_lines(theme.spell(table.left_out), theme, max_width)
    return stack([title, stack(blocks), Block(tuple(more), max_width)], gap=0)


def _spelled(table: Table, theme: Theme) -> Table:
    """Return the table in characters that the console can show; names of ranked rows are bold."""
    columns = [column._replace(title=theme.spell(column.title)) for column in table.columns]
    if table.ranked:
        columns[0] = columns[0]._replace(tone="strong")
    rows = list[Row]()
    for row in table.rows:
        first, *others = map(theme.spell, row.cells)
        below = [*map(theme.spell, row.below)]
        rows.append(row._replace(cells=[_INDENT * row.depth + first, *others], below=below))
    return table._replace(columns=columns, rows=rows)


def _widths(table: Table, max_width: int) -> dict[int, int]:
    """Return the width of each column, 0 without any cell, narrower where it may be cut to fit."""
    rows = [row for row in table.rows if len(row.cells) > 1]
    widths = {}
    for index, column in enumerate(table.columns):
        widest = max((width(row.cells[index]) for row in rows), default=0)
        widths[index] = max(width(column.title), widest) if widest or not index else 0
    if table.ranked:
        widths[0] = min(widths[0], _LONGEST_RANKED)
    shown = [index for index in widths if widths[index] or not index]
    long = [index for index in shown if table.columns[index].cuts]
    while long and _used_by(shown, widths) > max_width:
        widest = max(long, key=lambda index: widths[index])
        if widths[widest] <= _LEAST_CUT:
            break
        widths[widest] -= 1
    return widths


def _used_by(indices: Sequence[int], widths: Mapping[int, int]) -> int:
    return sum(widths[index] for index in indices) + _GAP * (len(indices) - 1)


def _kept(table: Table, widths: dict[int, int], max_width: int) -> list[int]:
    barred = any(row.bar is not None for row in table.rows)
    wanted = _GAP + (_LEAST_BAR if table.ranked else _WANTED_BAR) if barred else 0
    indices = [index for index in widths if widths[index] or not index]
    while True:
        fixed = [index for index in indices if not table.columns[index].wraps]
        if len(fixed) < 3 and table.ranked:
            return indices
        last = fixed[::-1] if table.ranked else fixed
        least = min(last, key=lambda index: table.columns[index].keep)
        keep = table.columns[least].keep
        bars = wanted if table.ranked or keep <= _YIELDS_TO_BARS else 0
        if (keep == _STAYS and not table.ranked) or _used_by(fixed, widths) + bars <= max_width:
            return indices
        indices.remove(least)


def _bands(
    indices: Sequence[int], widths: dict[int, int], max_width: int, lead: int
) -> list[list[int]]:
    """Split columns that are too wide together into bands, which are drawn below each other.

    Each band is a list of column indices and begins with the leading columns; if several of these
    leave no space for another, only the first is repeated, cut if necessary. widths: by index, in
        characters, changed in place. lead: how many columns lead.
    """
    others = indices[lead:]
    for index in others:  # wider than any line, so it is cut
        widths[index] = min(widths[index], max(max_width - _LEAST_LABEL - _GAP, _LEAST_LABEL))
    most = max((widths[index] for index in others), default=-_GAP)
    if lead > 1 and sum(widths[index] + _GAP for index in indices[:lead]) + most > max_width:
        return _bands(indices, widths, max_width, 1)
    first = list(indices[:lead])
    taken = sum(widths[index] + _GAP for index in first[1:])
    widths[first[0]] = min(widths[first[0]], max(max_width - taken - most - _GAP, _LEAST_LABEL))
    bands = [list(first)]
    for index in others:
        if len(bands[-1]) > lead and _used_by([*bands[-1], index], widths) > max_width:
            bands.append(list(first))
        bands[-1].append(index)
    return bands


class _Layout(NamedTuple):
    """How the rows of a table are drawn in one band of columns, a list of their indices.

    widths: of the columns in characters, by index. max_width: of a line.
    """

    table: Table
    widths: Mapping[int, int]
    theme: Theme
    max_width: int

    def row(self, row: Row, band: Sequence[int], *, below: bool) -> list[Line]:
        """Return the lines of a row. below: whether the sentences under it are among them."""
        lines, theme = list[Line](), self.theme
        if row.ruled:
            ruled = _used_by([index for index in band if index != _BAR], self.widths)
            lines.append([Segment(("-" if theme.ascii else "─") * ruled, DIM)])
        if len(row.cells) == 1:
            pieces = at_blanks(row.cells[0], self.max_width, "", theme.ellipsis)
            return lines + [[Segment(text, theme.tone(row.tone))] for text in pieces]
        wraps = self.table.columns[band[-1]].wraps
        lines += self._hanging(row, band) if wraps else [self.line(row, band)]
        start = _INDENT * (row.depth + 1)
        for text in row.below if below else ():
            pieces = at_blanks(text, max(self.max_width - len(start), 1), _INDENT, theme.ellipsis)
            lines += [[Segment(start), Segment(piece, DIM)] for piece in pieces]
        return lines

    def line(self, row: Row, band: Sequence[int]) -> Line:
        line: Line = []
        pending = 0
        for index in band:
            wide, right = self.widths[index], index != _BAR and self.table.columns[index].right
            cell = self._cell(row, index, wide)
            if not cell.text.strip():
                pending += wide + _GAP
                continue
            blanks = wide - width(cell.text)
            pending += blanks if right else 0
            line += [*([Segment(" " * pending)] if pending else []), cell]
            pending = _GAP + (0 if right else blanks)
        return line

    def _cell(self, row: Row, index: int, max_width: int) -> Segment:
        """Return the cell of a row in a column: its text, or the bar or the bar's caption."""
        theme, tones = self.theme, row.tones or {}
        if index == _BAR:
            if not (caption := tones.get(_BAR)):
                return self._bar(row, max_width)
            text = theme.spell(self.table.bars)
            return Segment(text if width(text) <= max_width else "", theme.tone(caption))
        text, column = row.cells[index], self.table.columns[index]
        text = cut(text, max_width, theme.ellipsis)
        tone = column.tone if row.tone == "plain" else row.tone
        return Segment(text, theme.tone(tones.get(index, tone)))

    def _bar(self, row: Row, cells: int) -> Segment:
        """Return a bar as long as a row's value, exact to half a character; ``cells`` if full."""
        value, limit = row.bar or (0.0, 0.0)
        halves = round(2 * cells * min(abs(value) / limit, 1.0)) if limit > 0 else 0
        # Thin lines: full blocks of neighbouring rows would touch.
        thin = "━" * (halves // 2) + "╸" * (halves % 2)
        text = "#" * ((halves + 1) // 2) if self.theme.ascii else thin
        return Segment(text, self.theme.ink(bar_tint(row, self.table)))

    def _hanging(self, row: Row, band: Sequence[int]) -> list[Line]:
        """Return a row whose last cell has several lines, next to the other cells or below them."""
        *others, last = band
        max_width, ellipsis = self.max_width, self.theme.ellipsis
        start = _used_by(others, self.widths) + _GAP
        if start - _GAP <= max_width:
            lines = [self.line(row, others)]
        else:  # one after the other, or each on a line of its own
            cells = [self._cell(row, index, max_width) for index in others]
            cells = [cell for cell in cells if cell.text.strip()]
            lines = [[Segment(cell.text + " " * _GAP, cell.style) for cell in cells]]
            if Segment.get_line_length(lines[0]) - _GAP > max_width:
                lines = [
                    [Segment(_INDENT * (1 + bool(number))), Segment(piece, cell.style)]
                    for number, cell in enumerate(cells)
                    for piece in at_blanks(cell.text, max(max_width - 4, 1), "", ellipsis)
                ]
        words, style = row.cells[last], self._cell(row, last, max_width).style
        if not words:
            return lines
        beside = max_width - start >= min(_LEAST_WORDS, width(words))
        indent = start if beside else 2 * len(_INDENT)
        pieces = at_blanks(words, max(max_width - indent, 1), "", ellipsis)
        if beside:
            blank = start - Segment.get_line_length(lines[-1])
            lines[-1] = [*lines[-1], Segment(" " * blank), Segment(pieces.pop(0), style)]
        return lines + [[Segment(" " * indent), Segment(piece, style)] for piece in pieces]
