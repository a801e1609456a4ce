"""A map as a small PNG image, one pixel a cell (PNG specification, W3C 2003)."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from attnviz.render.palette import colour_table

__all__ = ["png", "png_uri"]


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(steps: NDArray[np.intp], palette: str) -> bytes:
    """Steps (rows, columns) of a palette as an image; −1 is transparent.

    An image has 256 entries and blank needs one of them: steps 0 and 1, whose colours the eye
    cannot tell apart, share theirs.
    """
    rows, columns = steps.shape
    table = bytes(np.array(colour_table(palette), dtype=np.uint8))
    entries = np.where(steps < 0, 0, np.maximum(steps, 1)).astype(np.uint8)
    lines = np.hstack([np.zeros((rows, 1), dtype=np.uint8), entries])  # 0: no filter
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", table),
            _chunk(b"tRNS", b"\0"),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def png_uri(steps: NDArray[np.intp], palette: str) -> str:
    """The image as a ``data:`` address, which a page carries within itself."""
    return "data:image/png;base64," + base64.b64encode(png(steps, palette)).decode("ascii")
