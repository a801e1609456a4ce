"""From the metric of every run to one effect for each patch: shares over prompt pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.signed import Place
from attnviz.engine.patching import PatchMetric
from attnviz.inspect.interventions.means import Ends, Mean, p_values
from attnviz.inspect.interventions.patch.report import METRICS, PatchEffect
from attnviz.measures.bootstrap import LEAST_TEXTS, benjamini_hochberg, intervals, sign_flip_p


@dataclass(frozen=True)
class Runs:
    """The metric of all runs, over prompt pairs.

    base, source: (pair,) without a patch: of the runs that are patched, and of those that the
        values are taken from. patched: (pair, patch), with a patch. control: (pair, patch), with an
        unrelated source; NaN if not measured.
    """

    base: NDArray[np.float64]
    source: NDArray[np.float64]
    patched: NDArray[np.float64]
    control: NDArray[np.float64]

    @property
    def difference(self) -> float:
        """Return the mean over prompt pairs of the metric's difference, source − base."""
        return float((self.source - self.base).mean())


def shares(runs: Runs, patched: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the effects of patches with their spread over prompt pairs: (pair, patch).

    The mean over pairs is the effect. patched: the metric with a patch, (pair, patch).
    The effect is the ratio of two means, R = Σ(patched − base) / Σ(source − base), so that a pair
    whose runs hardly differ counts little; of one pair it is P of Wang et al. 2022. Each pair's
    value is R + (x − R·y) / mean y, with x and y its numerator and denominator (the linearised
    ratio estimator, Cochran 1977, section 6.3).
    """
    change = patched - runs.base[:, None]
    apart = (runs.source - runs.base)[:, None]
    ratio = change.mean(axis=0) / apart.mean()
    values: NDArray[np.float64] = ratio + (change - ratio * apart) / apart.mean()
    return values


def too_close(runs: Runs, threshold: float, seed: int) -> Ends | bool:
    """Return whether two runs differ too little to show shares of their difference.

    threshold: the least difference. seed: of the bootstrap. If the confidence interval of the
    difference includes zero, its ends (low, high) are returned instead.
    """
    if not math.isfinite(runs.difference):
        return True
    (ends,) = intervals((runs.source - runs.base)[:, None], seed)
    if ends is not None and ends[0] <= 0 <= ends[1]:
        return ends
    return abs(runs.difference) < threshold


def effects(
    runs: Runs, places: Sequence[tuple[Place, ...]], ratio: bool, fdr: bool, seed: int
) -> tuple[PatchEffect, ...]:
    """Return the effect of each patch, in the order of ``places``.

    places: for each patch the (layer, head) of all that it replaces at once. ratio: True also gives
        effects as shares of the difference between the runs. fdr: True adds q-values. seed: of the
        bootstrap.
    """
    metric = runs.patched.mean(axis=0).tolist()
    change = (runs.patched - runs.base[:, None]).mean(axis=0).tolist()
    made = list(map(PatchEffect, places, metric, change))
    if not ratio:
        return tuple(made)
    own, control = shares(runs, runs.patched), shares(runs, runs.control)
    above = np.where(np.isfinite(control), own - control, own)
    q = np.full(len(places), math.nan)
    if fdr and len(own) >= LEAST_TEXTS:
        q = benjamini_hochberg(sign_flip_p(above, seed))
    means = map(
        Mean,
        own.mean(axis=0).tolist(),
        [None if ends is None or math.isnan(ends[0]) else ends for ends in intervals(own, seed)],
        [None if p is None or math.isnan(p) else p for p in p_values(above, seed)],
        [None if math.isnan(base) else base for base in control.mean(axis=0).tolist()],
    )
    return tuple(
        replace(effect, share=share, q=value)
        for effect, share, value in zip(made, means, q.tolist(), strict=True)
    )


def reason(close: Ends | bool, threshold: float, metric: PatchMetric, difference: float) -> str:
    """Return the reason why no shares are shown, as a string; empty if they are shown."""
    if not math.isfinite(difference):
        return "the metric of the plain runs is no number"
    unit = METRICS[metric].unit
    apart = f"clean and corrupt are {difference:+.2g} {unit} apart"
    if isinstance(close, tuple):
        return f"{apart} over the pairs, 95% CI [{close[0]:+.2g}, {close[1]:+.2g}]"
    return f"{apart}, less than {threshold:.2g}" if close else ""
