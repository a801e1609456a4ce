"""Sentences that say what a sweep has shown, and whether the difference is significant.

Two numbers of heads are compared by a paired t-test over the seeds that both were trained from
(Student 1908). The p-value is multiplied by the number of possible pairs (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from attnviz.draw.numbers import counted
from attnviz.draw.provenance import share
from attnviz.learn.sweep.records import Spread, SweepReport

_SIGNIFICANT = 0.05

_LEARNT = 0.95
"""Share of the chance loss below which a model has learnt something."""

_REACHED = 0.99
"""Accuracy from which a task whose answers are all known counts as learnt."""

_SMALL = 0.0005
"""Losses below this would be rounded to 0.000."""


def finding(report: SweepReport) -> str:
    """Return the finding: which number of heads has the lowest and the highest loss."""
    ranked = _ranked(report)
    best, worst = ranked[0], ranked[-1]
    low = _loss(report, best)
    if low.mean > _LEARNT * report.task.chance.loss:
        return (
            f"Nothing was learnt in {report.steps:,} steps (lowest held-out loss "
            f"{with_spread(low)} nats, chance {nats(report.task.chance.loss)}); use more --steps."
        )
    if best == worst:
        return (
            f"{counted(best, 'head')} reached a held-out loss of {with_spread(low)} nats (chance "
            f"{nats(report.task.chance.loss)}); more numbers of --heads would compare."
        )
    return (
        f"{counted(best, 'head')} reached the lowest held-out loss, {with_spread(low)} nats, and "
        f"{counted(worst, 'head')} the highest, {with_spread(_loss(report, worst))} "
        f"({_significance(report, best, worst)})."
    )


def details(report: SweepReport) -> list[str]:
    """Return sentences with further results, each of which begins with a label and a colon."""
    ranked = _ranked(report)
    best, worst = ranked[0], ranked[-1]
    lines = []
    if len(ranked) > 2:
        second = ranked[1]
        found = _differences(report, best, second)
        more = (
            f" {with_spread(Spread.of(found))} nats above {counted(best, 'head')}" if found else ""
        )
        lines.append(
            f"Runner-up: {counted(second, 'head')}{more} ({_significance(report, best, second)})."
        )
    lines += _reached(report)
    return lines if best == worst else [*lines, *_patterns(report, best, worst)]


def _ranked(report: SweepReport) -> list[int]:
    return sorted(report.measured, key=lambda heads: _loss(report, heads).mean)


def _loss(report: SweepReport, heads: int) -> Spread:
    return report.spread(heads, lambda model: model.loss)


def _differences(report: SweepReport, better: int, worse: int) -> list[float]:
    low = {model.seed: model.loss for model in report.of(better)}
    high = {model.seed: model.loss for model in report.of(worse)}
    return [high[seed] - low[seed] for seed in high if seed in low]


def _significance(report: SweepReport, better: int, worse: int) -> str:
    """Return whether two losses differ significantly, as a string with the p-value.

    better, worse: the numbers of heads that are compared.
    """
    found = _differences(report, better, worse)
    if len(found) < 2:
        return "needs ≥ 2 seeds"
    p = min(paired_p(found) * math.comb(len(report.measured), 2), 1.0)
    word = "significant" if p < _SIGNIFICANT else "not significant"
    p_words = "p<0.001" if p < 0.001 else f"p={p:.2g}"
    return f"{word}, {p_words} over {counted(len(found), 'seed')}"


def paired_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value, by Student's t, of a mean difference of 0; in [0, 1].

    differences: at least two.
    """
    spread = Spread.of(differences)
    if not spread.deviation:
        return float(spread.mean == 0)
    freedom = len(differences) - 1
    angle = math.atan2(abs(spread.mean) * math.sqrt((freedom + 1) / freedom), spread.deviation)
    # The distribution for whole degrees of freedom: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4.
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    term = total = cosine if odd else 1.0
    for step in range(2 + odd, freedom, 2):
        term *= (step - 1) / step * cosine**2
        total += term
    if not odd:
        return max(1 - sine * total, 0.0)
    return max(1 - 2 / math.pi * (angle + sine * total * (freedom > 1)), 0.0)


def _reached(report: SweepReport) -> list[str]:
    """Return a sentence on the numbers of heads that learnt the task.

    It is empty if the best possible result is unknown.
    """
    if report.task.best is None:
        return []
    done = {
        heads: sum(model.accuracy >= _REACHED for model in report.of(heads))
        for heads in report.measured
    }
    parts = [
        f"{counted(heads, 'head')} in {_of_seeds(count, len(report.of(heads)))}"
        for heads, count in done.items()
        if count
    ]
    reached = ", ".join(parts) or f"none within {report.steps:,} steps"
    return [f"Reached {_REACHED:.0%} accuracy: {reached}."]


def _patterns(report: SweepReport, best: int, worst: int) -> list[str]:
    """Return sentences on the pattern that differs most, and on patterns that share a head.

    best, worst: the numbers of heads with the lowest and the highest loss.
    """
    names = [pattern.name for pattern in report.of(best)[0].patterns]
    words = {pattern.name: pattern.words for pattern in report.of(best)[0].patterns}

    def score(heads: int, name: str) -> float:
        return report.spread(heads, lambda model: model.pattern(name).score).mean

    most = max(names, key=lambda name: abs(score(best, name) - score(worst, name)))
    lines = [
        f"Heads: the two differ most in {words[most]!r}, the best head's attention to it being "
        f"{share(score(best, most))} with {counted(best, 'head')} and "
        f"{share(score(worst, most))} with {counted(worst, 'head')}."
    ]
    backs = [name for name in names if name.startswith("back_")]
    for pair in combinations(backs, 2):
        shared = {heads: _shared(report, heads, pair) for heads in (worst, best)}
        if any(shared.values()):
            found = " and with ".join(
                f"{counted(heads, 'head')} in {_of_seeds(count, len(report.of(heads)))}"
                for heads, count in shared.items()
            )
            lines.append(
                f"Shared: one head scores highest both for {words[pair[0]]} and for "
                f"{words[pair[1]]} with {found}."
            )
    return lines


def _shared(report: SweepReport, heads: int, pair: Sequence[str]) -> int:
    """Return the number of seeds in which both patterns have the same best head."""
    best = [[model.pattern(name) for name in pair] for model in report.of(heads)]
    return sum((one.layer, one.head) == (other.layer, other.head) for one, other in best)


def nats(value: float) -> str:
    """Return a loss as a string, such as ``0.066``; one that would round to zero as ``2e-05``."""
    return f"{value:.0e}" if 0 < abs(value) < _SMALL else f"{value:.3f}"


def with_spread(spread: Spread) -> str:
    """Return a mean loss with its deviation over seeds as a string: ``0.066 ± 0.012``."""
    if spread.deviation is None:
        return nats(spread.mean)
    return f"{nats(spread.mean)} ± {nats(spread.deviation)}"


def _of_seeds(found: int, seeds: int) -> str:
    return f"{found} of {counted(seeds, 'seed')}"
