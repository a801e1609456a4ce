"""What one sweep has shown, in sentences made of its own numbers, with the doubt that is left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from attnviz.draw.provenance import counted, share
from attnviz.sweep.records import Spread, SweepModel, SweepReport

_CERTAIN = 2.0
"""Standard deviations over seeds from which a difference is called one."""

_FEW = 2
"""Seeds from which a spread can be computed, but hardly known."""

_SOLVED = 0.99
"""Share of right answers from which a task with a known best counts as solved."""

_SMALL = 0.0005
"""A loss that would be rounded to nothing."""


def findings(report: SweepReport) -> list[str]:
    """Sentences, each of which begins with a word and a colon."""
    if len(report.measured) < 2:
        return [_alone(report), *_solved(report)]
    ranked = sorted(report.measured, key=lambda heads: _loss(report, heads).mean)
    best, second, worst = ranked[0], ranked[1], ranked[-1]
    lines = [_ends(report, best, worst)]
    if second != worst:
        lines.append(_runner_up(report, best, second))
    return [*lines, *_solved(report), *_patterns(report, best, worst)]


def _loss(report: SweepReport, heads: int) -> Spread:
    def loss(model: SweepModel) -> float:
        return model.loss

    return report.spread(heads, loss)


def _alone(report: SweepReport) -> str:
    heads = report.measured[0]
    return (
        f"Seen: {counted(heads, 'head')} ended at a loss of {_with_spread(_loss(report, heads))}; "
        "there is no other number of heads to compare it with."
    )


def _differences(report: SweepReport, better: int, worse: int) -> list[float]:
    """By how much the loss of one is higher, for each seed that both were trained from."""
    low = {model.seed: model.loss for model in report.of(better)}
    high = {model.seed: model.loss for model in report.of(worse)}
    return [high[seed] - low[seed] for seed in high if seed in low]


def _ends(report: SweepReport, best: int, worst: int) -> str:
    return (
        f"Seen: {counted(best, 'head')} ended with the lowest loss, "
        f"{_with_spread(_loss(report, best))}, and {counted(worst, 'head')} with the highest, "
        f"{_with_spread(_loss(report, worst))}. {_doubt(report, best, worst)}"
    )


def _runner_up(report: SweepReport, best: int, second: int) -> str:
    return f"Next: {counted(second, 'head')}. {_doubt(report, best, second)}"


def _doubt(report: SweepReport, better: int, worse: int) -> str:
    """The difference against its spread over seeds."""
    found = _differences(report, better, worse)
    if not found:
        return "No seed was trained with both, so they cannot be compared seed by seed."
    spread = Spread.of(found)
    lower = sum(difference > 0 for difference in found)
    if spread.deviation is None:
        return (
            f"The difference is {nats(spread.mean)} from one seed: without a second one nobody "
            "can say whether another seed would show it."
        )
    words = (
        f"Seed by seed the difference is {_with_spread(spread)}; {counted(better, 'head')} ended "
        f"lower in {_of_seeds(lower, len(found))}"
    )
    if lower < len(found):
        return f"{words}: which is lower depends on the seed, so the difference may be chance."
    if spread.deviation == 0:
        return f"{words}."
    times = spread.mean / spread.deviation
    if times < _CERTAIN:
        return f"{words}, but how much lower depends on the seed."
    few = ", though two seeds say little of a spread" if len(found) == _FEW else ""
    return f"{words}: {times:.1f} times the spread{few}."


def _solved(report: SweepReport) -> list[str]:
    """Who has learned a task whose answers can all be known."""
    if report.task.best is None:
        return []
    bar = f"Solved ({_SOLVED:.0%} right or more)"
    done = {
        heads: sum(model.accuracy >= _SOLVED for model in report.of(heads))
        for heads in report.measured
    }
    if not any(done.values()):
        return [f"{bar}: by none within {report.steps:,} steps."]
    parts = [
        f"{counted(heads, 'head')} in {_of_seeds(count, len(report.of(heads)))}"
        for heads, count in done.items()
    ]
    return [f"{bar}: {', '.join(parts)}."]


def _patterns(report: SweepReport, best: int, worst: int) -> list[str]:
    """The pattern in which the two differ most, and patterns that had to share a head."""
    names = [pattern.name for pattern in report.of(best)[0].patterns]
    words = {pattern.name: pattern.words for pattern in report.of(best)[0].patterns}

    def score(heads: int, name: str) -> float:
        return report.spread(heads, lambda model: model.pattern(name).score).mean

    most = max(names, key=lambda name: abs(score(best, name) - score(worst, name)))
    lines = [
        f"Heads: the two differ most in {words[most]!r}, where the best head has "
        f"{share(score(best, most))} of its attention with {counted(best, 'head')} and "
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
                f"Shared: {words[pair[0]]} and {words[pair[1]]} are looked at most by one and the "
                f"same head with {found}."
            )
    return lines


def _shared(report: SweepReport, heads: int, pair: Sequence[str]) -> int:
    """In how many seeds both patterns have the same best head."""
    best = [[model.pattern(name) for name in pair] for model in report.of(heads)]
    return sum((one.layer, one.head) == (other.layer, other.head) for one, other in best)


def nats(value: float) -> str:
    """A loss, such as ``0.066``; one that would round to nothing as ``2e-05``."""
    return f"{value:.0e}" if 0 < abs(value) < _SMALL else f"{value:.3f}"


def _with_spread(spread: Spread) -> str:
    """A mean loss and its standard deviation over seeds, such as ``0.066 ± 0.012``."""
    if spread.deviation is None:
        return nats(spread.mean)
    return f"{nats(spread.mean)} ± {nats(spread.deviation)}"


def _of_seeds(found: int, seeds: int) -> str:
    return f"{found} of {counted(seeds, 'seed')}"
