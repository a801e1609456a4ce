"""Draws pictures with the weights of their patches on a terminal, in half blocks.

Every half of a character is a pixel. The weights lie over the picture as in every other outlet,
see ``palette.veils``: strong ones hide it, weak ones darken it. Without colour, or where only ASCII
can be written, the weights are drawn alone. A terminal that can show all pixels gets them after the
half blocks, which give each picture its rectangle and stay where nothing else can be shown.
"""

from __future__ import annotations

import os
import shutil
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import groupby
from math import ceil, isnan
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import Block, Line, beside, flow, stack
from attnviz.draw.coloured_text import scale_block
from attnviz.draw.document import Picture, Pictures, Words
from attnviz.draw.maps import weight_steps
from attnviz.draw.numbers import counted
from attnviz.draw.palette import STEPS, accent_colour, veils
from attnviz.draw.prose import words_block, words_lines
from attnviz.draw.svg import picture_png
from attnviz.draw.theme import Theme
from attnviz.records import Bools, Floats

_MARK = "picture"  # the key under which the style of a picture's first half blocks has its number
_GAP = 2
_MOST_LINES, _LEAST_LINES, _AROUND = 40, 6, 6
"""The lines of a picture at most and at least, and those that a screen needs beside it."""

_LEAST_COLUMNS, _TITLE = 16, 20
"""The columns from which a picture is readable, and those of the words above it at least."""

_SMALL, _LARGEST_SMALL, _SMALL_LINES = 13, 24, 12
"""The columns of a small picture with its words, such as ``L0H3 sink .72``, and its most lines."""

_LINE = (255, 255, 255)
_OUTLINED, _OUTSIDE = 3, 0.55
"""The columns of a patch from which a line fits around some; else what is outside is darker."""

_LEFT_OUT = "the image itself is left out: it needs 256 colours and block characters"

_CUBE = np.array([0, 95, 135, 175, 215, 255])
"""The parts of red, green and blue in colours 16 to 231 of a terminal of 256 colours."""


def sampled(shown: Picture, weights: Floats, rows: int, columns: int) -> Floats:
    """Return the weight at each of (rows, columns) cells of a picture; NaN where there is none.

    weights: (row, column) of the patches. A cell has the weight of the patch in its centre, or the
    largest weight of the patches whose centres lie in it. Patches beyond the picture, of what its
    processor added around it, are left out.
    """
    left, top, right, bottom = shown.box
    inside, nearest, cell, own = [], [], [], []
    axes = (rows, weights.shape[0], top, bottom), (columns, weights.shape[1], left, right)
    for cells, patches, first, last in axes:
        patch = np.floor(((np.arange(cells) + 0.5) / cells - first) / (last - first) * patches)
        inside.append((patch >= 0) & (patch < patches))
        nearest.append(np.clip(patch, 0, patches - 1).astype(np.intp))
        middle = first + (np.arange(patches) + 0.5) / patches * (last - first)
        own.append((middle >= 0) & (middle < 1))
        cell.append((middle[own[-1]] * cells).astype(np.intp))
    values = np.where(np.outer(*inside), weights[np.ix_(*nearest)], np.nan)
    np.fmax.at(values, np.ix_(*cell), weights[np.ix_(*own)])
    return values


def picture_steps(shown: Picture, weights: Floats) -> NDArray[np.intp]:
    """Return the colour level of each weight, of any shape, by its root; −1 for NaN."""
    assert shown.weights is not None
    largest = float(np.fmax.reduce(shown.weights, axis=None, initial=0.0))
    return weight_steps(weights / (shown.full or largest or 1.0))


def _neighbours(mask: Bools) -> tuple[Bools, ...]:
    """Return for each cell whether that above, below, at the left and at the right is in a mask."""
    wide = np.pad(mask, 1)
    return wide[:-2, 1:-1], wide[2:, 1:-1], wide[1:-1, :-2], wide[1:-1, 2:]


def _marked(shown: Picture, rows: int, columns: int) -> Bools:
    """Return a mask (rows, columns) of the border of the query's own patch."""
    if shown.mark is None or shown.weights is None:
        return np.zeros((rows, columns), bool)
    own = np.zeros(shown.weights.shape)
    own[shown.mark] = 1.0
    mask = sampled(shown, own, rows, columns) > 0
    return np.asarray(mask & ~np.logical_and.reduce(_neighbours(mask)))


# One picture ---------------------------------------------------------------------------------


