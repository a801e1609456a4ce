"""The whole answer of ``attnviz patterns``, put together from its views."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.patterns import PatternReport
from attnviz.render.blocks import BOLD, DIM, Block, stack, trimmed
from attnviz.render.labels import at_blanks, visible
from attnviz.render.legend import legend
from attnviz.render.patterns.cells import label_cells, label_legend
from attnviz.render.patterns.explain import explain_patterns
from attnviz.render.patterns.facts import count, pattern_doubts, pattern_provenance
from attnviz.render.patterns.grid import head_grid
from attnviz.render.patterns.specialists import specialists
from attnviz.render.patterns.statistics import statistics_table
from attnviz.render.patterns.view import PatternView
from attnviz.render.patterns.watch import watched
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme

__all__ = ["patterns_screen"]

_MAP_WORDS = "small maps: queries down, keys across, pooled where a text is longer"


def patterns_screen(report: PatternReport, view: PatternView, theme: Theme, room: int) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [pattern_provenance(report, view, room, theme)]
    notes = [
        paragraph(visible(note, theme.encoding), room, theme, DIM)
        for note in (*report.model.notes, *report.notes)
    ]
    parts.append(stack(notes, gap=0))
    if view.watch is not None:
        parts.append(watched(report, view.watch, view.top, theme, room))
    else:
        parts += [_grid(report, theme, room), specialists(report, view.top, theme, room)]
    if view.stats:
        parts.append(statistics_table(report, theme, room))
    parts.append(_maps_legend(report, view, theme, room))
    said = pattern_doubts(report) if view.watch is None else []
    parts.append(
        stack([paragraph(visible(text, theme.encoding), room, theme) for text in said], gap=0)
    )
    if view.explain:
        parts.append(explain_patterns(report, view.watch, theme, room))
    if view.hints:
        safe = [(visible(hint, theme.encoding), False) for hint in view.hints]
        parts.append(Block(tuple(wrapped(safe, room, theme)), room))
    return trimmed(stack(part for part in parts if part.lines))


def _grid(report: PatternReport, theme: Theme, room: int) -> Block:
    """Every head's label, under how many have one."""
    labelled = sum(entry.label is not None for entry in report.heads)
    title = f"What each head does: {labelled} of {count(len(report.heads), 'head')} labelled"
    lines = [[Segment(line, BOLD)] for line in at_blanks(title, room, "", theme.ellipsis)]
    cells = head_grid(label_cells(report, theme), report.index_base, theme, room)
    whole = stack([Block(tuple(lines), room), cells], gap=0)
    return stack([whole, label_legend(report, theme, room)])


def _maps_legend(report: PatternReport, view: PatternView, theme: Theme, room: int) -> Block:
    """What the cells of the maps on the screen are."""
    names = report.labels if view.watch is None else (view.watch,)
    if not any(entry.example for name in names for entry in report.labelled(name)[:1]):
        return Block((), 0)
    lines = [] if view.watch is not None else wrapped([(_MAP_WORDS, False)], room, theme)
    return stack([Block(tuple(lines), room), legend(theme, room)], gap=0)
