"""Shows pictures in all their pixels, over their half blocks, where the terminal can do that.

The half blocks are printed first and give each picture its place: a terminal that shows nothing
else still has them. kitty reads PNG; sixels are made by textual-image, of the extra ``image``.
"""

from __future__ import annotations

import os
import shutil
import sys
from base64 import b64encode
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from attnviz.draw.blocks import Block
from attnviz.draw.picture import MARK
from attnviz.draw.svg import picture_png
from attnviz.draw.theme import Theme

Protocol = Literal["kitty", "sixel"]

_KITTY = ("xterm-kitty", "xterm-ghostty")
_SIXEL = ("foot", "foot-extra", "mlterm", "contour", "WezTerm", "iTerm.app", "mintty")
"""The terminals, by TERM or TERM_PROGRAM, that have a protocol and answer what they are asked."""

_ELSEWHERE = (
    *("SSH_CONNECTION", "SSH_TTY", "TMUX", "STY", "ZELLIJ", "CI"),
    *("NVIM", "VIM_TERMINAL", "INSIDE_EMACS"),
)
"""The variables of a screen that is not the terminal's own: pixels may be lost on their way."""

_CELL = (20, 10)
"""The pixels of a character that kitty gets; it scales them to its own."""

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
            mark = segment.style.meta.get(MARK) if segment.style else None
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
