"""Means over a few texts or pairs with their doubt: intervals and p by the bootstrap, sign flips.

Rank correlation stands next to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.intervals import student_t

LEAST_TEXTS = 5
"""Below it there is no interval: four numbers tell too little of how they are spread."""

_DRAWS = 2000
_TAIL = 0.025
_CHUNK = 100
"""Draws at a time, so that ten thousand texts do not fill the memory."""

_FURTHEST = 2
"""Times the reach of Student's t that an end may be away from the mean."""

_FLIPS = 4096
"""Of the signs of the texts; all of them up to 13 texts."""

_CONSTANT = 1e-6
"""Of the spread of the texts: a draw of less spread holds one value only, but for rounding."""


def mean_interval(
    values: NDArray[np.floating], seed: int
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return the 95% bootstrap-t interval of the mean over texts: (text, ablation) to two
    (ablation,).

    Efron & Tibshirani 1993, section 12.5: of 2,000 draws of texts the quantiles of
    (mean of the draw − mean) / standard error of the draw stand in for those of Student's t, so
    that skewed effects get a skewed interval. The values are paired: each text gives a
    difference to its own clean run. All ablations share the draws, so that they can be compared.

    Each end lies once to twice as far from the mean as that of Student's t. Without the upper
    bound five texts of nearly two values have intervals of 37 standard deviations, since draws of
    one value have hardly an error; an end that the draws leave open, where they have none, is
    Student's own. Without the lower one too few draws differ from each other to cover. Coverage
    and mean width in standard deviations at 5, 7, 10 and 20 texts (tests/benchmarks/
    bench_intervals.py has all): normal .97 3.1, .96 2.1, .96 1.6, .96 1.0; exponential .94 3.1,
    .94 2.2, .95 1.8, .96 1.1; lognormal .89 2.6, .89 2.0, .91 1.6, .93 1.1, where Student's t has
    .83, .81, .83, .88 and BCa .73 to .88. Where the values are not finite, no
    end is.
    Raises ValueError for fewer than ``LEAST_TEXTS`` texts.
    """
    texts = len(values)
    if texts < LEAST_TEXTS:
        raise ValueError(f"an interval needs at least {LEAST_TEXTS} texts, got {texts}")
    mean, error, drawn = _studentised(values, seed)
    drawn.sort(axis=0)
    at, far = round(_TAIL * _DRAWS), student_t(texts - 1)
    with np.errstate(all="ignore"):
        below, above = (
            np.clip(np.where(np.isfinite(end), end, far), far, _FURTHEST * far) * error
            for end in (drawn[-at], -drawn[at - 1])
        )
        return mean - below, mean + above


def _studentised(
    values: NDArray[np.floating], seed: int
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Mean and standard error (ablation,), and t of each draw around the mean (draw, ablation).

    Infinite for a draw of one value other than the mean.
    """
    texts = len(values)
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        mean = values.mean(axis=0)
        apart = values - mean
        error = apart.std(axis=0, ddof=1) / np.sqrt(texts)
        squares = apart**2
    found = np.empty((_DRAWS, apart.shape[1]))
    for start in range(0, _DRAWS, _CHUNK):
        counts = rng.multinomial(texts, np.full(texts, 1 / texts), size=_CHUNK)
        with np.errstate(all="ignore"):
            means = counts @ apart / texts
            spread = np.sqrt(np.maximum(counts @ squares / texts - means**2, 0) / (texts - 1))
            constant = spread <= _CONSTANT * error
            endless = np.where(np.abs(means) <= _CONSTANT * error, 0, np.copysign(np.inf, means))
            found[start : start + _CHUNK] = np.where(constant, endless, means / spread)
    return mean, error, found


def adjusted_p(values: NDArray[np.floating], seed: int) -> NDArray[np.floating]:
    """Two-sided p of each mean over texts, adjusted for all: (text, ablation) to (ablation,).

    Single step (Westfall & Young 1993, section 2.4) over the draws of ``mean_interval``: the share
    of draws in which the largest |t| of any ablation is at least the ablation's own. All share the
    draws, so that their correlation is kept.

    The chance that any of them has p ≤ 5 % by chance alone is 5 % or less, however many are tried
    and however skewed they are: around means of zero, those of the bundled model's 24 heads gave
    0.5 % over 10 sentences of stories and 3 % over 10 of unlike kinds, lognormal ones 2 %. Sign
    flips, which take skewed effects for symmetric ones, gave 7, 19 and 64 % (the lognormal ones in
    tests/benchmarks/bench_intervals.py). The price is power: below ten texts little is found.
    NaN where values are not finite, 1 where they are all zero.
    """
    finite = np.isfinite(values).all(axis=0)
    mean, error, drawn = _studentised(values[:, finite].astype(np.float64), seed)
    with np.errstate(all="ignore"):
        own = np.abs(np.where(mean == 0, 0, mean / error))
    largest = np.abs(drawn).max(axis=1, initial=0)
    p = np.full(values.shape[1], np.nan)
    p[finite] = (1 + (largest[:, None] >= own).sum(axis=0)) / (_DRAWS + 1)
    return p


def few_note(count: int, noun: str) -> tuple[str, ...]:
    """Why there is no interval, where several texts would let one expect it."""
    if not 1 < count < LEAST_TEXTS:
        return ()
    return (f"no intervals: {count} {noun} are too few for them; give at least {LEAST_TEXTS}",)


def copies_note(left: int, whole: int, noun: str) -> tuple[str, ...]:
    """On copies that were left out: they would make any interval as narrow as one likes."""
    verb = "is a copy" if left == 1 else "are copies"
    said = f"{left} of {whole} {noun} {verb} of another and left out: no new evidence"
    return (said,) * bool(left)


def sign_flip_p(values: NDArray[np.floating], seed: int) -> NDArray[np.floating]:
    """Two-sided p of each mean over texts by itself: (text, ablation) to (ablation,).

    Were a text's effect as often above zero as below, its sign could be flipped: the share of sign
    flips, the same for all, in which the sum is at least as large.
    """
    known = np.asarray(values, dtype=np.float64)
    found = np.abs(known.sum(axis=0))
    reached, total = np.zeros(known.shape[1]), 0
    for signs in _signs(len(known), seed):
        reached += (np.abs(signs @ known) >= found * (1 - 1e-9)).sum(axis=0)
        total += len(signs)
    return np.where(np.isfinite(found), reached / total, np.nan)


def benjamini_hochberg(p: NDArray[np.floating]) -> NDArray[np.floating]:
    """q of each p (test,), NaN for NaN: the least false discovery rate at which it is named.

    Benjamini & Hochberg 1995: min over j ≥ i of p₍ⱼ₎·m / j, of m ordered p-values.
    """
    q = np.full(len(p), np.nan)
    known = np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known])]
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    q[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return q


def _signs(texts: int, seed: int) -> Iterator[NDArray[np.floating]]:
    """Flips (flip, text), the last text as it is: all of them, or drawn ones with none flipped."""
    if 2 ** (texts - 1) <= _FLIPS:
        flips = np.arange(2 ** (texts - 1))
        yield 1.0 - 2.0 * (flips[:, None] >> np.arange(texts) & 1)
        return
    rng = np.random.default_rng(seed)
    yield np.ones((1, texts))
    for _ in range(0, _FLIPS, _CHUNK):
        yield rng.choice([-1.0, 1.0], (_CHUNK, texts))


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
