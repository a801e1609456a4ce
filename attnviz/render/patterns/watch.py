"""One label only: every head's score of it, as a grid and as a ranking."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.patterns import PatternReport
from attnviz.render.blocks import BOLD, Block, Line, flow, stack
from attnviz.render.labels import at_blanks, visible
from attnviz.render.meanings import meaning
from attnviz.render.patterns.cells import score_cells, score_legend
from attnviz.render.patterns.facts import count
from attnviz.render.patterns.grid import head_grid
from attnviz.render.patterns.maps import full_map
from attnviz.render.patterns.numbers import score
from attnviz.render.patterns.rows import head_rows
from attnviz.render.patterns.specialists import label_title
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme

__all__ = ["watched"]

_LISTED = 24
_MAP_GAP = 3
_LEAST_MAP = 58


def watched(report: PatternReport, name: str, top: int | None, theme: Theme, room: int) -> Block:
    """The grid of one score, the maps of its best heads, and the ranking of all heads."""
    title = Block(tuple(label_title(name, meaning(name), theme, room - 1)), room)
    ranked = report.ranked(name)
    if not ranked:
        reason = report.not_measured.get(name, "this attention has no such score")
        said = visible(f"not measured: {reason}", theme.encoding)
        return stack([title, paragraph(said, room, theme)], gap=0)
    grid = head_grid(score_cells(report, name, theme), report.index_base, theme, room)
    listed = ranked[: top or _LISTED]
    heading: Line = [Segment(_ranking_title(report, name, len(listed), len(ranked)), BOLD)]
    rows = head_rows(report, name, listed, theme, room, ranking=True)
    parts = [
        title,
        grid,
        score_legend(name, theme, room),
        Block((*_broken(heading, room, theme), *rows.lines), room),
        _maps(report, name, theme, room),
    ]
    return stack(part for part in parts if part.lines)


def _broken(line: Line, room: int, theme: Theme) -> list[Line]:
    text = "".join(segment.text for segment in line)
    return [[Segment(piece, BOLD)] for piece in at_blanks(text, room, "", theme.ellipsis)]


def _ranking_title(report: PatternReport, name: str, listed: int, ranked: int) -> str:
    labelled = len(report.labelled(name))
    shown = f"the first {listed} of {ranked}" if listed < ranked else f"all {ranked}"
    return f"Ranking: {shown} heads; {count(labelled, 'head')} labelled"


def _maps(report: PatternReport, name: str, theme: Theme, room: int) -> Block:
    """The best heads over a text on which the label can be seen, one or two side by side."""
    heads = [entry for entry in report.labelled(name) if entry.example is not None]
    across = 2 if len(heads) > 1 and room >= 2 * _LEAST_MAP + _MAP_GAP else 1
    width = (room + _MAP_GAP) // across - _MAP_GAP
    maps = []
    for entry in heads[:across]:
        parts = [
            (report.name(entry.layer, entry.head), True),
            (f"{visible(name, theme.encoding)} {score(entry.scores[name])}", False),
            (f"base {score(entry.base_rate.get(name))}", False),
        ]
        maps.append(full_map(report, entry, wrapped(parts, width, theme), theme, width))
    return flow(maps, room, _MAP_GAP)
