"""A sheet on a console: title, tables, facts, sentences, each in what room there is."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.render.blocks import DIM, Block, stack
from attnviz.render.labels import visible
from attnviz.render.params.facts import fact_sections
from attnviz.render.params.sheet import Sheet
from attnviz.render.params.signs import in_signs
from attnviz.render.params.table import draw_grid
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme

__all__ = ["sheet_screen"]


def sheet_screen(
    sheet: Sheet,
    room: int,
    theme: Theme,
    explanation: Sequence[str] = (),
    hints: Sequence[str] = (),
) -> Block:
    """The whole answer within ``room`` columns.

    explanation: paragraphs for newcomers. hints: what to try next.
    """
    words = [visible(word, theme.encoding) for word in sheet.title]
    title = wrapped([(word, index == 0) for index, word in enumerate(words)], room, theme)
    lines = [visible(line, theme.encoding) for line in sheet.lines]
    blocks = [
        stack(
            [Block(tuple(title), room), *(paragraph(line, room, theme, DIM) for line in lines)],
            gap=0,
        ),
        *(draw_grid(grid, room, theme) for grid in sheet.grids),
    ]
    if sheet.sections:
        blocks.append(fact_sections(sheet.sections, room, theme))
    for texts in (sheet.sentences, explanation):
        if texts:
            blocks.append(stack([paragraph(text, room, theme) for text in texts], gap=0))
    if hints:
        parts = [(visible(hint, theme.encoding), False) for hint in hints]
        faint = [
            paragraph("".join(s.text for s in line), room, theme, DIM)
            for line in wrapped(parts, room, theme)
        ]
        blocks.append(stack(faint, gap=0))
    return in_signs(stack(blocks), theme)
