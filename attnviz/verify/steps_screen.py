"""The attention step by step: shapes always, numbers where they fit on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line, flow, stack
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.verify.records import Matrix, Step, Verification
from attnviz.verify.signs import in_signs

__all__ = ["MOST", "axes_words", "matrix_rows", "numbers_shown", "single_matrices", "steps_block"]

MOST = 8
"""Tokens, and numbers of a token, up to which paper can follow."""

_DECIMALS = 3


def numbers_shown(found: Verification) -> bool:
    """Whether the steps are small enough for their numbers."""
    sizes = found.sizes
    return sizes is not None and max(sizes.tokens, sizes.d_model) <= MOST


def steps_block(found: Verification, theme: Theme, room: int) -> Block:
    """Every step in order, in ``room`` columns."""
    numbers = numbers_shown(found)
    hidden = "later tokens are hidden" if found.causal else "no token is hidden"
    title = f"Step by step: one text, {hidden}"
    lines = [[Segment(piece, BOLD)] for piece in at_blanks(title, room, "", theme.ellipsis)]
    blocks = [_step(place, step, numbers, theme, room) for place, step in enumerate(found.steps, 1)]
    body = stack(blocks, gap=1 if numbers else 0)
    if numbers:
        told = (
            f"decimals are rounded to {_DECIMALS}: on paper the last one may differ by one or two"
        )
    else:
        told = f"numbers are shown up to {MOST} tokens and a d_model of {MOST}"
    foot = [[Segment(piece, DIM)] for piece in at_blanks(told, room, "", theme.ellipsis)]
    return stack([Block(tuple(lines), room), body, Block(tuple(foot), room)])


def axes_words(step: Step) -> str:
    """The shape of what a step finds, such as ``heads × tokens × head_dim: 2 × 3 × 2``."""
    shape = step.found[0].shape
    if len({matrix.shape for matrix in step.found}) > 1:
        shape = step.found[-1].shape
    names = " × ".join(f"({name})" if "×" in name else name for name in step.axes)
    return f"{names}: {' × '.join(map(str, shape))}"


def _step(place: int, step: Step, numbers: bool, theme: Theme, room: int) -> Block:
    parts = [(f"{place:>2} {step.name}", True), (step.formula, False), (axes_words(step), False)]
    parts += [(step.note, False)] if step.note else []
    head = wrapped([(in_signs(text, theme), bold) for text, bold in parts], room, theme)
    heading = Block(tuple(head), room)
    if not numbers:
        return heading
    matrices = [_matrix(one, theme, room - 3) for one in single_matrices(step)]
    drawn = flow(matrices, room - 3, 3)
    indented = tuple([Segment("   "), *line] if line else line for line in drawn.lines)
    return stack([heading, Block(indented, room)], gap=0)


def single_matrices(step: Step) -> Iterator[Matrix]:
    """The step's arrays as matrices, one a head, under the names they are shown by."""
    for matrix in (*step.given, *step.found):
        if matrix.values.ndim == 2:
            yield matrix
            continue
        for head, values in enumerate(matrix.values):
            yield Matrix(f"{matrix.symbol} head {head}", values)


def matrix_rows(values: NDArray[np.floating]) -> list[list[str]]:
    """A matrix as texts: whole numbers as such, else all with the same decimals."""
    finite = values[np.isfinite(values)]
    whole = bool((finite == np.round(finite)).all())
    decimals = 0 if whole else _DECIMALS
    return [[_number(float(value), decimals) for value in row] for row in values]


def _number(value: float, decimals: int) -> str:
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _matrix(matrix: Matrix, theme: Theme, room: int) -> Block:
    rows = [[in_signs(cell, theme) for cell in row] for row in matrix_rows(matrix.values)]
    widest = max(width(cell) for row in rows for cell in row)
    lines: list[Line] = [[Segment(_row(row, widest, theme, room))] for row in rows]
    caption = in_signs(matrix.symbol, theme)
    across = min(max(width(caption), (widest + 1) * len(rows[0]) - 1), room)
    return Block(
        ([Segment(fit(caption, min(width(caption), room), theme.ellipsis), DIM)], *lines), across
    )


def _row(cells: Sequence[str], widest: int, theme: Theme, room: int) -> str:
    text = " ".join(" " * (widest - width(cell)) + cell for cell in cells)
    return text if width(text) <= room else fit(text, room, theme.ellipsis)
