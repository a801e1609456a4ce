"""A document on a terminal: each part as a block, groups below or beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw import document as doc
from attnviz.draw.blocks import DIM, Block, Line, beside, flow, stack, text_line, trimmed, widest
from attnviz.draw.curve import plot_block
from attnviz.draw.grid import full_width, grid_block
from attnviz.draw.histogram import histogram_blocks
from attnviz.draw.labels import fit
from attnviz.draw.prose import paragraph, quoted_line, spelled_parts, wrapped
from attnviz.draw.table import table_block
from attnviz.draw.theme import Theme


def terminal_block(document: doc.Document, theme: Theme, room: int) -> Block:
    """All of it in ``room`` columns."""
    groups = [*document.groups, doc.Group(document.explain), doc.Group(document.hints)]
    blocks = [_group(group, theme, room) for group in groups]
    return trimmed(stack(block for block in blocks if block.lines))


def _group(group: doc.Group, theme: Theme, room: int) -> Block:
    if group.full:
        return Block((), 0)
    if group.beside is None:
        blocks = [_member(part, theme, room) for part in group.parts]
        return stack([block for block in blocks if block.lines], gap=int(group.spaced))
    if group.beside.yields:
        return _yielding(group.parts, group.beside, theme, room)
    columns, gap, most, stretch, _ = group.beside
    if not columns:
        drawn = [_member(part, theme, room).lines for part in group.parts]
        return flow([Block(lines, widest(lines)) for lines in drawn if lines], room, gap)
    across = max((room + gap) // (columns + gap), 1)
    across = min(across, most) if most else across
    width = (room + gap) // across - gap if stretch else min(columns, room)
    blocks = [_member(part, theme, width) for part in group.parts]
    return flow([block for block in blocks if block.lines], room, gap)


def _yielding(
    parts: Sequence[doc.Part | doc.Group], how: doc.Beside, theme: Theme, room: int
) -> Block:
    """The first part in the room that the second one leaves, or else above it."""
    first, second = parts
    right = _member(second, theme, room)
    left = room - widest(right.lines) - how.gap
    if right.lines and left >= max(how.columns, _full_width(first)):
        drawn = _member(first, theme, left)
        if drawn.lines:
            return beside([Block(drawn.lines, left), right], how.gap)
    return stack(block for block in (_member(first, theme, room), right) if block.lines)


def _full_width(part: doc.Part | doc.Group) -> int:
    """The columns that a part takes where there is room for all of it."""
    if isinstance(part, doc.Group):
        return max(map(_full_width, part.parts), default=0)
    return full_width(part) if isinstance(part, doc.HeadGrid) else 0


def _member(part: doc.Part | doc.Group, theme: Theme, room: int) -> Block:
    return (
        _group(part, theme, room) if isinstance(part, doc.Group) else part_block(part, theme, room)
    )


def part_block(part: doc.Part, theme: Theme, room: int) -> Block:
    """One part in ``room`` columns."""
    match part:
        case doc.Facts():
            return _facts(part, theme, room)
        case doc.Quote(name, content, lead):
            return Block((quoted_line(name, content, room, theme, lead),), room)
        case doc.Note(text, longest):
            return paragraph(theme.spell(text), min(longest or room, room), theme, DIM)
        case doc.Say(text, longest):
            return paragraph(theme.spell(text), min(longest or room, room), theme)
    if part.screen is not None:
        return part.screen(theme, room)
    match part:
        case doc.Table():
            return table_block(part, theme, room)
        case doc.HeadGrid():
            return grid_block(part, theme, room)
        case doc.Maps():
            from attnviz.draw.panels import maps_block  # NumPy is for maps alone

            return maps_block(part, theme, room)
        case doc.Plot(histograms=[_, *_]):
            return _histograms(part, theme, room)
        case doc.Plot():
            return plot_block(part, theme, room)


def _histograms(plot: doc.Plot, theme: Theme, room: int) -> Block:
    title = Block(tuple(wrapped(spelled_parts(plot.title, theme), room, theme)), room)
    return stack([title, histogram_blocks(plot.histograms, theme, room)], gap=0)


def _facts(part: doc.Facts, theme: Theme, room: int) -> Block:
    words: doc.Words = [(text, tone or part.tone) for text, tone in part.words]
    inner = max(room - part.lead, 1)
    lines: list[Line] = wrapped(spelled_parts(words, theme), inner, theme)
    if part.lead:
        name = fit(theme.spell(part.name), part.lead, theme.ellipsis)
        leads = [name, *[" " * part.lead] * (len(lines) - 1)]
        style = DIM if part.name else None
        lines = [
            [*text_line((lead, style)), *line] for lead, line in zip(leads, lines, strict=True)
        ]
    return Block(tuple(lines), room)
