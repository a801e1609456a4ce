"""Where the tokens of pictures stand: the record from which every question takes names and places.

A vision model reads a picture as patches, row by row or in another order, beside tokens without a
place such as CLS and registers. A vision-language model has the tokens of pictures among those of
a text. A model's own layout makes this record (``models.layouts``); who reads the record
needs to know no family of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

TokenKind = Literal["text", "patch", "cls", "register", "newline", "padding"]
"""What a token is: of a text; a patch, or several merged ones; a token that the model adds to
every picture, for its answer (cls) or without one (register); the end of a row of patches; or what
fills a batch up, to which no other token attends."""

Box = tuple[float, float, float, float]
"""A rectangle: left, top, right and bottom, as shares of the width and the height of a picture."""

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


class Grid(NamedTuple):
    """The grid of patches that lies over a part of a picture.

    picture: the index of the picture, from 0. rows, columns: of patches. box: the part of the
    picture that the model sees in this grid. name: empty for the only grid of a picture; models
    that read a picture twice have an ``overview`` and ``tiles``.
    """

    picture: int
    rows: int
    columns: int
    box: Box = WHOLE
    name: str = ""


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """The kind and the place of each token of a sequence.

    kinds: of each token. grids: those of all pictures, in the order in which the model reads them.
    grid, row, column: (token,) the index of the grid that a patch is in, and its row and column
        there, from 0; −1 for tokens that are no patch. Several tokens may stand at one place.
    pictures: (height, width, 3), from 0 to 255, of each picture as a person sees it; empty if they
        are not known.
    """

    kinds: tuple[TokenKind, ...]
    grids: tuple[Grid, ...]
    grid: NDArray[np.intp]
    row: NDArray[np.intp]
    column: NDArray[np.intp]
    pictures: tuple[NDArray[np.uint8], ...] = ()

    def __len__(self) -> int:
        return len(self.kinds)

    def of_kind(self, *kinds: TokenKind) -> NDArray[np.intp]:
        """Return the indices of the tokens of some kinds, in their order."""
        return np.flatnonzero([kind in kinds for kind in self.kinds])

    def patches(self, grid: int) -> NDArray[np.intp]:
        """Return the indices of the tokens that are patches of a grid, in their order."""
        return np.flatnonzero(self.grid == grid)

    def at(self, grid: int, row: int, column: int) -> int | None:
        """Return the index of the first token at a place, or None if no token stands there."""
        same = (self.grid == grid) & (self.row == row) & (self.column == column)
        return int(np.argmax(same)) if same.any() else None

    def mapped(self, values: NDArray[np.floating], grid: int) -> NDArray[np.floating]:
        """Return the values (..., token) of the patches of a grid as (..., row, column).

        Tokens at one place add up. Places without a token are NaN.
        """
        _, rows, columns, *_ = self.grids[grid]
        own = self.patches(grid)
        cells = self.row[own] * columns + self.column[own]
        sums = np.zeros((rows * columns, *values.shape[:-1]), values.dtype)
        np.add.at(sums, cells, np.moveaxis(values[..., own], -1, 0))
        sums[np.setdiff1d(np.arange(rows * columns), cells)] = np.nan
        return np.moveaxis(sums, 0, -1).reshape(*values.shape[:-1], rows, columns)

    def centres(self) -> NDArray[np.float64]:
        """Return the centre (x, y) of each token in patches of its grid, NaN without a place."""
        centre = np.stack([self.column + 0.5, self.row + 0.5], axis=1)
        centre[self.grid < 0] = np.nan
        return centre

    def names(self) -> tuple[str, ...]:
        """Return a name for each token: ``CLS``, ``R1``, ``row,column`` of a patch, or empty.

        Rows and columns count from 0, in a picture's only grid. Grids after the first put their
        number in front: ``2:row,column`` is in the second. Tokens of texts have an empty name.
        """
        names, registers, classes = [], 0, 0
        for kind, grid, row, column in zip(
            self.kinds, self.grid.tolist(), self.row.tolist(), self.column.tolist(), strict=True
        ):
            if kind == "patch":
                names.append(f"{grid + 1}:" * (grid > 0) + f"{row},{column}")
            elif kind == "cls":
                classes += 1
                names.append("CLS" if classes == 1 else f"CLS{classes}")
            elif kind == "register":
                registers += 1
                names.append(f"R{registers}")
            else:
                names.append("↵" if kind == "newline" else "")
        return tuple(names)

    def taken(self, indices: Sequence[int]) -> TokenLayout:
        """Return the places of some tokens, in the order of ``indices``."""
        own = np.asarray(indices, np.intp)
        kinds = tuple(self.kinds[at] for at in own)
        places = self.grid[own], self.row[own], self.column[own]
        return TokenLayout(kinds, self.grids, *places, self.pictures)
