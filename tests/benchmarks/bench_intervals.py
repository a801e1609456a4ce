"""How often an interval of nominal 95 % holds the true mean, and a p of all heads names by chance.

Of effects that are spread normally, with a tail as those of heads that matter in few texts, and of
nearly two values as those of heads that do a thing or do not.
Run with ``python -m pytest tests/benchmarks/bench_intervals.py -s``: two minutes.
"""

from statistics import NormalDist

import numpy as np
import pytest

from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, bootstrap_interval

pytestmark = pytest.mark.benchmark

TRIALS, DRAWS = 2000, 1000
STUDENT_T = {2: 12.706, 5: 2.776, 6: 2.571, 7: 2.447, 10: 2.262, 20: 2.093}
"""97.5 % quantiles for so many texts, from a printed table."""

SAMPLES = {
    "normal": (lambda rng, shape: rng.standard_normal(shape), 0.0),
    "exponential": (lambda rng, shape: rng.exponential(1, shape), 1.0),
    "lognormal": (lambda rng, shape: rng.lognormal(0, 1, shape), float(np.exp(0.5))),
    "rounded": (lambda rng, shape: np.round(rng.standard_normal(shape)), 0.0),
    "nearly two": (lambda rng, shape: _two(rng, shape) + 0.1 * rng.standard_normal(shape), 0.0),
    "two values": (lambda rng, shape: _two(rng, shape), 0.0),
}


def _two(rng, shape):
    return np.where(rng.random(shape) < 0.5, 1.0, -1.0)


def drawn_means(values):
    texts = len(values)
    counts = np.random.default_rng(0).multinomial(texts, np.full(texts, 1 / texts), size=DRAWS)
    return counts @ values / texts


def percentile(values):
    low, high = np.percentile(drawn_means(values), (2.5, 97.5), axis=0)
    return low, high


def student_t(values):
    reach = STUDENT_T[len(values)] * values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return values.mean(axis=0) - reach, values.mean(axis=0) + reach


def bca(values):
    """Bias-corrected and accelerated: Efron & Tibshirani 1993, section 14.3."""
    normal, means = NormalDist(), drawn_means(values)
    left_out = (values.sum(axis=0) - values) / (len(values) - 1)
    apart = left_out.mean(axis=0) - left_out
    with np.errstate(invalid="ignore"):  # of one value
        skew = np.nan_to_num((apart**3).sum(axis=0) / (6 * (apart**2).sum(axis=0) ** 1.5))
    below = (means < values.mean(axis=0)).mean(axis=0)
    ends = []
    for tail in (0.025, 0.975):
        column = []
        for place, share in enumerate(np.clip(below, 1 / DRAWS, 1 - 1 / DRAWS)):
            bias = normal.inv_cdf(share)
            moved = bias + normal.inv_cdf(tail)
            level = normal.cdf(bias + moved / (1 - skew[place] * moved))
            column.append(np.quantile(means[:, place], level))
        ends.append(np.array(column))
    return ends[0], ends[1]


def bootstrap_t(values):
    if len(values) >= LEAST_TEXTS:
        return bootstrap_interval(values, 0)
    return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)


def test_coverage():
    methods = {"percentile": percentile, "BCa": bca, "Student's t": student_t}
    methods["bootstrap-t (attnviz)"] = bootstrap_t
    print(f"\n{TRIALS:,} samples; share that holds the mean, mean width in s.d.")
    for name, (sample, mean) in SAMPLES.items():
        for texts in STUDENT_T:
            values = sample(np.random.default_rng(texts), (texts, TRIALS))
            cells = []
            for method, interval in methods.items():
                low, high = interval(values)
                held = float(((low <= mean) & (mean <= high)).mean())
                wide = float((high - low).mean() / values.std())
                cells.append(f"{method} {held:.3f} {wide:5.2f}" if wide == wide else f"{method} –")
            print(f"{name:>11} {texts:>2} texts  " + "   ".join(cells))


def flipped_p(values, seed):
    """Westfall & Young 1993 by flipping the texts' signs: what ``adjusted_p`` supersedes."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (2000, len(values)))
    scaled = values / np.sqrt((values**2).sum(axis=0))
    largest = np.abs(signs @ scaled).max(axis=1)
    return (largest[:, None] >= np.abs(scaled.sum(axis=0))).mean(axis=0)


def test_chance_alone():
    """The share of models of 24 heads without effect in which any head has p of 5 % or less."""
    print("\n200 models; share in which chance names a head")
    for name, (sample, mean) in SAMPLES.items():
        for texts in (6, 10, 20, 40):
            rng = np.random.default_rng(texts)
            models = [sample(rng, (texts, 24)) - mean for _ in range(200)]
            for method, p in (("sign flips", flipped_p), ("bootstrap-t (attnviz)", adjusted_p)):
                named = np.mean([(p(each, at) <= 0.05).any() for at, each in enumerate(models)])
                print(f"{name:>11} {texts:>2} texts  {method:>22} {named:.3f}")
