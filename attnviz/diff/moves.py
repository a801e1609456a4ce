"""What went up or down in a head, and which of these signs are more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.diff.records import HeadChange, Move
from attnviz.measures.bootstrap import LEAST_TEXTS, benjamini_hochberg, sign_flip_p

Values = NDArray[np.float64]

_RATE = 0.05
"""Of false ones among the signs that are called significant."""


def with_moves(
    changes: Sequence[HeadChange], effects: Values | None, seed: int
) -> tuple[tuple[HeadChange, ...], int]:
    """The changes with what moved in them, and how many signs were tested.

    effects: change of the ablation effect, (text, change). Tested are the scores behind the labels,
    in A or B, of the heads that changed beyond the floor, and the effects of all heads, by sign
    flips over paired texts; all of them are one family, whose false-discovery rate is held to 5 %.
    """
    found: list[tuple[int, str, Values]] = []
    for place, change in enumerate(changes):
        if change.differs:
            found += [(place, name, values) for name, values in _paired(change)]
    if effects is not None and len(effects) >= LEAST_TEXTS:
        found += [(place, "loss_delta", effects[:, place]) for place in range(len(changes))]
    p = np.ones(len(found))
    for texts in {len(values) for _, _, values in found}:
        same = [place for place, (_, _, values) in enumerate(found) if len(values) == texts]
        p[same] = sign_flip_p(np.stack([found[place][2] for place in same], axis=1), seed)
    clear = benjamini_hochberg(p) <= _RATE
    moves: dict[int, list[Move]] = {}
    for (place, name, values), chance, significant in zip(found, p, clear, strict=True):
        move = Move(name, float(values.mean()), float(chance), len(values), bool(significant))
        moves.setdefault(place, []).append(move)
    told = (
        replace(change, moves=tuple(moves.get(place, ()))) for place, change in enumerate(changes)
    )
    return tuple(told), len(found)


def _paired(change: HeadChange) -> Iterator[tuple[str, Values]]:
    """The differences over texts of the scores behind a head's labels, where texts are paired."""
    for name in dict.fromkeys((change.a.label, change.b.label)):
        if name is None:
            continue
        one, other = change.a.by_text.get(name, ()), change.b.by_text.get(name, ())
        if len(one) == len(other) >= LEAST_TEXTS:
            yield name, np.asarray(other) - np.asarray(one)
