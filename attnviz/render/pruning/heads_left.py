"""Layer × head: which heads stay, and when each of the others went."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.pruning import PruneReport
from attnviz.render.blocks import DIM, Block, Line
from attnviz.render.prose import wrapped
from attnviz.render.theme import Theme

__all__ = ["heads_left"]

_KEPT_STEP = 110


def heads_left(report: PruneReport, theme: Theme, room: int) -> Block:
    """A row a layer, a cell a head: a block where it stays, its turn where it went."""
    order = {head: turn for turn, head in enumerate(report.removed, start=1)}
    names = [f"L{layer + report.index_base}" for layer in report.layers]
    gutter = max(map(len, names)) + 1
    digits = len(str(len(order)))
    numbered = (digits + 1) * report.model.heads <= room - gutter
    cell = digits + 1 if numbered else 1
    if numbered and 3 * report.model.heads <= room - gutter:
        cell = max(cell, 3)
    across = max(min((room - gutter) // cell, report.model.heads), 1)
    kept = "#" if theme.ascii else "█"
    gone = "." if theme.ascii else "·"
    lines: list[Line] = []
    for first in range(0, report.model.heads, across):
        heads = range(first, min(first + across, report.model.heads))
        lines.append([Segment(_ruler(heads, report.index_base, cell, gutter), DIM)])
        for name, layer in zip(names, report.layers, strict=True):
            line: Line = [Segment(name.ljust(gutter), DIM)]
            for head in heads:
                turn = order.get((layer, head))
                if turn is None:
                    line += _kept(kept, cell, theme)
                else:
                    line.append(Segment((str(turn) if numbered else gone).rjust(cell)))
            lines.append(line)
    meaning = "the number says when a head went" if numbered else f"{gone} went"
    title = wrapped([("Heads left", True), (meaning, False)], room, theme)
    legend: Line = [*_kept(kept, 1, theme), Segment(" stays")]
    return Block((*title, *lines, legend), room)


def _kept(glyph: str, cell: int, theme: Theme) -> Line:
    """A filled cell, with a blank before it where there is room."""
    filled = max(cell - 1, 1)
    mark = theme.cells(_KEPT_STEP, filled) if theme.colour else Segment(glyph * filled)
    return [mark] if cell == 1 else [Segment(" "), mark]


def _ruler(heads: range, base: int, cell: int, gutter: int) -> str:
    """Head numbers above the columns, as many as do not touch."""
    text = [" "] * (gutter + cell * len(heads))
    free = 0
    for place, head in enumerate(heads):
        label = str(head + base)
        start = gutter + (place + 1) * cell - len(label)
        if start >= max(free, gutter - 1):
            text[start : start + len(label)] = label
            free = start + len(label) + 1
    return "".join(text).rstrip()
