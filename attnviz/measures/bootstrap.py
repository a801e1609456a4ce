"""Confidence intervals and p-values of means over a few texts, by bootstrap and sign flips.

It also has rank correlation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.intervals import student_t

LEAST_TEXTS = 5
"""The fewest texts that get an interval: four numbers say too little about their spread."""

_DRAWS = 2000
_TAIL = 0.025
_CHUNK = 100
"""Bootstrap draws computed at a time, so that ten thousand texts do not fill the memory."""

_FURTHEST = 2
"""How many times as far from the mean as Student's t an end of an interval may lie."""

_FLIPS = 4096
"""The number of random sign flips; up to 13 texts all possible flips are used."""

_CONSTANT = 1e-6
"""A draw counts as constant if its spread is less than this share of the texts' spread."""


def bootstrap_interval(
    values: NDArray[np.floating], seed: int
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return both ends of the 95% bootstrap-t interval of each mean over texts: (ablation,).

    values: (text, ablation), each the difference of a text to its own unchanged run.

    Efron & Tibshirani 1993, section 12.5: in 2,000 draws of texts the quantiles of (mean of the
    draw − mean) / standard error of the draw replace those of Student's t, so that skewed effects
    get a skewed interval. All ablations share the draws, so that they can be compared.

    Each end is limited to once to twice the distance of Student's t from the mean. Without the
    upper limit five texts of nearly two values have intervals of 37 standard deviations, since
    draws of one value have almost no error; an end that is infinite is replaced by Student's.
    Without the lower limit the interval covers too rarely, since too few draws differ from each
    other. Coverage and mean width in standard deviations at 5, 7, 10 and 20 texts (all in
    tests/benchmarks/bench_intervals.py): normal .97 3.1, .96 2.1, .96 1.6, .96 1.0; exponential .94
    3.1, .94 2.2, .95 1.8, .96 1.1; lognormal .89 2.6, .89 2.0, .91 1.6, .93 1.1; there Student's t
    has .83, .81, .83, .88 and BCa .73 to .88. If a value is not finite, no end of its ablation is.
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
    """Return mean and standard error (ablation,), and each draw's t around the mean.

    t is (draw, ablation), infinite for a draw of one value that differs from the mean.
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
    """Return two-sided p-values (ablation,) of means over texts, adjusted for all ablations.

    values: (text, ablation). Single step (Westfall & Young 1993, section 2.4) over the draws of
        ``bootstrap_interval``: the share of draws in which the largest |t| of any ablation is at
        least the ablation's own. All share the
    draws, so that their correlation is kept.

    The probability of any p ≤ 5 % by chance alone is 5 % or less, for any number of ablations and
    any skew: with true means of zero, effects of the bundled model's 24 heads gave 0.5 % over 10
    sentences of stories and 3 % over 10 of unlike kinds, lognormal ones 2 %. Sign flips, which
    assume symmetric effects, gave 7, 19 and 64 % (the lognormal ones in
    tests/benchmarks/bench_intervals.py). The price is power: below ten texts little is found. NaN
    if values are not finite, 1 if they are all zero.
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
    """Return a note that texts are too few for intervals; empty for a single text or enough.

    count: how many there are. noun: what they are, in the plural.
    """
    if not 1 < count < LEAST_TEXTS:
        return ()
    return (f"no intervals: {count} {noun} are too few for them; give at least {LEAST_TEXTS}",)


def copies_note(left: int, whole: int, noun: str) -> tuple[str, ...]:
    """Return a note that copies of texts were left out; empty if none were.

    Copies would narrow any interval. left: how many were left out, of ``whole``. noun: what they
    are, in the plural.
    """
    verb = "is a copy" if left == 1 else "are copies"
    said = f"{left} of {whole} {noun} {verb} of another and left out: no new evidence"
    return (said,) * bool(left)


def sign_flip_p(values: NDArray[np.floating], seed: int) -> NDArray[np.floating]:
    """Return the two-sided p-value (ablation,) of each mean over texts, unadjusted.

    values: (text, ablation). If there is no effect, the sign of a text's difference is random: p is
        the share of sign flips, the same for all ablations, whose sum is at least as large.
    """
    known = np.asarray(values, dtype=np.float64)
    found = np.abs(known.sum(axis=0))
    reached, total = np.zeros(known.shape[1]), 0
    for signs in _signs(len(known), seed):
        reached += (np.abs(signs @ known) >= found * (1 - 1e-9)).sum(axis=0)
        total += len(signs)
    return np.where(np.isfinite(found), reached / total, np.nan)


def benjamini_hochberg(p: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return q for each p-value (test,): the least false discovery rate that reports the test.

    Benjamini & Hochberg 1995: min over j ≥ i of p₍ⱼ₎·m / j, of m ordered p-values. NaN gives NaN.
    """
    q = np.full(len(p), np.nan)
    known = np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known])]
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    q[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return q


def _signs(texts: int, seed: int) -> Iterator[NDArray[np.floating]]:
    """Yield blocks (flip, text) of +1 and −1, with which to multiply the values of texts.

    texts: their number.
    They are all distinct flips if these are few; else no flip first, then random ones.
    """
    if 2 ** (texts - 1) <= _FLIPS:
        flips = np.arange(2 ** (texts - 1))
        yield 1.0 - 2.0 * (flips[:, None] >> np.arange(texts) & 1)
        return
    rng = np.random.default_rng(seed)
    yield np.ones((1, texts))
    for _ in range(0, _FLIPS, _CHUNK):
        yield rng.choice([-1.0, 1.0], (_CHUNK, texts))


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's correlation in [−1, 1], ties share ranks; None if a list is constant."""
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (first, second)]
    spread = [values - values.mean() for values in ranks]
    size = float(np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum()))
    return float((spread[0] * spread[1]).sum()) / size if size else None


def _ranks(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the ranks in ascending order from 0; equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.floating] = ((last - counts + last - 1) / 2)[inverse]
    return ranks