def _drawn(shown: Picture, theme: Theme, lines: int, columns: int) -> list[Line]:
    """Return a picture in a number of lines and columns, or without colour its weights alone."""
    if not theme.half_blocks:
        return _glyphs(shown, theme, lines, columns)
    colours = blended(shown, theme, 2 * lines, columns)
    parts = _coarse(colours)[..., None] if theme.coarse else np.rint(colours).astype(int)
    pairs = parts.reshape(lines, 2, columns, -1).swapaxes(1, 2).reshape(lines, columns, -1)
    drawn = []
    for line in pairs.tolist():
        runs = [(len([*alike]), pair) for pair, alike in groupby(line)]
        drawn.append([Segment("▀" * times, _style(*pair)) for times, pair in runs])
    if theme.pictures is not None:
        theme.pictures.append((partial(blended, shown, theme), lines, columns))
        first, mark = drawn[0][0], Style(meta={_MARK: len(theme.pictures) - 1})
        drawn[0][0] = Segment(first.text, (first.style or mark) + mark)
    return drawn


def blended(shown: Picture, theme: Theme, high: int, wide: int) -> NDArray[np.float64]:
    """Return the pixels (high, wide, 3) of a picture with its weights and its contour on it."""
    colours = resampled(shown.pixels, high, wide)
    if shown.weights is not None:
        weights = sampled(shown, shown.weights, high, wide)
        steps, inside = picture_steps(shown, weights), weights >= shown.contour
        veil = np.array(veils(theme.palette))[steps]  # −1 has the last one
        colours = colours * (1 - veil[..., 3:]) + veil[..., :3] * veil[..., 3:]
        if wide >= _OUTLINED * _patches_across(shown):
            colours[np.logical_or.reduce(_neighbours(inside)) & ~inside] = _LINE
        elif inside.any():
            colours[~inside] *= _OUTSIDE
        colours[_marked(shown, high, wide)] = accent_colour(theme.palette)
    return colours


