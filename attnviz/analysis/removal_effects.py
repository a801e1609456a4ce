"""From the pieces of a scan to one effect a removal: means over texts, with their doubt.

Percentile bootstrap: Efron & Tibshirani 1993, chapter 13; paired, since each text gives a
difference to its own clean run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.ablation import METRICS, Effect, Metric, Scores, Variant

__all__ = ["bootstrap_interval", "mean_baseline", "removal_effects", "spearman"]

_DRAWS = 2000
_ENDS = (2.5, 97.5)


def bootstrap_interval(
    values: NDArray[np.floating], seed: int
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """The 95 % percentile interval of the mean over texts: (text, removal) to two (removal,).

    All removals share the 2,000 draws of texts, so that they can be compared.
    """
    texts = len(values)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(texts, np.full(texts, 1 / texts), size=_DRAWS)
    means = counts @ values / texts
    low, high = np.percentile(means, _ENDS, axis=0)
    return low, high


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation in [−1, 1], equal values sharing their rank; None where one is constant."""
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (first, second)]
    spread = [values - values.mean() for values in ranks]
    size = float(np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum()))
    return float((spread[0] * spread[1]).sum()) / size if size else None


def _ranks(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Places in ascending order from 0, the mean of them for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.floating] = ((last - counts + last - 1) / 2)[inverse]
    return ranks


def mean_baseline(pieces: Sequence[Scores]) -> dict[str, float]:
    """The clean model's own numbers, mean over the texts of the pieces."""
    by_text = {piece.text: piece.baseline for piece in pieces}
    names = dict.fromkeys(name for baseline in by_text.values() for name in baseline)
    return {
        name: float(np.mean([b[name] for b in by_text.values() if name in b])) for name in names
    }


def removal_effects(
    pieces: Sequence[Scores], variants: Sequence[Variant], seed: int
) -> tuple[Effect, ...]:
    """One effect for each removal that any piece has, in the order of ``variants``.

    A removal counts over the texts that have it; two or more texts give intervals.
    """
    found: dict[int, list[tuple[Scores, int]]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.text):
        for place, index in enumerate(piece.variants):
            found.setdefault(index, []).append((piece, place))
    return tuple(_effect(variants[index], found[index], seed) for index in sorted(found))


def _effect(variant: Variant, parts: Sequence[tuple[Scores, int]], seed: int) -> Effect:
    values: dict[Metric, float] = {}
    low: dict[Metric, float] = {}
    high: dict[Metric, float] = {}
    errors: dict[Metric, float] = {}
    for name in METRICS:
        column = [piece.metrics[name][at] for piece, at in parts if name in piece.metrics]
        if len(column) < len(parts):
            continue
        values[name] = float(np.mean(column))
        if len(column) > 1:
            ends = bootstrap_interval(np.array(column)[:, None], seed)
            low[name], high[name] = (float(end[0]) for end in ends)
        drawn = [piece.errors[name][at] for piece, at in parts if name in piece.errors]
        if len(drawn) == len(parts):
            errors[name] = float(np.sqrt(np.square(drawn).sum()) / len(drawn))
    losses = tuple(piece.token_losses[at] for piece, at in parts if piece.token_losses is not None)
    return Effect(
        variant,
        len(parts),
        **values,
        ci_low=low,
        ci_high=high,
        errors=errors,
        token_losses=losses,
    )
