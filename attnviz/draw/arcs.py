"""Draws arcs over one line of text, from each word to the one that it attends to most.

An arc begins above the word that attends and ends in a sign above the word that is attended to. A
short arc lies below those that span it; where two cross, their lines cross.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from attnviz.draw.blocks import DIM, Block, Line, text_line
from attnviz.draw.coloured_text import TextPiece, pieces_of
from attnviz.draw.document import LEAST_ARC, STRONG_ARC, Arc, Arcs, Map
from attnviz.draw.drawing import Drawing, Item, Label, Stroke, Tip
from attnviz.draw.labels import width, word_label
from attnviz.draw.prose import words_lines
from attnviz.draw.provenance import share
from attnviz.draw.theme import Theme
from attnviz.records import Tokens

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LIGHT = {
    _RIGHT | _DOWN: "╭", _LEFT | _DOWN: "╮", _LEFT | _RIGHT: "─", _UP | _DOWN: "│",
    _LEFT | _RIGHT | _DOWN: "┬", _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}  # fmt: skip
_HEAVY = dict(zip(_LIGHT, "┏┓━┃┳┣┫╋", strict=True))
_PLAIN = dict(zip(_LIGHT, "++-|++++", strict=True))
_STRONG = _PLAIN | {_LEFT | _RIGHT: "="}
_LETTER, _SIZE, _INK, _STEPS = 6.6, 14.0, "#d9480f", 24
"""Of a figure: pixels of a letter and of a line, the colour of arcs, the points of each."""


class _Span(NamedTuple):
    """The horizontal extent of one arc over a line of text, and its height.

    start, end: the character positions, in the line, of the middle of the word that attends and of
        the word that is attended to. level: how many lines the arc lies above the text, from 1.
    """

    arc: Arc
    start: int
    end: int
    level: int

    @property
    def left(self) -> int:
        return min(self.start, self.end)

    @property
    def right(self) -> int:
        return max(self.start, self.end)


def text_columns(tokens: Tokens) -> int:
    """Return the width in characters of the whole text written in one line."""
    return sum(piece.width for piece in _pieces(tokens, Theme()))


def arcs_lines(part: Arcs) -> int:
    """Return how many terminal lines the arcs take, with their title, text and legend."""
    spans = _levelled(part.arcs, _columns(_pieces(part.tokens, Theme()), part.tokens))
    return max((span.level for span in spans), default=-1) + 4


def arcs_block(part: Arcs, theme: Theme, max_width: int) -> Block:
    """Return the arcs above the text, or as a list of words if the text is too long for a line."""
    title = words_lines(part.title, theme, max_width)
    pieces = _pieces(part.tokens, theme)
    if sum(piece.width for piece in pieces) > max_width:
        words = words_lines([(arc, False) for arc in arc_words(part)], theme, max_width)
        return Block((*title, *words), max_width)
    levels = part.lines - len(title) - 3 if part.lines else 0
    spans = _levelled(part.arcs, _columns(pieces, part.tokens), levels)
    text: Line = [segment for piece in pieces for segment in text_line(piece.gap + piece.label)]
    light, heavy, sign = "-=v" if theme.ascii else "─━▾"
    weights = f"{light} from {share(LEAST_ARC)}  {heavy} from {share(STRONG_ARC)}"
    left_out = len(part.arcs) - len(spans)
    legend = f"{weights}  {sign} attended to" + f" · {left_out} weaker left out" * bool(left_out)
    below = text_line((theme.spell(legend), DIM))
    return Block((*title, *_canvas(spans, theme), text, below), max_width)


def arc_words(part: Arcs) -> list[str]:
    """Return each arc as a string such as ``it → because .99``, the largest weight first."""
    return [
        f"{_word(part.tokens, arc.query)} → {_word(part.tokens, arc.key)} {share(arc.weight)}"
        for arc in sorted(part.arcs, key=lambda arc: -arc.weight)
    ]


def _word(tokens: Tokens, word: range) -> str:
    pieces = tokens.texts[word.start : word.stop]
    return word_label(piece.removeprefix("##") for piece in pieces)


def _pieces(tokens: Tokens, theme: Theme) -> list[TextPiece]:
    blank = Map("", np.full((1, len(tokens)), np.nan), Tokens.bare((0,)), tokens)
    return pieces_of(blank, theme, 10**6)


def _columns(pieces: Sequence[TextPiece], tokens: Tokens) -> list[tuple[int, int]]:
    """Return the first and last character position of each token's piece in the line."""
    ends_of: list[tuple[int, int]] = []
    column = 0
    ends = [*(piece.first for piece in pieces[1:]), len(tokens)]
    for piece, end in zip(pieces, ends, strict=True):
        first = column + width(piece.gap)
        column += piece.width
        ends_of += [(first, max(column - 1, first))] * (end - piece.first)
    return ends_of


