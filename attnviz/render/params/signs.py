"""Mathematical signs where a console carries ASCII only."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.render.blocks import Block
from attnviz.render.theme import Theme

__all__ = ["in_signs"]

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
