"""Draws a map of one query as a text: each token stands on a ground in the colour of its value.

Without colour a line of glyphs stands under each line of text on a terminal. Tokens with values
close to zero have no ground, so that the text stays readable on dark and on light screens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, text_line
from attnviz.draw.document import Map, Scale
from attnviz.draw.grid import legend_block, scale_samples
from attnviz.draw.labels import (
    cut,
    fit,
    numbered,
    token_label,
    token_labels,
    visible,
    whole_characters,
    width,
    word_label,
)
from attnviz.draw.maps import signed_tint, weight_steps
from attnviz.draw.palette import STEPS, Tint
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import share
from attnviz.draw.regions import band_line, region_marks
from attnviz.draw.theme import Theme, sign_glyph, strength
from attnviz.records import Tokens

_INDENT = 2
_LISTED = 5
_LEAST_SHARE = 0.02  # the share of the largest value from which a token is named
_LONGEST_NAME = 16


class TextPiece(NamedTuple):
    """One token as it stands in the text, or several tokens whose bytes make up one character.

    gap: the blank before it. label: its text. first: the index of its first token. value: the
        number that colours it; NaN if not measured.
    """

    gap: str
    label: str
    first: int
    value: float

    @property
    def width(self) -> int:
        return width(self.gap) + width(self.label)


def text_block(shown: Map, theme: Theme, max_width: int, lines: int = 0) -> Block:
    """Return the text of a map of one query, and its largest values in words.

    lines: the most lines, 0 for all. A longer text is cut to the lines with the largest values; if
        at least two lines remain, a further line says which tokens are shown.
    """
    pieces = pieces_of(shown, theme, max_width - _INDENT - 2)
    rows = rows_of(pieces, max_width - _INDENT - 2)
    tall = (1 if theme.colour else 2) + bool(shown.keys.regions)
    most = max(lines // tall, 1) if lines else len(rows)
    captioned = most < len(rows) and lines > 2 * tall
    most = (lines - 1) // tall if captioned else most
    start = _strongest_window(rows, most)
    if 0 < start == len(rows) - most:  # the lines at the end of the text are full
        rows = [rows[0], *_last_rows(pieces, max_width - _INDENT - 2, most)]
        start = 1
    kept = rows[start : start + most]
    drawn: list[Line] = []
    if captioned:
        last = kept[-1][-1].first
        words = theme.spell(
            f"tokens {kept[0][0].first}–{last} of {len(shown.keys)}, around the peak"
        )
        drawn.append(text_line((" " * _INDENT + fit(words, max_width - _INDENT).rstrip(), DIM)))
    for row in kept:
        before = theme.ellipsis if row is kept[0] and start else ""
        drawn.append([Segment(before.ljust(_INDENT)), *pieces_line(row, shown, theme)])
        after = row is kept[-1] and start + most < len(rows)
        drawn[-1] += [Segment(" " + theme.ellipsis)] * after
        if not theme.colour:
            marks = " " * _INDENT + marks_line(row, shown, theme)
            drawn.append(text_line(marks.rstrip()))
        if regions := shown.keys.regions:
            cells = [(regions[piece.first], piece.width) for piece in row]
            drawn.append([Segment(" " * _INDENT), *band_line(cells, region_marks(regions), theme)])
    if not lines:
        for names in extremes(shown, theme.encoding):
            for line in wrapped([(name, False) for name in names], max_width - _INDENT, theme):
                drawn.append([Segment(" " * _INDENT), *line])
    return Block(tuple(drawn), max_width)


def extremes(shown: Map, encoding: str = "utf-8") -> Iterator[list[str]]:
    """Yield the tokens with the largest values as lists of strings: one list for each sign.

    For example ``highest: Mary (27) +1.20``, then ``A[ld]er (20) +0.31``.
    shown: a map of one query. encoding: of the output; characters that it lacks are escaped.
    """
    values, labels = shown.weights[0], token_labels(shown.keys, encoding)
    order = np.argsort(-np.nan_to_num(values), kind="stable").tolist()
    least = _LEAST_SHARE * float(np.nanmax(np.abs(values), initial=0.0))
    ends = [("highest", order, 1)] + [("lowest", order[::-1], -1)] * bool(shown.limit)
    for title, indices, sign in ends:
        named = []
        for index in indices[:_LISTED]:
            if sign * values[index] > least:
                name = _name(shown.keys, labels[index], index, encoding)
                named.append(f"{name} {_number(values[index], shown)}")
        if named:
            yield [f"{title}: {named[0]}", *named[1:]]


def scale_block(scale: Scale, theme: Theme, max_width: int, more: str = "") -> Block:
    """Return a legend of the colours, or of the glyphs that replace them, followed by ``more``."""

    def glyph(level: float) -> str:
        return theme.glyph(round(level * (STEPS - 1)))

    samples = scale_samples(scale, theme, max_width, glyph)
    return legend_block([*samples, *([text_line((more, DIM))] if more else [])], max_width)


# From tokens to lines ------------------------------------------------------------------------


def pieces_of(shown: Map, theme: Theme, max_width: int) -> list[TextPiece]:
    """Return the pieces of a text of keys with their weights, each at most ``max_width`` wide."""
    tokens = shown.keys
    labels = token_labels(tokens, theme.encoding)
    texts = tokens.spaced
    blanks = any(text.startswith(" ") for text in texts)
    pieces: list[TextPiece] = []
    for first, last in whole_characters(tokens.texts):
        values = shown.weights[0, first:last]
        value = max(values.tolist(), key=lambda size: -1.0 if math.isnan(size) else abs(size))
        text = texts[first]
        label = labels[first]
        if last - first > 1:
            label = word_label(tokens.texts[first:last], theme.encoding)
        elif text and not text.strip(" "):
            label = text  # within a text a token needs no sign for its blank, as it does on an axis
        label = cut(label, max_width - 1, theme.ellipsis)
        beside_special = tokens.special[first] or (first > 0 and tokens.special[first - 1])
        if blanks:
            begins = text.startswith(" ") and text.strip(" ") != ""
        else:
            begins = not text.startswith("##") and any(map(str.isalnum, text))
        apart = beside_special or begins
        pieces.append(TextPiece(" " if apart and first else "", label, first, value))
    return pieces


def rows_of(pieces: Sequence[TextPiece], max_width: int) -> list[list[TextPiece]]:
    """Return the pieces in lines, broken before words if possible, else within words."""
    rows: list[list[TextPiece]] = [[]]
    used = 0
    for word in _by_word(pieces):
        length = sum(piece.width for piece in word)
        if used and used + length > max_width:
            rows.append([])
            used = 0
        for piece in word:
            if used and used + piece.width > max_width:
                rows.append([])
                used = 0
            if not used:
                piece = piece._replace(gap="")
            rows[-1].append(piece)
            used += piece.width
    return rows


def _by_word(pieces: Sequence[TextPiece]) -> list[list[TextPiece]]:
    words: list[list[TextPiece]] = []
    for piece in pieces:
        if piece.gap or not piece.label.strip() or not words:
            words.append([])
        words[-1].append(piece)
    return words


def _last_rows(pieces: Sequence[TextPiece], max_width: int, most: int) -> list[list[TextPiece]]:
    """Return the end of the text in at most ``most`` lines."""
    words = _by_word(pieces)
    first = len(words) - 1
    while len(rows_of([piece for word in words[first - 1 :] for piece in word], max_width)) <= most:
        first -= 1
    return rows_of([piece for word in words[first:] for piece in word], max_width)


def _strongest_window(rows: Sequence[Sequence[TextPiece]], most: int) -> int:
    """Return the first of ``most`` consecutive rows with the largest sum of absolute values."""
    if most >= len(rows):
        return 0
    sizes = [np.nansum([abs(piece.value) for piece in row]) for row in rows]
    sums = [float(sum(sizes[start : start + most])) for start in range(len(rows) - most + 1)]
    return sums.index(max(sums))


# How a piece looks ---------------------------------------------------------------------------


def tint_of(value: float, shown: Map) -> Tint | None:
    """Return the background colour of a token with this value; None if it is close to zero."""
    full = shown.limit or shown.full
    if math.isnan(value) or not strength(value, full):
        return None
    if shown.limit:
        return signed_tint(value, full)
    return Tint(int(weight_steps(np.array(value / full))))


def pieces_line(pieces: Sequence[TextPiece], shown: Map, theme: Theme) -> Line:
    """Return pieces in one line, each on the background of its value if the theme has colour."""
    line: Line = []
    for piece in pieces:
        tint = tint_of(piece.value, shown)
        style = DIM if math.isnan(piece.value) else None
        if tint is not None and theme.colour:
            style = theme.ground(tint)
        line += [*([Segment(piece.gap)] if piece.gap else []), Segment(piece.label, style)]
    return line


def marks_line(pieces: Sequence[TextPiece], shown: Map, theme: Theme) -> str:
    """Return the line of glyphs that shows the values below the pieces where there is no colour."""
    marks = ""
    for piece in pieces:
        if math.isnan(piece.value):
            glyph = " "
        elif shown.limit:
            glyph = sign_glyph(piece.value, shown.limit, theme.ascii)
        else:
            glyph = theme.glyph(int(weight_steps(np.array(piece.value / shown.full))))
        marks += piece.gap + glyph * width(piece.label)
    return marks


def _number(value: float, shown: Map) -> str:
    """Return a value as a string, with as many decimals as the largest value of the map needs."""
    if not shown.limit:
        return share(value)
    if shown.limit < 0.01:
        return f"{value:+.1e}"
    return f"{value:+.{2 if shown.limit >= 0.5 else 3}f}"


def _name(tokens: Tokens, label: str, index: int, encoding: str) -> str:
    """Return a token with its index, such as ``Mary (27)``; within a word, ``A[ld]er (20)``."""
    before, after = _rest_of_word(tokens, index)
    if (before or after) and label == token_label(tokens.texts[index], encoding):
        piece = tokens.texts[index].removeprefix("##").strip()
        label = visible(f"{before}[{piece}]{after}", encoding)
    ellipsis = "…" if encoding.lower().startswith("utf") else "~"
    return numbered(cut(label, _LONGEST_NAME, ellipsis), index)


def _rest_of_word(tokens: Tokens, index: int) -> tuple[str, str]:
    """Return the letters of a word before and after one of its tokens; both empty for a whole word.

    index: that of the token. If tokens show no blanks, those that begin with ``##``, as in
        WordPiece, continue a word.
    """
    texts = tokens.spaced
    blanks = any(text.startswith(" ") for text in texts)

    def goes_on(at: int) -> bool:
        text = texts[at] if blanks else texts[at].removeprefix("##")
        return text.isalpha() and (blanks or text != texts[at])

    bare = [text.removeprefix("##").strip() for text in texts]
    if not bare[index].isalpha():
        return "", ""
    first, end = index, index + 1
    while first > 0 and goes_on(first) and bare[first - 1].isalpha():
        first -= 1
    while end < len(texts) and goes_on(end):
        end += 1
    return "".join(bare[first:index]), "".join(bare[index + 1 : end])
