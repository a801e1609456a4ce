"""A text coloured by one value a token, on paper."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attnviz.draw.coloured_text import Piece, extremes, pieces_of, rows_of, tint_of
from attnviz.draw.document import Map
from attnviz.draw.drawing import Drawing, Item, Label, Tip, tinted
from attnviz.draw.labels import width
from attnviz.draw.theme import Theme

_LETTER, _ROW, _ACROSS = 6.7, 18.0, 110


def text_figure(shown: Map) -> Drawing:
    """The text of a map of one query, a value in the tip of each token."""
    words = " · ".join(text for text, _ in (*shown.words, *shown.below) if text not in shown.name)
    items: list[Item] = [Label(0, 14, shown.name, "title")]
    items += [Label(0, 31, words, "faint")] if words else []
    y = 38.0 if words else 22.0
    for row in rows_of(pieces_of(shown, Theme(), _ACROSS), _ACROSS):
        x = 0.0
        for piece in row:
            x += width(piece.gap) * _LETTER
            items += _placed(piece, shown, x, y)
            x += width(piece.label) * _LETTER
        y += _ROW
    for said in extremes(shown):
        y += 16
        items.append(Label(0, y - 2, " · ".join(said), "faint"))
    return Drawing(shown.name, _ACROSS * _LETTER, y + 6, tuple(items))


def _placed(piece: Piece, shown: Map, x: float, y: float) -> Iterator[Item]:
    across, tint = width(piece.label) * _LETTER, tint_of(piece.value, shown)
    if tint is not None:
        yield tinted(x, y, across, _ROW - 2, tint)
    known = not math.isnan(piece.value)
    yield Label(x, y + 12, piece.label, "axis" if known else "axis-faint", on=tint)
    if known:
        yield Tip(x, y, across, _ROW, f"{piece.label} ({piece.place}): {piece.value:.4g}")
