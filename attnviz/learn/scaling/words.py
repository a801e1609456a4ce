"""The numbers and sentences of the ``attnviz scaling`` report."""

from __future__ import annotations

import math

from attnviz.draw.document import Explanation
from attnviz.draw.numbers import counted, percent
from attnviz.learn.scaling.records import Estimate, ScalingCase, ScalingReport

PERCENTS = frozenset({"weights_above", "queries_above", "queries_vanished"})
"""The measures that are shares and are shown as percentages."""

_MOST_DECIMALS = 4


def measured(name: str, estimate: Estimate) -> str:
    """Return a measure with its standard error, such as ``64.0 ± 0.2`` or ``16.2 ± 0.5%``.

    name: of the measure, which decides whether it is written in percent.
    """
    factor, unit = (100, "%") if name in PERCENTS else (1, "")
    value, error = factor * estimate.value, estimate.error
    if error is None:
        return percent(estimate.value) if unit else plain(value)
    error *= factor
    if error == 0:  # every sample has the same value
        return (f"{value:.0f}" if value in (0, 100) else plain(value)) + unit
    decimals = error_digits(error)
    return f"{value:.{decimals}f} ± {error:.{decimals}f}{unit}"


def both_ways(name: str, case: ScalingCase) -> str:
    """Return the measure ``name`` without and with the scale, such as ``64.0 → 1.00``."""
    show = percent if name in PERCENTS else plain
    before, after = (side.measures[name].value for side in (case.plain, case.scaled))
    return f"{show(before)} → {show(after)}"


def error_digits(error: float) -> int:
    """Return how many decimals show one digit of an error, two if it begins with a 1; at most 4."""
    exponent = math.floor(math.log10(error))
    leading = error / 10.0**exponent
    return min(max(-exponent + (leading < 2), 0), _MOST_DECIMALS)


def plain(value: float) -> str:
    """Return the number with four digits and at most three decimals, such as ``0.886``.

    A number that would round to zero shows one digit, as ``2e-05``.
    """
    if value == 0:
        return "0"
    if abs(value) < 0.0005:
        return f"{value:.0e}"
    decimals = 3 if abs(value) < 1 else max(3 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def whole(value: float) -> str:
    """Return the number as ``plain`` does, but a whole number without decimals, such as ``64``."""
    return f"{round(value):,}" if math.isclose(value, round(value)) else plain(value)


# What a run has shown ------------------------------------------------------------------------


def finding(report: ScalingReport) -> str:
    """Return the finding: how many queries put nearly all weight on one key, both ways."""
    cases = report.cases if report.model is not None else report.cases[-1:]
    where = f"at d_k = {cases[-1].d_k}" if report.model is None else f"in {report.name(cases[0])}"
    if len(cases) > 1:
        kind = "layer" if cases[0].head is None else "head"
        where = f"on average over {counted(len(cases), kind)}"
    before, after = (_mean(cases, side, "queries_above") for side in ("plain", "scaled"))
    many = f"{percent(before, whole=True)} of queries put > .9 on one key {where}"
    return f"Without 1/√d_k, {many}; with it, {percent(after, whole=True) if after else 'none'}."


_CERTAIN = 2.0
"""Number of standard errors from which a difference is reported."""


def seen(report: ScalingReport) -> list[str]:
    """Return sentences on the variance of the scores; each begins with a label and a colon."""
    if report.model is not None:
        return [_of_model(report)]
    return [*([_variance(report)] if len(report.cases) > 1 else []), _theory(report)]


def _change_words(report: ScalingReport, first: Estimate, last: Estimate) -> str:
    """Return how a measure changes with d_k: ``rises from A at d_k 8 to B at d_k 512``.

    It is ``is A and B`` if the change is not significant. first, last: the measure at the smallest
    and at the largest d_k.
    """
    start = f"{plain(first.value)} at d_k {report.cases[0].d_k}"
    end = f"{plain(last.value)} at d_k {report.cases[-1].d_k}"
    difference = last.value - first.value
    error = math.hypot(first.error or 0.0, last.error or 0.0)
    if difference == 0 or abs(difference) <= _CERTAIN * error:
        return f"is {start} and {end}, no significant difference"
    return f"{'rises' if difference > 0 else 'falls'} from {start} to {end}"


def _variance(report: ScalingReport) -> str:
    first, last = report.cases[0], report.cases[-1]
    before, after = (case.plain.measures["score_variance"] for case in (first, last))
    scaled = [case.scaled.measures["score_variance"].value for case in report.cases]
    low, high = plain(min(scaled)), plain(max(scaled))
    span = f"{low} throughout" if low == high else f"between {low} and {high}"
    return (
        f"Result: without the scale the score variance {_change_words(report, before, after)}, "
        f"×{plain(after.value / before.value)} where d_k grows ×{whole(last.d_k / first.d_k)}; "
        f"with the scale it is {span}."
    )


def _theory(report: ScalingReport) -> str:
    """Return a sentence that compares the measured variances with d_k."""
    off = [
        abs(estimate.value - case.plain.expected_variance) / estimate.error
        for case in report.cases
        if (estimate := case.plain.measures["score_variance"]).error
    ]
    if not off:
        return "Theory: one sample has no standard error to hold against; draw more with --samples."
    far = f"{max(off):.1f}" if max(off) >= 0.05 else "less than 0.1"
    most = "variance is" if len(off) == 1 else "variances are at most"
    return f"Theory: the measured {most} {far} SE from d_k; with the scale likewise from 1."


def _of_model(report: ScalingReport) -> str:
    bare = {report.name(case): case.plain.measures["score_variance"].value for case in report.cases}
    low, high = min(bare, key=lambda name: bare[name]), max(bare, key=lambda name: bare[name])
    span = f"is {plain(bare[low])} in {low}"
    if len(bare) > 1:
        span = f"runs from {plain(bare[low])} ({low}) to {plain(bare[high])} ({high})"
    sizes = sorted({case.d_k for case in report.cases})
    random = " or ".join(map(str, sizes)) if len(sizes) < 3 else f"{sizes[0]} to {sizes[-1]}"
    return (
        f"Result: without the scale the score variance {span}; random queries and keys would have "
        f"{random}."
    )


def _mean(cases: tuple[ScalingCase, ...], side: str, name: str) -> float:
    sides = [case.plain if side == "plain" else case.scaled for case in cases]
    return sum(entry.measures[name].value for entry in sides) / len(sides)


# How to read it ------------------------------------------------------------------------------


def bars_legend(report: ScalingReport) -> str:
    """Return one paragraph that explains the histograms and the table."""
    source = "± is one standard error over the samples. " if report.samples > 1 else ""
    if report.model is not None:
        source = "Queries that see a single key are left out. "
    return (
        "Bars: share of the attention weights that have this size, on a logarithmic axis, four "
        "bins to a power of ten; the first bar holds all below 1e-8 and may be cut at the top. "
        "Both charts of a pair have one vertical scale, and whatever is not empty is drawn. "
        f"{source}Normalised entropy is −Σ p ln p / ln n; the softmax gradient norm is "
        "‖diag(p) − p pᵀ‖ (Frobenius), mean over queries."
    )


def explanation(report: ScalingReport) -> Explanation:
    """Return the glossary, with the data that the numbers were measured on."""
    measured = (
        f"measured on random queries and keys, {counted(report.samples, 'sample')} of "
        f"{report.keys:,} keys, seed {report.seed}; entries are from N(0, 1)."
    )
    if report.model is not None:
        measured = (
            "measured on a model's queries and keys over one text. They were made with the scale "
            "in place: without it training would have ended elsewhere."
        )
    return Explanation("scaling", measured)
