"""Confidence intervals and p-values of means over a few texts, by bootstrap and sign flips.

It also has rank correlation, and 95% CIs in closed form of a mean and of a share of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_TEXTS = 5  # the fewest texts with an interval: four say too little about their spread
_DRAWS = 2000
_TAIL = 0.025
_CHUNK = 100  # bootstrap draws at a time, so that ten thousand texts do not fill the memory
_AT_ONCE = 1 << 14  # numbers of an array that stays in a cache: of few ablations more draws
_FEW = 1000  # texts up to which draws are kept for the next question about as many
_FURTHEST = 2  # how many times as far from the mean as Student's t an end of an interval may lie
_FLIPS = 4096  # the number of random sign flips; up to 13 texts all possible flips are used

CHANCE = 0.02  # the chance below which a mean change or a link of words beats chance
DRAWS = 1000  # how many draws of random signs the largest of many sums is compared with
_ROUNDING = 1e-9

_CONSTANT = 1e-6  # a draw of less than this share of the texts' spread counts as constant


def includes_zero(interval: tuple[float, float] | None) -> bool:
    """Return whether an interval includes zero; False if there is none."""
    return interval is not None and interval[0] <= 0 <= interval[1]


def bootstrap_interval(
    values: NDArray[np.floating], seed: int, known: NDArray[np.floating] | None = None
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return both ends of the 95% bootstrap-t interval of each mean over texts: (ablation,).

    values: (text, ablation), each the difference of a text to its own unchanged run.
    known: (2, ablation), mean and standard error over more texts than those of ``values``, which
        then give the quantiles alone.

    Efron & Tibshirani 1993, section 12.5: in 2,000 draws of texts the quantiles of (mean of the
    draw − mean) / standard error of the draw replace those of Student's t, so that skewed effects
    get a skewed interval. All ablations share the draws, so that they can be compared.

    Each end is limited to once to twice the distance of Student's t from the mean, which replaces
    an infinite one: draws of one value have almost no error, and of five texts too few draws differ
    from each other. Coverage at 5 to 20 texts (tests/benchmarks/bench_intervals.py): .94 to .96 for
    normal and exponential effects, .89 to .93 for lognormal ones, where Student's t has .81 to .88.
    If a value is not finite, no end of its ablation is.
    Raises ValueError for fewer than ``LEAST_TEXTS`` texts.
    """
    texts = len(values)
    if texts < LEAST_TEXTS:
        raise ValueError(f"an interval needs at least {LEAST_TEXTS} texts, got {texts}")
    mean, error, drawn = _studentised(values, seed)
    if known is not None:
        mean, error = known
    drawn.sort(axis=0)
    at, far = round(_TAIL * _DRAWS), student_t(texts - 1)
    with np.errstate(all="ignore"):
        below, above = (
            np.clip(np.where(np.isfinite(end), end, far), far, _FURTHEST * far) * error
            for end in (drawn[-at], -drawn[at - 1])
        )
        return mean - below, mean + above


