"""From the metrics of patched runs to effects: shares over pairs, with interval and base rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.bootstrap import (
    LEAST_TEXTS,
    adjusted_p,
    benjamini_hochberg,
    mean_interval,
    sign_flip_p,
)
from attnviz.patch.records import Effect, Place

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Runs:
    """The metric over pairs.

    base, source: (pair,) of the plain runs. patched: (pair, patch).
    control: (pair, patch) with a source that says nothing of the pair; NaN where not measured.
    """

    base: Floats
    source: Floats
    patched: Floats
    control: Floats

    @property
    def difference(self) -> float:
        """Source less base, mean over pairs."""
        return float((self.source - self.base).mean())


def shares(runs: Runs, patched: Floats) -> Floats:
    """Values (pair, patch) whose mean over pairs is the effect, and whose spread is its doubt.

    The effect is the ratio of two means, R = Σ(patched − base) / Σ(source − base), so that a pair
    whose runs hardly differ counts little; of one pair it is P of Wang et al. 2022. Each pair's
    value is R + (x − R·y) / mean y, with x and y its numerator and denominator (the linearised
    ratio estimator, Cochran 1977, section 6.3).
    """
    change = patched - runs.base[:, None]
    apart = (runs.source - runs.base)[:, None]
    ratio = change.mean(axis=0) / apart.mean()
    found: Floats = ratio + (change - ratio * apart) / apart.mean()
    return found


def too_close(runs: Runs, threshold: float, seed: int) -> tuple[float, float] | bool:
    """Whether the runs hardly differ; with an interval over pairs, its ends where it includes 0."""
    if not math.isfinite(runs.difference):
        return True
    if len(runs.base) >= LEAST_TEXTS:
        low, high = mean_interval((runs.source - runs.base)[:, None], seed)
        if low[0] <= 0 <= high[0]:
            return float(low[0]), float(high[0])
    return abs(runs.difference) < threshold


def effects(
    runs: Runs, places: Sequence[tuple[Place, ...]], ratio: bool, fdr: bool, seed: int
) -> tuple[Effect, ...]:
    """One effect a patch, in the order of ``places``.

    ratio: whether the plain runs differ enough for shares. fdr: add q-values.
    """
    metric = runs.patched.mean(axis=0)
    change = (runs.patched - runs.base[:, None]).mean(axis=0)
    made = [Effect(where, float(metric[at]), float(change[at])) for at, where in enumerate(places)]
    if not ratio:
        return tuple(made)
    own, control = shares(runs, runs.patched), shares(runs, runs.control)
    found, base = own.mean(axis=0), control.mean(axis=0)
    low = high = adjusted = q = np.full(len(places), math.nan)
    if len(own) >= LEAST_TEXTS:
        low, high = mean_interval(own, seed)
        above = np.where(np.isfinite(control), own - control, own)
        adjusted = adjusted_p(above, seed)
        q = benjamini_hochberg(sign_flip_p(above, seed)) if fdr else q
    return tuple(
        Effect(
            each.places,
            each.metric,
            each.change,
            float(found[at]),
            None if math.isnan(low[at]) else (float(low[at]), float(high[at])),
            float(base[at]),
            float(adjusted[at]),
            float(q[at]),
        )
        for at, each in enumerate(made)
    )
