"""How far one head's attention moves when its kind, its mask or its score is another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.records import HeadsComparison, HeadsReport

__all__ = ["compare_heads", "moved_share"]


def moved_share(weights: NDArray[np.floating], other: NDArray[np.floating]) -> NDArray[np.floating]:
    """Mean over queries of ½ Σⱼ |A[i, j] − B[i, j]|, of weights (..., query, key); in [0, 1].

    The total variation distance: the share of its attention that a query moves to other keys.
    """
    moved: NDArray[np.floating] = np.abs(weights - other).sum(-1).mean(-1) / 2
    return moved


def compare_heads(reports: Sequence[HeadsReport]) -> HeadsComparison:
    """The reports side by side, each with what its heads moved against those of the first.

    Nothing is moved where the two look from or at different texts.
    """
    first, *others = reports
    moved: list[dict[tuple[int, int], float] | None] = [None]
    for report in others:
        same = (report.record.queries, report.record.keys) == (
            first.record.queries,
            first.record.keys,
        )
        kept = {(entry.layer, entry.head) for entry in first.heads}
        moved.append(
            {
                place: float(moved_share(first.weights(*place), report.weights(*place)))
                for place in ((entry.layer, entry.head) for entry in report.heads)
                if place in kept
            }
            if same
            else None
        )
    return HeadsComparison(tuple(reports), tuple(moved))
