"""Run a model over texts and hand over its attention in blocks of queries, never all at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.row_observer import (
    BLOCK_CELLS,
    RowObserver,
    hand_over,
    rows_of_a_block,
)
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel, RowModel
from attnviz.records import Tokens

__all__ = ["observe_rows"]


def observe_rows(
    model: Model,
    observer: RowObserver,
    texts: Sequence[Tokens],
    targets: Sequence[Tokens] = (),
    *,
    cells: int = BLOCK_CELLS,
) -> None:
    """Run ``model`` over texts of one length (and targets of one length) in a single pass.

    targets: the decoder's texts of an encoder–decoder, for its kinds ``decoder`` and ``cross``.
    cells: weights of a block.

    Raises UnsupportedError where the attention, or with it the norms, cannot be had; UsageError
    where a model can only be observed whole and the memory does not hold that.
    """
    if isinstance(model, RowModel):
        _observe_numpy(model, observer, texts, cells)
    elif isinstance(model, NumpyModel):
        _observe_whole(model, observer, texts, cells)
    else:
        from attnviz.engine.row_blocks_torch import observe_rows_torch  # torch only where needed

        observe_rows_torch(model, observer, texts, targets, cells)


def _observe_numpy(
    model: RowModel, observer: RowObserver, texts: Sequence[Tokens], cells: int
) -> None:
    def observe(
        layer: int,
        start: int,
        weights: NDArray[np.floating],
        norms: NDArray[np.floating] | None,
    ) -> None:
        for text, block in enumerate(weights):
            moved = None if norms is None else norms[text]
            observer.observe(text, "self", layer, start, block, moved)

    model.run_rows(
        [text.ids for text in texts],
        rows_of_a_block(len(texts), model.info.heads, len(texts[0]), cells),
        lambda layer: observer.wants("self", layer),
        observe,
        norms=observer.norms,
    )


def _observe_whole(
    model: NumpyModel, observer: RowObserver, texts: Sequence[Tokens], cells: int
) -> None:
    if observer.norms:
        raise UnsupportedError(
            f"{model.info.name!r} does not tell what its values move: choose another view"
        )
    for number, tokens in enumerate(texts):
        take = partial(_take_whole, observer, number, cells)
        model.run(tokens, lambda layer: observer.wants("self", layer), take)


def _take_whole(
    observer: RowObserver, text: int, cells: int, layer: int, weights: NDArray[np.floating]
) -> None:
    hand_over(observer, text, "self", layer, weights, None, cells)