def _levelled(
    arcs: Sequence[Arc], columns: Sequence[tuple[int, int]], most: int = 0
) -> list[_Span]:
    """Return the arcs with their levels, so that no two arcs of one level overlap.

    columns: the first and the last character position of each token. most: the highest level
        allowed, 0 for any number; the weakest arcs are left out until the others fit.
    """

    def middle(word: range) -> int:
        return (columns[word.start][0] + columns[word.stop - 1][1]) // 2

    kept = sorted(arcs, key=lambda arc: -arc.weight)
    while True:
        spans: list[_Span] = []
        ends = [(arc, middle(arc.query), middle(arc.key)) for arc in kept]
        for arc, start, end in sorted(ends, key=lambda drawn: abs(drawn[1] - drawn[2])):
            new = _Span(arc, start, end, 1)
            below = [s.level for s in spans if s.left < new.right and new.left < s.right]
            spans += [new._replace(level=1 + max(below, default=0))] if start != end else []
        if not most or not kept or max((span.level for span in spans), default=0) <= most:
            return spans
        kept.pop()


def _canvas(spans: Sequence[_Span], theme: Theme) -> Iterator[Line]:
    """Yield the terminal lines of the arcs, top first, then the line of end signs over the text."""
    marks: dict[tuple[int, int], int] = defaultdict(int)
    heavy: dict[tuple[int, int], bool] = defaultdict(bool)
    for span in spans:
        strong = span.arc.weight >= STRONG_ARC
        inner = range(span.left + 1, span.right)
        cells = [(span.level, column, _LEFT | _RIGHT) for column in inner]
        cells += [(span.level, span.left, _RIGHT | _DOWN), (span.level, span.right, _LEFT | _DOWN)]
        sides = product(range(span.level), (span.left, span.right))
        cells += [(level, column, _UP | _DOWN) for level, column in sides]
        for level, column, directions in cells:
            marks[level, column] |= directions
            heavy[level, column] |= strong
    light, bold = (_PLAIN, _STRONG) if theme.ascii else (_LIGHT, _HEAVY)
    glyphs = {at: (bold if heavy[at] else light).get(sides, " ") for at, sides in marks.items()}
    glyphs |= dict.fromkeys(((0, span.end) for span in spans), "v" if theme.ascii else "▾")
    for level in range(max((span.level for span in spans), default=-1), -1, -1):
        last = max(column for at, column in marks if at == level)
        line = [glyphs.get((level, column), " ") for column in range(last + 1)]
        yield text_line("".join(line))


def arcs_figure(part: Arcs) -> Drawing:
    """Draw the arcs as curves over the text; a tip on each word says which word it attends to."""
    pieces = _pieces(part.tokens, Theme())
    columns = _columns(pieces, part.tokens)
    spans = _levelled(part.arcs, columns)
    tall = _SIZE * (1 + max((span.level for span in spans), default=0))
    items: list[Item] = []
    for span in spans:
        middle, half = (span.start + span.end + 1) / 2, (span.end - span.start) / 2
        points = []
        for angle in (math.pi * step / _STEPS for step in range(_STEPS + 1)):
            up = (4 + _SIZE * span.level * math.sin(angle)) * (0 < angle < math.pi)
            points.append(((middle - half * math.cos(angle)) * _LETTER, tall - up))
        strong = span.arc.weight >= STRONG_ARC
        items += [Stroke(points, _INK, dashed=not strong), Stroke(points[-1:], _INK, dots=2.4)]
    for piece in pieces:
        first = columns[piece.first][0]
        items.append(Label(first * _LETTER, tall + _SIZE, piece.label, "axis"))
    arcs = sorted(part.arcs, key=lambda arc: -arc.weight)
    for words, arc in zip(arc_words(part), arcs, strict=True):
        first, last = columns[arc.query.start][0], columns[arc.query.stop - 1][1] + 1
        items.append(Tip(first * _LETTER, tall, (last - first) * _LETTER, _SIZE + 4, words))
    legend = f"line: from {share(STRONG_ARC)}, dashed: from {share(LEAST_ARC)}, dot: attended to"
    items.append(Label(0, tall + 2.5 * _SIZE, legend, "faint"))
    across = max(sum(piece.width for piece in pieces), len(legend)) * _LETTER
    name = part.title[0][0] if part.title else "arcs"
    return Drawing(name, across, tall + 3 * _SIZE, tuple(items))
