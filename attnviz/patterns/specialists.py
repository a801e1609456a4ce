"""For each label its best heads: how strong, against what base rate, and what it looks like."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line, beside, flow, stack
from attnviz.draw.labels import at_blanks, visible
from attnviz.draw.theme import Theme
from attnviz.measures.registry import label_named
from attnviz.patterns.colours import label_style
from attnviz.patterns.maps import MAP_COLUMNS, small_example
from attnviz.patterns.provenance import count
from attnviz.patterns.records import PatternReport
from attnviz.patterns.rows import head_rows

__all__ = ["label_title", "specialists"]

_GAP, _BETWEEN = 3, 4
_LEAST_TABLE = 34
_COMFORTABLE = 86
_LISTED = 4


def specialists(report: PatternReport, top: int | None, theme: Theme, room: int) -> Block:
    """A section for each label that some head has, side by side where the screen is wide."""
    across = max((room + _BETWEEN) // (_COMFORTABLE + _BETWEEN), 1)
    width = (room + _BETWEEN) // across - _BETWEEN
    sections = [
        _section(report, name, top or _LISTED, theme, width)
        for name in report.labels
        if report.labelled(name)
    ]
    return flow(sections, room, _BETWEEN)


def label_title(name: str, words: str, theme: Theme, room: int) -> list[Line]:
    """A label's sign, its name, and what is to be said of it."""
    letter = label_named(name).letter
    sign = f" {letter} " if theme.colour else f"{letter} "
    shown = visible(name, theme.encoding)
    style = label_style(name, 1.0) if theme.colour else BOLD
    pieces = at_blanks(f"{shown}{theme.dot}{words}", room - len(sign), "", theme.ellipsis)
    first = pieces[0].removeprefix(shown)
    head = [Segment(sign, style), Segment(" " * theme.colour + shown, BOLD), Segment(first)]
    indent = Segment(" " * len(sign))
    return [head, *([indent, Segment(piece)] for piece in pieces[1:])]


def _section(report: PatternReport, name: str, top: int, theme: Theme, room: int) -> Block:
    heads = report.labelled(name)
    listed = heads[:top]
    said = f"{count(len(heads), 'head')}{theme.dot}{label_named(name).meaning}"
    title = label_title(name, said, theme, room - 1)
    drawn = small_example(report, heads[0], theme)
    narrow = room < MAP_COLUMNS + _GAP + _LEAST_TABLE
    left = 0 if narrow or not drawn.lines else MAP_COLUMNS + _GAP
    rows = head_rows(report, name, listed, theme, room - left)
    if len(heads) > len(listed):
        more = Segment(f"and {len(heads) - len(listed)} more", DIM)
        rows = Block((*rows.lines, [more]), rows.width)
    body = beside([drawn, rows], _GAP) if left else stack([rows, drawn], gap=0)
    return Block((*title, *body.lines), room)
