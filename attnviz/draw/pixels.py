"""Pictures as pixels (row, column, 3): how large they are drawn, and as fewer of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    """Return (cell, pixel) the share of each pixel of an axis in each of the cells that replace it.

    size, cells: how many pixels and cells the axis has.
    """
    ends = np.arange(1, cells + 1)[:, None] * (size / cells)
    pixels = np.arange(size)[None, :]
    common = np.minimum(ends, pixels + 1) - np.maximum(ends - size / cells, pixels)
    return np.asarray(np.maximum(common, 0.0) * (cells / size))
