"""Draws a table on a terminal: cells under their titles, and a bar for the compared value.

Columns are left out if room is short. A table that is still too wide is broken into bands below
each other, each with the leading columns again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, stack
from attnviz.draw.document import Row, Table, Tint, Tone
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.palette import DIVERGING
from attnviz.draw.prose import spelled_parts, wrapped
from attnviz.draw.theme import Theme

_INDENT = "  "
_GAP = 2
_BAR = -1
"""The index that stands for the bar among the columns."""

_LEAST_BAR, _WANTED_BAR, _MOST_BAR = 6, 10, 24
_YIELDS_TO_BARS, _STAYS = 3, 9
_LEAST_LABEL, _LONGEST_RANKED = 4, 28
_LEAST_WORDS = 24
_LEAST_CUT = 8

_SIGNS = {True: Tint(215, DIVERGING), False: Tint(40, DIVERGING)}
_OTHER = Tint(95)


def bar_tint(row: Row, table: Table) -> Tint:
    """Return the colour of a row's bar: its own, or in ranked tables that of the value's sign."""
    return row.tint or (_SIGNS[row.bar is None or row.bar[0] >= 0] if table.ranked else _OTHER)


def table_block(table: Table, theme: Theme, max_width: int) -> Block:
    """Return the table under its title, with columns left out if it is too wide.

    max_width: in characters.
    """
    title = Block(tuple(wrapped(spelled_parts(table.title, theme), max_width, theme)), max_width)
    table = _spelled(table, theme)
    widths = _widths(table, max_width)
    places = _kept(table, widths, max_width)
    wraps = table.columns[places[-1]].wraps
    bands = [places] if wraps else _bands(places, widths, max_width, table.lead)
    if len(bands) == 1 and any(row.bar is not None for row in table.rows):
        widths[_BAR] = min(max_width - _used_by(places, widths) - _GAP, _MOST_BAR)
        if widths[_BAR] >= _LEAST_BAR:
            bands[0].insert(1 if table.ranked else len(places) - wraps, _BAR)
    blocks = []
    for band in bands:
        lines: list[Line] = []
        split = wraps and _used_by(band[:-1], widths) > max_width  # the titles are not cut
        if any(column.title for column in table.columns) and not split:
            lines.append(_line(_headings(table), table, band, widths, theme))
        for row in table.rows:
            lines += [[]] if row.spaced and bool(lines) else []
            lines += _row(row, table, band, widths, theme, max_width, below=band is bands[-1])
        blocks.append(Block(tuple(lines), max_width))
    left_out = at_blanks(theme.spell(table.left_out), max_width, "", theme.ellipsis)
    more = Block(tuple([Segment(text, DIM)] for text in left_out if text), max_width)
    return stack([title, stack(blocks), more], gap=0)


def _spelled(table: Table, theme: Theme) -> Table:
    """Return the table in characters that the console can show; names of ranked rows are bold."""
    columns = [column._replace(title=theme.spell(column.title)) for column in table.columns]
    if table.ranked:
        columns[0] = columns[0]._replace(tone="strong")
    rows = [
        row._replace(
            cells=[
                _INDENT * row.depth + theme.spell(row.cells[0]),
                *map(theme.spell, row.cells[1:]),
            ],
            below=tuple(map(theme.spell, row.below)),
        )
        for row in table.rows
    ]
    return table._replace(columns=columns, rows=rows)


def _headings(table: Table) -> Row:
    tones: dict[int, Tone] = {
        place: "faint" if table.ranked or column.tone == "faint" else "strong"
        for place, column in enumerate(table.columns)
    }
    tones[_BAR] = "faint"
    return Row([column.title for column in table.columns], tones=tones)


def _widths(table: Table, max_width: int) -> dict[int, int]:
    """Return the width in characters of each column, by its index; 0 for one without any cell.

    max_width: in characters; if it is short, the widest columns that may be cut are
        made narrower.
    """
    rows = [row for row in table.rows if len(row.cells) > 1]
    widths = {}
    for place, column in enumerate(table.columns):
        widest = max((width(row.cells[place]) for row in rows), default=0)
        widths[place] = max(width(column.title), widest) if widest or not place else 0
    if table.ranked:
        widths[0] = min(widths[0], _LONGEST_RANKED)
    shown = [place for place in widths if widths[place] or not place]
    long = [place for place in shown if table.columns[place].cuts]
    while long and _used_by(shown, widths) > max_width:
        widest = max(long, key=lambda place: widths[place])
        if widths[widest] <= _LEAST_CUT:
            break
        widths[widest] -= 1
    return widths


def _used_by(places: Sequence[int], widths: dict[int, int]) -> int:
    return sum(widths[place] for place in places) + _GAP * (len(places) - 1)


def _kept(table: Table, widths: dict[int, int], max_width: int) -> list[int]:
    barred = any(row.bar is not None for row in table.rows)
    wanted = _GAP + (_LEAST_BAR if table.ranked else _WANTED_BAR) if barred else 0
    places = [place for place in widths if widths[place] or not place]
    while True:
        fixed = [place for place in places if not table.columns[place].wraps]
        if len(fixed) < 3 and table.ranked:
            return places
        last = fixed[::-1] if table.ranked else fixed
        least = min(last, key=lambda place: table.columns[place].keep)
        keep = table.columns[least].keep
        bars = wanted if table.ranked or keep <= _YIELDS_TO_BARS else 0
        if (keep == _STAYS and not table.ranked) or _used_by(fixed, widths) + bars <= max_width:
            return places
        places.remove(least)


def _bands(
    places: Sequence[int], widths: dict[int, int], max_width: int, lead: int
) -> list[list[int]]:
    """Split columns that are too wide together into bands, which are drawn below each other.

    Each band is a list of column indices and begins with the leading columns.
    places: the indices of the columns. widths: by index, in characters, changed in place.
        max_width: the available width. lead: how many columns lead.
    If several leading columns leave no space for another, only the first is repeated, cut if
    necessary.
    """
    others = places[lead:]
    for place in others:  # wider than any line, so it is cut
        widths[place] = min(widths[place], max(max_width - _LEAST_LABEL - _GAP, _LEAST_LABEL))
    most = max((widths[place] for place in others), default=-_GAP)
    if lead > 1 and sum(widths[place] + _GAP for place in places[:lead]) + most > max_width:
        return _bands(places, widths, max_width, 1)
    first = list(places[:lead])
    taken = sum(widths[place] + _GAP for place in first[1:])
    widths[first[0]] = min(widths[first[0]], max(max_width - taken - most - _GAP, _LEAST_LABEL))
    bands = [list(first)]
    for place in others:
        if len(bands[-1]) > lead and _used_by([*bands[-1], place], widths) > max_width:
            bands.append(list(first))
        bands[-1].append(place)
    return bands


def _row(
    row: Row,
    table: Table,
    band: Sequence[int],
    widths: dict[int, int],
    theme: Theme,
    max_width: int,
    *,
    below: bool,
) -> list[Line]:
    lines: list[Line] = []
    if row.ruled:
        ruled = _used_by([place for place in band if place != _BAR], widths)
        lines.append([Segment(("-" if theme.ascii else "─") * ruled, DIM)])
    if len(row.cells) == 1:
        pieces = at_blanks(row.cells[0], max_width, "", theme.ellipsis)
        return lines + [[Segment(text, theme.tone(row.tone))] for text in pieces]
    if table.columns[band[-1]].wraps:
        lines += _hanging(row, table, band, widths, theme, max_width)
    else:
        lines.append(_line(row, table, band, widths, theme))
    start = _INDENT * (row.depth + 1)
    return lines + [
        [Segment(start), Segment(piece, DIM)]
        for text in row.below
        for piece in at_blanks(text, max(max_width - len(start), 1), _INDENT, theme.ellipsis)
        if below
    ]


def _line(
    row: Row, table: Table, band: Sequence[int], widths: dict[int, int], theme: Theme
) -> Line:
    """Return the cells of a row as one line, with blanks between them.

    band: the indices of the columns to draw. widths: their widths in characters, by index.
    """
    line: Line = []
    pending = 0
    for place in band:
        right = place != _BAR and table.columns[place].right
        cell = _cell(row, table, place, widths[place], theme)
        blanks = widths[place] - width(cell.text)
        if not cell.text.strip():
            pending += widths[place] + _GAP
            continue
        pending += blanks if right else 0
        line += [*([Segment(" " * pending)] if pending else []), cell]
        pending = _GAP + (0 if right else blanks)
    return line


def _cell(row: Row, table: Table, place: int, max_width: int, theme: Theme) -> Segment:
    """Return one cell of a row: its text, or the bar or the bar's caption.

    place: the column's index. max_width: its width in characters.
    """
    if place == _BAR:
        caption = (row.tones or {}).get(_BAR)
        text = theme.spell(table.bars)
        text = text if width(text) <= max_width else ""
        return Segment(text, theme.tone(caption)) if caption else _bar(row, table, max_width, theme)
    text, column = row.cells[place], table.columns[place]
    text = fit(text, max_width, theme.ellipsis) if width(text) > max_width else text
    tone = column.tone if row.tone == "plain" else row.tone
    return Segment(text, theme.tone((row.tones or {}).get(place, tone)))


def _bar(row: Row, table: Table, cells: int, theme: Theme) -> Segment:
    """Return a bar with the length of a row's value, exact to half a character.

    cells: the length of a full bar in characters.
    """
    value, limit = row.bar or (0.0, 0.0)
    halves = round(2 * cells * min(abs(value) / limit, 1.0)) if limit > 0 else 0
    # Thin lines: full blocks of neighbouring rows would touch.
    text = "#" * ((halves + 1) // 2) if theme.ascii else "━" * (halves // 2) + "╸" * (halves % 2)
    return Segment(text, theme.ink(bar_tint(row, table)))


def _hanging(
    row: Row,
    table: Table,
    band: Sequence[int],
    widths: dict[int, int],
    theme: Theme,
    max_width: int,
) -> list[Line]:
    """Return a row whose last cell has several lines, next to the other cells or below them.

    band: the indices of the columns to draw. widths: their widths in characters, by index.
    """
    *others, last = band
    start = _used_by(others, widths) + _GAP
    if start - _GAP <= max_width:
        lines = [_line(row, table, others, widths, theme)]
    else:  # one after the other, or each on a line of its own
        cells = [_cell(row, table, place, max_width, theme) for place in others]
        cells = [cell for cell in cells if cell.text.strip()]
        lines = [[Segment(cell.text + " " * _GAP, cell.style) for cell in cells]]
        if Segment.get_line_length(lines[0]) - _GAP > max_width:
            lines = [
                [Segment(_INDENT * (1 + bool(number))), Segment(piece, cell.style)]
                for number, cell in enumerate(cells)
                for piece in at_blanks(cell.text, max(max_width - 4, 1), "", theme.ellipsis)
            ]
    style = _cell(row, table, last, max_width, theme).style
    if not row.cells[last]:
        return lines
    beside = max_width - start >= min(_LEAST_WORDS, width(row.cells[last]))
    indent = start if beside else 2 * len(_INDENT)
    pieces = at_blanks(row.cells[last], max(max_width - indent, 1), "", theme.ellipsis)
    if beside:
        blank = start - Segment.get_line_length(lines[-1])
        lines[-1] = [*lines[-1], Segment(" " * blank), Segment(pieces.pop(0), style)]
    return lines + [[Segment(" " * indent), Segment(piece, style)] for piece in pieces]