def intervals(
    values: NDArray[np.floating], seed: int, known: NDArray[np.floating] | None = None
) -> list[tuple[float, float] | None]:
    """Return the confidence interval of each mean over texts; None for fewer than five texts.

    values: (text, change). seed: of the bootstrap. known: see ``bootstrap_interval``.
    """
    if len(values) < LEAST_TEXTS:
        return [None] * values.shape[1]
    low, high = bootstrap_interval(values, seed, known)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _studentised(
    values: NDArray[np.floating], seed: int
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Return mean and standard error (ablation,), and each draw's t around the mean.

    t is (draw, ablation), infinite for a draw of one value that differs from the mean.
    """
    texts = len(values)
    with np.errstate(all="ignore"):
        mean = values.mean(axis=0)
        apart = values - mean
        error = apart.std(axis=0, ddof=1) / np.sqrt(texts)
        squares = apart**2
    drawn = np.empty((_DRAWS, apart.shape[1]))
    done, blocks = 0, _draws(texts, seed)
    if texts <= _FEW:
        kept, size = _kept_draws(texts, seed), max(_CHUNK, _AT_ONCE // max(1, apart.shape[1]))
        blocks = (kept[start : start + size] for start in range(0, _DRAWS, size))
    for counts in blocks:
        with np.errstate(all="ignore"):
            means = counts @ apart / texts
            spread = np.sqrt(np.maximum(counts @ squares / texts - means**2, 0) / (texts - 1))
            constant = spread <= _CONSTANT * error
            endless = np.where(np.abs(means) <= _CONSTANT * error, 0, np.copysign(np.inf, means))
            drawn[done : done + len(counts)] = np.where(constant, endless, means / spread)
        done += len(counts)
    return mean, error, drawn


def _draws(texts: int, seed: int) -> Iterator[NDArray[np.integer]]:
    """Yield how often each text is in each draw, (draw, text), a few draws at a time."""
    rng = np.random.default_rng(seed)
    for _ in range(0, _DRAWS, _CHUNK):
        yield rng.multinomial(texts, np.full(texts, 1 / texts), size=_CHUNK)


@lru_cache(maxsize=4)
def _kept_draws(texts: int, seed: int) -> NDArray[np.integer]:
    return np.concatenate(list(_draws(texts, seed)))


def adjusted_p(
    values: NDArray[np.floating], seed: int, known: NDArray[np.floating] | None = None
) -> NDArray[np.floating]:
    """Return two-sided p-values (ablation,) of means over texts, adjusted for all ablations.

    values: (text, ablation). known: see ``bootstrap_interval``. NaN if values are not finite, 1 if
    they are all zero.

    Single step (Westfall & Young 1993, section 2.4) over the draws of ``bootstrap_interval``: the
    share of draws in which the largest |t| of any ablation is at least the ablation's own. The
    probability of any p ≤ 5 % by chance alone is 5 % or less, for any number of ablations and any
    skew: with true means of zero it was 0.5 to 3 %, where sign flips, which assume symmetric
    effects, gave 7 to 64 % (tests/benchmarks/bench_intervals.py). The price is power: below ten
    texts little is significant.
    """
    finite = np.isfinite(values).all(axis=0)
    mean, error, drawn = _studentised(values[:, finite].astype(np.float64), seed)
    if known is not None:
        mean, error = known[:, finite]
    with np.errstate(all="ignore"):
        own = np.abs(np.where(mean == 0, 0, mean / error))
    largest = np.abs(drawn).max(axis=1, initial=0)
    p = np.full(values.shape[1], np.nan)
    p[finite] = (1 + (largest[:, None] >= own).sum(axis=0)) / (_DRAWS + 1)
    return p


def few_note(count: int, noun: str) -> tuple[str, ...]:
    """Return a note that so many (``noun``) are too few for intervals; empty for one or enough."""
    if not 1 < count < LEAST_TEXTS:
        return ()
    return (f"no intervals: {count} {noun} are too few for them; give at least {LEAST_TEXTS}",)


def copies_note(left: int, whole: int, noun: str) -> tuple[str, ...]:
    """Return a note that ``left`` copies of ``whole`` texts were left out; empty if none were."""
    verb = "is a copy" if left == 1 else "are copies"
    note = f"{left} of {whole} {noun} {verb} of another and left out: no new evidence"
    return (note,) * bool(left)


def sign_flip_p(values: NDArray[np.floating], seed: int) -> NDArray[np.floating]:
    """Return the two-sided p-value (ablation,) of each mean over texts, unadjusted.

    values: (text, ablation). If there is no effect, the sign of a text's difference is random: p is
        the share of sign flips, the same for all ablations, whose sum is at least as large.
    """
    known = np.asarray(values, dtype=np.float64)
    sums = np.abs(known.sum(axis=0))
    reached, total = np.zeros(known.shape[1]), 0
    for signs in _signs(len(known), seed):
        reached += (np.abs(signs @ known) >= sums * (1 - _ROUNDING)).sum(axis=0)
        total += len(signs)
    return np.where(np.isfinite(sums), reached / total, np.nan)


def chance_of_largest(changes: NDArray[np.floating]) -> float:
    """Return how likely chance alone gives a mean change as large as the largest, in (0, 1].

    changes: (head, token), in any unit, over the tokens of one text. Tokens without a finite change
        in every head are left out; the result is NaN if no token is left.

    A head without a function changes the loss of a token upwards as often as downwards. In each of
    ``DRAWS`` draws the changes of each token get a random sign, the same for all heads; the chance
    of the largest mean is the share of draws in which some head has one as large, so it counts how
    many heads were tried. Westfall and Young 1993, "Resampling-Based Multiple Testing"; of sign
    flips, Winkler et al. 2014, "Permutation inference for the general linear model".
    """
    known = changes[:, np.isfinite(changes).all(axis=0)].astype(float)
    tokens = known.shape[1]
    if not known.size:
        return math.nan
    bits = np.frombuffer(Random(0).randbytes(DRAWS * tokens), np.uint8) & 1
    signs = 2.0 * bits.reshape(DRAWS, tokens) - 1.0
    largest = np.abs(known.sum(axis=1)).max()
    drawn = np.abs(signs @ known.T).max(axis=1)
    return float((1 + (drawn >= largest * (1 - _ROUNDING)).sum()) / (1 + DRAWS))


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
    """Yield blocks (flip, text) of ±1: all distinct flips if few, else none, then random."""
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
    spread = []
    for values in (np.asarray(first, dtype=float), np.asarray(second, dtype=float)):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        ranks = ((last - counts + last - 1) / 2)[inverse]
        spread.append(ranks - ranks.mean())
    size = float(np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum()))
    return float((spread[0] * spread[1]).sum()) / size if size else None


# Intervals in closed form ---------------------------------------------------------------------

_Z = 1.959963985  # the 97.5% quantile of the normal distribution

# 97.5% quantiles of Student's t for 1 to 3 degrees of freedom.
_FEW_FREEDOMS = (12.706, 4.303, 3.182)


def student_t(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t with these degrees of freedom, within .001."""
    from statistics import NormalDist  # imports fractions and decimals

    if freedom <= len(_FEW_FREEDOMS):
        return _FEW_FREEDOMS[freedom - 1]
    return student_quantile(NormalDist().inv_cdf(1 - _TAIL), freedom)


def student_quantile(z: float, freedom: Any) -> Any:
    """Return the quantile of Student's t with the same tail as the normal deviate ``z``.

    freedom: the degrees of freedom, a number or an array, at least 4. Abramowitz & Stegun 1964,
    26.7.5.
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def student_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95% CI of the mean of values in [−1, 1]; None for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    spread = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return student_ends(mean, spread, count)


def student_ends(mean: float, variance: float, count: int) -> tuple[float, float]:
    """Return Student's 95% CI of the mean of ``count`` values in [−1, 1] of a variance."""
    reach = student_t(count - 1) * math.sqrt(variance / count)
    return max(mean - reach, -1.0), min(mean + reach, 1.0)


def share_interval(share: float, count: int) -> tuple[float, float] | None:
    """Return both ends of Wilson's 95% CI (1927) of a share; None if there are no draws.

    share: in [0, 1], of ``count`` word pairs.
    Word pairs are taken as independent draws, which those of one sentence hardly are.
    """
    if not count:
        return None
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    reach = _Z / scale * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(middle - reach, 0.0), min(middle + reach, 1.0)
