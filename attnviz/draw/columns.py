"""A table on a terminal: columns as wide as their cells, bars in the room that is left.

No boxes are drawn: a table stays legible at 80 columns, without colour and in a pipe. Where the
room is short, bars go first, then the columns that say least; what is left and still too wide is
broken into bands below each other, each with the leading columns again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, stack
from attnviz.draw.document import Column, Row, Table, Tint
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.prose import spelled_parts, wrapped
from attnviz.draw.theme import Theme

INDENT = "  "
_GAP = 2
_LEAST_BAR, _WANTED_BAR, _MOST_BAR = 6, 10, 28
_YIELDS_TO_BARS, _STAYS = 3, 9
_LEAST_LABEL = 4
_LEAST_WORDS = 24
_OTHER = Tint(95)


def columns_block(table: Table, theme: Theme, room: int) -> Block:
    """The table within ``room`` columns."""
    table = _spelled(table, theme)
    places, widths = _kept(table, room)
    wrapping = places[-1] if table.columns[places[-1]].wraps else None
    bands = [places] if wrapping else _bands(places, widths, room, table.lead)
    used = sum(widths[place] for place in bands[0]) + _GAP * (len(bands[0]) - 1)
    barred = len(bands) == 1 and any(row.bar is not None for row in table.rows)
    bars = min(room - used - _GAP, _MOST_BAR) if barred else 0
    bars = bars if bars >= _LEAST_BAR else 0
    blocks = []
    for band in bands:
        lines: list[Line] = []
        titled = any(column.title for column in table.columns)
        if titled and not (wrapping and used > room):  # rows are broken there, titles are not
            lines.append(_headings(table, band, widths, theme))
        for row in table.rows:
            if row.spaced and lines:
                lines.append([])
            if row.ruled:
                lines.append([Segment(("-" if theme.ascii else "─") * _used_by(band, widths), DIM)])
            if len(row.cells) == 1:
                style = theme.tone(row.tone)
                lines += [[Segment(text, style)] for text in at_blanks(_first(row), room)]
                continue
            if wrapping:
                lines += _hanging(row, table, band, widths, room, bars, theme)
            else:
                lines.append(_line(row, table.columns, band, widths, theme))
                _add(lines[-1], _bar(row, bars, theme), used)
            if band is bands[-1]:
                lines += _below(row, room, theme)
        blocks.append(Block(tuple(lines), room))
    more = [[Segment(text, DIM)] for text in at_blanks(table.left_out, room) if text]
    title = Block(tuple(wrapped(spelled_parts(table.title, theme), room, theme)), room)
    return stack([title, stack(blocks), Block(tuple(more), room)], gap=0)


def _used_by(band: Sequence[int], widths: dict[int, int]) -> int:
    """The columns that a band takes."""
    return sum(widths[place] for place in band) + _GAP * (len(band) - 1)


def _spelled(table: Table, theme: Theme) -> Table:
    """The table in signs that the console has."""
    return Table(
        [column._replace(title=theme.spell(column.title)) for column in table.columns],
        [
            row._replace(
                cells=tuple(map(theme.spell, row.cells)), below=tuple(map(theme.spell, row.below))
            )
            for row in table.rows
        ],
        table.title,
        lead=table.lead,
        more=theme.spell(table.left_out),
    )


def _below(row: Row, room: int, theme: Theme) -> list[Line]:
    start = INDENT * (row.depth + 2)
    return [
        [Segment(start), Segment(piece, DIM)]
        for text in row.below
        for piece in at_blanks(text, max(room - len(start), 1), INDENT, theme.ellipsis)
    ]


def _first(row: Row) -> str:
    return INDENT * row.depth + row.cells[0]


def _kept(table: Table, room: int) -> tuple[list[int], dict[int, int]]:
    """The columns that are shown, and the width of each."""
    rows = [row for row in table.rows if len(row.cells) > 1]
    widths = {
        place: max([width(column.title), *(width(row.cells[place]) for row in rows)])
        for place, column in enumerate(table.columns)
    }
    widths[0] = max([width(table.columns[0].title), *(width(_first(row)) for row in rows)])
    filled = {place for row in rows for place, cell in enumerate(row.cells) if cell}
    places = [place for place in widths if place in filled]
    bars = _GAP + _WANTED_BAR if any(row.bar is not None for row in rows) else 0
    fixed = [place for place in places if not table.columns[place].wraps]
    while fixed:
        used = _used_by(fixed, widths)
        least = min(fixed, key=lambda place: table.columns[place].keep)
        keep = table.columns[least].keep
        if keep == _STAYS or (used <= room and (used + bars <= room or keep > _YIELDS_TO_BARS)):
            break
        fixed.remove(least)
        places.remove(least)
    return places, widths


def _bands(places: Sequence[int], widths: dict[int, int], room: int, lead: int) -> list[list[int]]:
    """The columns in bands that fit, the leading ones in each; the first is cut where it must be.

    Of several leading columns only the first is repeated where they leave no room for another.
    """
    others = places[lead:]
    for place in others:  # one that no line has room for is cut
        widths[place] = min(widths[place], max(room - _LEAST_LABEL - _GAP, _LEAST_LABEL))
    most = max((widths[place] for place in others), default=-_GAP)
    if lead > 1 and sum(widths[place] + _GAP for place in places[:lead]) + most > room:
        return _bands(places, widths, room, 1)
    first = list(places[:lead])
    taken = sum(widths[place] + _GAP for place in first[1:])
    widths[first[0]] = min(widths[first[0]], max(room - taken - most - _GAP, _LEAST_LABEL))
    start = _used_by(first, widths)
    bands, used = [list(first)], start
    for place in others:
        if len(bands[-1]) > lead and used + _GAP + widths[place] > room:
            bands.append(list(first))
            used = start
        bands[-1].append(place)
        used += _GAP + widths[place]
    return bands


def _headings(table: Table, band: Sequence[int], widths: dict[int, int], theme: Theme) -> Line:
    """The titles of the columns, bold where the column is not faint."""
    columns = [
        column._replace(tone="faint" if column.tone == "faint" else "strong")
        for column in table.columns
    ]
    return _line(Row([column.title for column in columns]), columns, band, widths, theme)


def _line(
    row: Row,
    columns: Sequence[Column],
    band: Sequence[int],
    widths: dict[int, int],
    theme: Theme,
) -> Line:
    """The cells of one line, blanks only where something follows."""
    line: Line = []
    pending = 0
    for place in band:
        column = columns[place]
        text = row.cells[place] if place else _first(row)
        if width(text) > widths[place]:
            text = fit(text, widths[place], theme.ellipsis)
        blanks = widths[place] - width(text)
        if not text.strip():
            pending += widths[place] + _GAP
            continue
        pending += blanks if column.right else 0
        if pending:
            line.append(Segment(" " * pending))
        tone = row.tone if row.tone != "plain" else column.tone
        line.append(Segment(text, theme.tone((row.tones or {}).get(place, tone))))
        pending = _GAP + (0 if column.right else blanks)
    return line


def _hanging(
    row: Row,
    table: Table,
    band: Sequence[int],
    widths: dict[int, int],
    room: int,
    bars: int,
    theme: Theme,
) -> list[Line]:
    """A row whose last cell is broken: beside the others, or below where they leave no room.

    bars: the columns of a bar before it, 0 for none.
    """
    *others, last = band
    note = row.cells[last]
    style = theme.tone((row.tones or {}).get(last, table.columns[last].tone))
    spread = _used_by(others, widths)
    if spread <= room:
        lines = [_line(row, table.columns, others, widths, theme)]
    else:
        lines = _narrow(row, table, others, room, theme)
    _add(lines[0], _bar(row, bars, theme), spread)
    start = spread + _GAP + (bars + _GAP if bars else 0)
    if not note:
        return lines
    if room - start < min(_LEAST_WORDS, width(note)):
        below = at_blanks(note, max(room - 2 * len(INDENT), 1), "", theme.ellipsis)
        return lines + [[Segment(2 * INDENT), Segment(piece, style)] for piece in below]
    first, *rest = at_blanks(note, room - start, "", theme.ellipsis)
    _add(lines[0], Segment(first, style), start - _GAP)
    return lines + [[Segment(" " * start), Segment(piece, style)] for piece in rest]


def _narrow(row: Row, table: Table, band: Sequence[int], room: int, theme: Theme) -> list[Line]:
    """The cells of a row behind each other, or each on a line of its own."""
    texts = [(_first(row) if not place else row.cells[place], place) for place in band]
    styles = {place: theme.tone(table.columns[place].tone) for _, place in texts}
    label, *values = [(text, place) for text, place in texts if text.strip()]
    if sum(width(text) for text, _ in (label, *values)) + _GAP * len(values) <= room:
        line: Line = [Segment(label[0] + " " * _GAP * bool(values), styles[label[1]])]
        for number, (text, place) in enumerate(values):
            line += [Segment(" " * _GAP)] if number else []
            line.append(Segment(text, styles[place]))
        return [line]
    pieces = at_blanks(label[0], max(room - len(INDENT), 1), INDENT, theme.ellipsis)
    lines: list[Line] = [[Segment(INDENT), Segment(piece, styles[label[1]])] for piece in pieces]
    return lines + [
        [Segment(2 * INDENT), Segment(piece, styles[place])]
        for text, place in values
        for piece in at_blanks(text, max(room - 2 * len(INDENT), 1), "", theme.ellipsis)
    ]


def _add(line: Line, piece: Segment, used: int) -> None:
    """Put a piece behind what takes ``used`` columns, if there is any."""
    if piece.text:
        line += [Segment(" " * (used + _GAP - Segment.get_line_length(line))), piece]


def _bar(row: Row, cells: int, theme: Theme) -> Segment:
    """A part of a whole as a bar; what is more than nothing is seen."""
    part, whole = row.bar or (0, 0)
    halves = int((2 * cells * part + whole // 2) // whole) if whole else 0
    halves = max(halves, 1 if part and cells else 0)
    # Thin lines: full blocks of neighbouring rows would grow together.
    text = "#" * ((halves + 1) // 2) if theme.ascii else "━" * (halves // 2) + "╸" * (halves % 2)
    return Segment(text, theme.ink(row.tint or _OTHER))
