"""Where in the text a removal hurts: every token on the colour of its own loss delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.ablate.number_scale import NumberScale
from attnviz.draw.blocks import DIM, Block, Line, text_line
from attnviz.draw.diverging import diverging_steps, sign_glyph
from attnviz.draw.labels import fit, token_label, token_labels, visible, width
from attnviz.draw.palette import DIVERGING
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.records import Tokens

__all__ = ["token_text"]

_LISTED = 5
_LEAST_SHARE = 0.02
"""Of the largest change, from which a token is worth naming."""
_LONGEST_NAME = 16
_INDENT = 2


@dataclass(frozen=True)
class _Piece:
    """A token as it stands in the text: the blank before it, and its label."""

    gap: str
    label: str
    delta: float

    @property
    def width(self) -> int:
        return width(self.gap) + width(self.label)


def token_text(
    tokens: Tokens, deltas: NDArray[np.floating], limit: float, theme: Theme, room: int
) -> Block:
    """The text in ``room`` columns, coloured, and the tokens with the largest changes in words.

    deltas: the loss delta of each token in nats, shape (token,), NaN where the model was not asked.
    limit: the size at which colours are full.
    Without colour a line of glyphs stands under each line of text.
    """
    theme = replace(theme, palette=DIVERGING)
    pieces = _pieces(tokens, deltas, theme, room - _INDENT)
    lines: list[Line] = []
    for row in _rows(pieces, room - _INDENT):
        lines.append([Segment(" " * _INDENT)])
        marks = " " * _INDENT
        for piece in row:
            lines[-1] += _drawn(piece, limit, theme)
            marks += _marks(piece, limit, theme)
        if not theme.colour:
            lines.append(text_line(marks.rstrip()))
    lines += _extremes(tokens, deltas, theme, room)
    return Block(tuple(lines), room)


def _pieces(tokens: Tokens, deltas: NDArray[np.floating], theme: Theme, room: int) -> list[_Piece]:
    pieces: list[_Piece] = []
    labels = token_labels(tokens, theme.encoding)
    for place, (text, delta) in enumerate(zip(tokens.texts, deltas.tolist(), strict=True)):
        label = labels[place]
        label = fit(label, room - 1, theme.ellipsis) if width(label) >= room else label
        beside_special = tokens.special[place] or (place > 0 and tokens.special[place - 1])
        apart = beside_special or (text.startswith(" ") and text.strip(" ") != "")
        pieces.append(_Piece(" " if apart and place else "", label, delta))
    return pieces


def _rows(pieces: Sequence[_Piece], room: int) -> list[list[_Piece]]:
    """The pieces in lines; a line breaks before a word where it can, or else inside of it."""
    rows: list[list[_Piece]] = [[]]
    used = 0
    for word in _words(pieces):
        length = sum(piece.width for piece in word)
        if used and used + length > room:
            rows.append([])
            used = 0
        for piece in word:
            if used and used + piece.width > room:
                rows.append([])
                used = 0
            if not used:
                piece = _Piece("", piece.label, piece.delta)
            rows[-1].append(piece)
            used += piece.width
    return rows


def _words(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    words: list[list[_Piece]] = []
    for piece in pieces:
        if piece.gap or not words:
            words.append([])
        words[-1].append(piece)
    return words


def _drawn(piece: _Piece, limit: float, theme: Theme) -> list[Segment]:
    gap = [Segment(piece.gap)] if piece.gap else []
    if np.isnan(piece.delta):
        return [*gap, Segment(piece.label, DIM)]
    if not theme.colour:
        return [*gap, Segment(piece.label)]
    step = int(diverging_steps(np.array(piece.delta), limit))
    return [*gap, theme.cells(step, width(piece.label), piece.label)]


def _marks(piece: _Piece, limit: float, theme: Theme) -> str:
    """The glyphs under a piece; blanks where it was not measured."""
    glyph = " " if np.isnan(piece.delta) else sign_glyph(piece.delta, limit, theme.ascii)
    return piece.gap + glyph * width(piece.label)


def _extremes(tokens: Tokens, deltas: NDArray[np.floating], theme: Theme, room: int) -> list[Line]:
    """The tokens whose loss rises most and, in a line of their own, those whose loss falls most."""
    order = np.argsort(-np.nan_to_num(deltas), kind="stable")
    most = float(np.nanmax(np.abs(deltas), initial=0.0))
    least = _LEAST_SHARE * most
    scale = NumberScale(most)
    lines: list[Line] = []
    for title, places in (
        ("hurts most at", [place for place in order if deltas[place] > least]),
        ("helps most at", [place for place in order[::-1] if deltas[place] < -least]),
    ):
        shown = [
            f"{_name(tokens, int(place), theme)} {scale.text(float(deltas[place]))}"
            for place in places[:_LISTED]
        ]
        if shown:
            unit = f" x 1e{scale.power} nats" if scale.power else " nats"
            parts = [f"{title}: {shown[0]}", *shown[1:-1], shown[-1] + unit]
            if len(shown) == 1:
                parts = [f"{title}: {shown[0]}{unit}"]
            for line in wrapped([(part, False) for part in parts], room - _INDENT, theme):
                lines.append([Segment(" " * _INDENT), *line])
    return lines


def _name(tokens: Tokens, place: int, theme: Theme) -> str:
    """A token and its place, such as ``Mary (27)``; a piece within its word: ``A[ld]er (20)``."""
    label = token_label(tokens.texts[place], theme.encoding)
    before, after = _rest_of_word(tokens, place)
    if before or after:
        label = visible(f"{before}[{tokens.texts[place].strip()}]{after}", theme.encoding)
    label = fit(label, _LONGEST_NAME, theme.ellipsis) if width(label) > _LONGEST_NAME else label
    return f"{label} ({place})"


def _rest_of_word(tokens: Tokens, place: int) -> tuple[str, str]:
    """The letters before and behind a piece that stands inside of a word; empty elsewhere."""
    texts = tokens.texts
    if not texts[place].strip().isalpha():
        return "", ""
    before = after = ""
    at = place
    while at > 0 and not texts[at].startswith(" ") and texts[at - 1].strip().isalpha():
        at -= 1
        before = texts[at].strip() + before
    at = place + 1
    while at < len(texts) and texts[at].isalpha():
        after += texts[at]
        at += 1
    return before, after
