"""The screen of ``attnviz params``: a sheet drawn for a terminal, with its signs and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line, stack, text_line
from attnviz.draw.labels import at_blanks, visible, width
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.theme import Theme
from attnviz.params.sheet import Fact, Sheet
from attnviz.params.table import INDENT, draw_grid

__all__ = ["fact_sections", "in_signs", "sheet_screen"]

_GAP = 2
_LEAST_NOTE = 24


def fact_sections(sections: Mapping[str, Sequence[Fact]], room: int, theme: Theme) -> Block:
    """The facts of each heading below each other, values in one column through all of them."""
    facts = [fact for section in sections.values() for fact in section]
    labels = max(width(_label(fact)) for fact in facts)
    values = max(width(fact.value) for fact in facts)
    blocks = []
    for heading, section in sections.items():
        lines = [text_line((piece, BOLD)) for piece in at_blanks(heading, room)]
        for fact in section:
            lines += _lines(fact, labels, values, room, theme)
        blocks.append(Block(tuple(lines), room))
    return stack(blocks)


def _label(fact: Fact) -> str:
    return INDENT * (fact.depth + 1) + fact.label


def _lines(fact: Fact, labels: int, values: int, room: int, theme: Theme) -> list[Line]:
    """One fact; the note stands beside the value where it has room, else below."""
    label, value = _label(fact), Segment(fact.value, BOLD)
    note = fact.note.replace("²", "^2") if theme.ascii else fact.note
    spread = labels + _GAP + values
    if spread <= room:
        blanks = spread - width(label) - width(fact.value)
        lines: list[Line] = [[Segment(label + " " * blanks), value]]
    elif width(label) + _GAP + width(fact.value) <= room:
        lines = [[Segment(label + " " * _GAP), value]]
    else:
        lines = [[Segment(piece)] for piece in at_blanks(label, room - 2, INDENT, theme.ellipsis)]
        lines = [[Segment(INDENT), *line] for line in lines]
        lines.append([Segment(2 * INDENT), value])
    if not note:
        return lines
    start = spread + _GAP
    if room - start < _LEAST_NOTE:
        below = at_blanks(note, room - 2 * len(INDENT), "", theme.ellipsis)
        return lines + [[Segment(2 * INDENT), Segment(piece, DIM)] for piece in below]
    first, *rest = at_blanks(note, room - start, "", theme.ellipsis)
    lines[0] += [Segment(" " * _GAP), Segment(first, DIM)]
    return lines + [[Segment(" " * start), Segment(piece, DIM)] for piece in rest]


_PLAIN = str.maketrans("×÷–…·²≤≥→", "x/-~-2<>>")
"""One column each, so that tables stay aligned."""


def in_signs(block: Block, theme: Theme) -> Block:
    """The block as it is, or with signs that ASCII can write."""
    if not theme.ascii:
        return block
    lines = tuple(
        [Segment(segment.text.translate(_PLAIN), segment.style) for segment in line]
        for line in block.lines
    )
    return Block(lines, block.width)


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