def _coarse(colours: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the numbers of the nearest of 256 colours: of the cube, or 24 greys, 8 + 10 n."""
    nearest = np.abs(colours[..., None] - _CUBE).argmin(axis=-1)
    grey = np.clip(np.rint((colours.mean(axis=-1) - 8) / 10), 0, 23).astype(np.intp)
    of_cube = np.square(_CUBE[nearest] - colours).sum(axis=-1)
    of_grey = np.square(8 + 10 * grey[..., None] - colours).sum(axis=-1)
    cube = 16 + nearest @ np.array([36, 6, 1])
    return np.asarray(np.where(of_grey < of_cube, 232 + grey, cube))


@lru_cache(maxsize=8192)
def _style(*parts: int) -> Style:
    """Return the style of a half block: two numbers of colours, or six parts of red to blue."""
    if len(parts) == 2:
        return Style.from_color(*map(Color.from_ansi, parts))
    return Style.from_color(Color.from_rgb(*parts[:3]), Color.from_rgb(*parts[3:]))


def _glyphs(shown: Picture, theme: Theme, lines: int, columns: int) -> list[Line]:
    """Return the weights of a picture as glyphs, a line round the contour, and Q for the query."""
    assert shown.weights is not None
    weights = sampled(shown, shown.weights, lines, columns)
    inside = weights >= shown.contour
    above, below, left, right = _neighbours(inside)
    glyphs = np.array([*map(theme.glyph, range(STEPS)), " "])[picture_steps(shown, weights)]
    across, upright = "_|" if theme.ascii else "─│"
    glyphs[(left | right) & ~inside] = upright
    glyphs[(above | below) & ~inside] = across
    glyphs[_marked(shown, lines, columns)] = "Q"
    return [[Segment("".join(line))] for line in glyphs.tolist()]


# Several pictures ----------------------------------------------------------------------------


def _size(shown: Picture, lines: int, columns: int) -> tuple[int, int]:
    """Return the largest size (lines, columns) in the given one that keeps a picture's shape."""
    high, wide = shown.pixels.shape[:2]
    across = max(min(columns, round(2 * lines * wide / high)), 1)
    return max(min(lines, round(across * high / wide / 2)), 1), across


def _patches_across(shown: Picture) -> int:
    """Return how many patches the whole width of a picture would have."""
    if shown.weights is None:
        return 0
    return round(int(shown.weights.shape[1]) / (shown.box[2] - shown.box[0]))


def _visible(part: Pictures, theme: Theme) -> list[Picture]:
    """Return the pictures that a terminal can draw: without colour those that have weights."""
    kept = (shown for shown in part.pictures if theme.half_blocks or shown.weights is not None)
    return [shown for shown in kept if shown.pixels.size]


def _plan(part: Pictures, theme: Theme, max_width: int) -> tuple[int, int, int]:
    """Return how many pictures make a row, and the most lines and columns of each of them."""
    pictures = _visible(part, theme)
    if part.small:
        patches = max(map(_patches_across, pictures), default=0)
        room = min(max(patches, _SMALL), _LARGEST_SMALL, max_width)
        across = (max_width + _GAP) // (room + _GAP)
        return max(min(across, len(pictures)), 1), part.lines or _SMALL_LINES, room
    lines = part.lines or min(max(theme.lines - _AROUND, _LEAST_LINES), _MOST_LINES)

    def readable(room: int) -> bool:
        """Return whether all pictures are large enough if they are at most this wide."""
        for shown in pictures:
            need = max(_patches_across(shown), _LEAST_COLUMNS)
            if _size(shown, lines, room)[1] < min(_size(shown, lines, max_width)[1], need):
                return False
        return True

    across = max(len(pictures), 1)
    while across > 1 and not readable((max_width + _GAP) // across - _GAP):
        across -= 1
    across = ceil(len(pictures) / ceil(len(pictures) / across)) if pictures else 1
    return across, lines, max((max_width + _GAP) // across - _GAP, 1)


def pictures_block(part: Pictures, theme: Theme, max_width: int) -> Block:
    """Return pictures side by side as far as they are readable, with a legend of their colours."""
    pictures = _visible(part, theme)
    across, lines, room = _plan(part, theme, max_width)
    shown = pictures[: across * part.rows] if part.small and part.rows else pictures
    hidden = part.hidden + len(pictures) - len(shown)
    noun = "more map" if part.small else "more image"
    below = [f"{counted(hidden, noun)}: --full"] * bool(hidden)
    if not theme.half_blocks:
        below.append(_LEFT_OUT)
        enclosed = any(not isnan(picture.contour) for picture in shown)
        below += ["─ encloses the largest"] * enclosed
        below += ["Q is the patch that looks"] * any(picture.mark is not None for picture in shown)
        below += [] if shown else [picture.alternative for picture in part.pictures]
        below = [words.replace("─", "_") for words in below] if theme.ascii else below
    key = Block((), 0)
    if part.scale is not None and shown:
        key = scale_block(part.scale, replace(theme, colour=theme.half_blocks), max_width)
    sizes = [_size(picture, lines, room) for picture in shown]
    spaces = [max(size[1], min(room, _TITLE)) for size in sizes]
    pairs = zip(shown, spaces, strict=True)
    titles = [words_lines(picture.words, theme, space) for picture, space in pairs]
    tallest, drawn = max(map(len, titles), default=0), []
    for picture, size, space, title in zip(shown, sizes, spaces, titles, strict=True):
        blank: list[Line] = [[] for _ in range(tallest - len(title))]
        remark = words_lines(picture.below, theme, space)
        drawn.append(Block((*title, *blank, *_drawn(picture, theme, *size), *remark), space))
    if part.small:
        rows = [drawn[start : start + across] for start in range(0, len(drawn), across)]
        body = stack([beside(row, _GAP) for row in rows])
    else:
        body = flow(drawn, max_width, _GAP)
    above = words_block(part.title, theme, max_width)
    remarks: Words = [(words, "faint") for words in below]
    rest = words_block(remarks, theme, max_width)
    return stack([above, body, rest, key], gap=0)


def shortened(part: Pictures, theme: Theme, max_width: int, over: int) -> Pictures:
    """Return pictures that take about ``over`` lines less, or the same object if that cannot be.

    Pictures become smaller as long as they stay readable, then the last row of them is left out.
    """
    pictures, (across, lines, room) = _visible(part, theme), _plan(part, theme, max_width)
    rows = ceil(len(pictures) / across)
    rows = min(rows, part.rows or rows) if part.small else rows
    tall = max((_size(shown, lines, room)[0] for shown in pictures), default=0)
    if tall > _LEAST_LINES and not part.small:
        return part._replace(lines=max(tall - max(over // rows, 1), _LEAST_LINES))
    fewer = max(across * (rows - ceil(over / (tall + 2))), across)
    if rows < 2:  # in a frame, small ones may have less width than that
        fewer = len(pictures) - ceil(len(pictures) / 8) if part.small else 0
    left_out = part.hidden + len(pictures) - fewer
    return part._replace(pictures=pictures[:fewer], hidden=left_out) if fewer else part


# The picture itself, which other outlets draw too: its size, and fewer pixels of it -------------

SIDES, SMALL = (420.0, 360.0), (132.0, 120.0)
"""The most pixels of a picture's width and height in a figure, and those of a small one."""

_FINEST = 1.5
"""The most pixels of the picture in a pixel of the figure: more would only make files large."""


def picture_size(pixels: NDArray[np.uint8], *, small: bool = False) -> tuple[int, int]:
    """Return the width and the height of a picture in a figure, in whole pixels."""
    high, wide = pixels.shape[:2]
    most = SMALL if small else SIDES
    scale = min(most[0] / wide, most[1] / high)
    return max(round(wide * scale), 1), max(round(high * scale), 1)


def drawn_pixels(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the pixels of a picture, fewer if the figure of this size can show fewer."""
    columns, rows = (max(round(side * _FINEST), 1) for side in size)
    if rows >= pixels.shape[0]:
        return pixels
    return np.rint(resampled(pixels, rows, columns)).astype(np.uint8)


def resampled(pixels: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.float64]:
    """Return a picture (rows, columns, 3) whose pixels are the means of the areas that they cover.

    pixels: (height, width, 3), of any size, from 0 to 255.
    """
    down, across = _shares(pixels.shape[0], rows), _shares(pixels.shape[1], columns)
    mixed = np.tensordot(down, pixels.astype(np.float64), 1)
    return np.asarray(np.moveaxis(np.tensordot(across, mixed, (1, 1)), 0, 1))


def _shares(size: int, cells: int) -> NDArray[np.float64]:
    """Return (cell, pixel): the share of each pixel of an axis in the cells that replace them."""
    ends = np.arange(1, cells + 1)[:, None] * (size / cells)
    pixels = np.arange(size)[None, :]
    common = np.minimum(ends, pixels + 1) - np.maximum(ends - size / cells, pixels)
    return np.asarray(np.maximum(common, 0.0) * (cells / size))


# All pixels, over the half blocks: kitty reads PNG, the extra ``image`` makes sixels -----------

Protocol = Literal["kitty", "sixel"]

_KITTY = ("xterm-kitty", "xterm-ghostty")
_SIXEL = ("foot", "foot-extra", "mlterm", "contour", "WezTerm", "iTerm.app", "mintty")
"""The terminals, by TERM or TERM_PROGRAM, that have a protocol and answer what they are asked."""

_ELSEWHERE = (
    *("SSH_CONNECTION", "SSH_TTY", "TMUX", "STY", "ZELLIJ", "CI"),
    *("NVIM", "VIM_TERMINAL", "INSIDE_EMACS"),
)
"""The variables of a screen that is not the terminal's own: pixels may be lost on their way."""

_CELL = (20, 10)  # the pixels of a character that kitty gets; it scales them to its own
_CHUNK = 4096


def protocol_of(console: Console) -> Protocol | None:
    """Return how the terminal shows pixels; None for half blocks.

    Only the environment is read: a terminal that is none, or an unknown one, is asked nothing.
    """
    here = console.is_terminal and sys.stdout.isatty() and sys.stdin.isatty()
    if not here or any(map(os.environ.get, _ELSEWHERE)):
        return None
    names = {os.environ.get("TERM"), os.environ.get("TERM_PROGRAM")}
    if names.intersection(_KITTY):
        return "kitty"
    return "sixel" if names.intersection(_SIXEL) and find_spec("textual_image") else None


def overlays(block: Block, theme: Theme, console: Console) -> Iterator[str]:
    """Yield what shows each picture of a block over its half blocks, once the block is printed.

    A picture that begins above the screen keeps its half blocks, as all do without a protocol or
    on lines that the terminal wraps.
    """
    protocol = protocol_of(console)
    if protocol is None or console.width > shutil.get_terminal_size().columns:
        return
    for up, line in zip(range(len(block.lines), 0, -1), block.lines, strict=True):
        column = 1
        for segment in line:
            mark = segment.style.meta.get(_MARK) if segment.style else None
            if mark is not None and up < console.height:
                draw, lines, columns = (theme.pictures or [])[mark]
                pixels = np.rint(draw(lines * _CELL[0], columns * _CELL[1])).astype(np.uint8)
                make = _in_kitty if protocol == "kitty" else _in_sixels
                image = make(pixels, lines, columns, console)
                yield f"\x1b7\x1b[{up}A\x1b[{column}G{image}\x1b8"
            column += segment.cell_length


def _in_kitty(pixels: NDArray[np.uint8], lines: int, columns: int, console: Console) -> str:
    """Return the message that shows pixels in so many lines and columns, without an answer."""
    data = b64encode(picture_png(pixels)).decode()
    facts, message = f"a=T,f=100,c={columns},r={lines},C=1,q=2,", ""
    for at in range(0, len(data), _CHUNK):
        more = int(at + _CHUNK < len(data))
        message += f"\x1b_G{facts * (at == 0)}m={more};{data[at : at + _CHUNK]}\x1b\\"
    return message


def _in_sixels(pixels: NDArray[np.uint8], lines: int, columns: int, console: Console) -> str:
    """Return the sixels that show pixels in so many lines and columns."""
    from PIL import Image
    from textual_image.renderable import SixelImage

    parts = console.render(SixelImage(Image.fromarray(pixels), width=columns, height=lines))
    return "".join(part.text for part in parts if part.text.startswith("\x1bP"))
