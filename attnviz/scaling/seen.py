"""What one run has shown, in sentences made of its own numbers."""

from __future__ import annotations

import math

from attnviz.scaling.numbers import PERCENTS, percent, plain, whole
from attnviz.scaling.records import Estimate, ScalingCase, ScalingReport

__all__ = ["seen"]

_CERTAIN = 2.0
"""Standard errors from which a difference is called one."""


def seen(report: ScalingReport) -> list[str]:
    """Sentences, each of which begins with a word and a colon."""
    if report.model is not None:
        return _of_model(report)
    if len(report.cases) == 1:
        case = report.cases[0]
        return [_of_one(case, f"at d_k {case.d_k}"), _theory(report)]
    return [_variance(report), _theory(report), _gradient(report)]


_MOVES = {
    "score_variance": "the variance of the scores",
    "largest_weight": "the mean largest weight",
    "normalised_entropy": "the mean entropy",
    "jacobian_norm": "the mean norm of the Jacobian",
    "queries_vanished": "the share of queries whose norm is below 0.01",
}
"""What is told of the difference that the scale makes."""


def _of_one(case: ScalingCase, where: str) -> str:
    """All that the scale does in one case."""
    return f"Seen: {where} the scale takes {_moves((case,))}."


def _moves(cases: tuple[ScalingCase, ...]) -> str:
    """``A from x to y, B from …; C is z either way``, means over the cases."""
    moved, same = [], []
    for name, words in _MOVES.items():
        show = percent if name in PERCENTS else plain
        before, after = (show(_mean(cases, side, name)) for side in ("plain", "scaled"))
        if before == after:
            same.append(f"; {words} is {before} either way")
        else:
            moved.append(f"{words} from {before} to {after}")
    *most, last = moved or ["nothing elsewhere"]
    return (f"{', '.join(most)} and {last}" if most else last) + "".join(same)


def _went(report: ScalingReport, first: Estimate, last: Estimate) -> str:
    """``rises from A at d_k 8 to B at d_k 512``; ``is`` both where their errors are as large."""
    start = f"{plain(first.value)} at d_k {report.cases[0].d_k}"
    end = f"{plain(last.value)} at d_k {report.cases[-1].d_k}"
    difference = last.value - first.value
    error = math.hypot(first.error or 0.0, last.error or 0.0)
    if difference == 0 or abs(difference) <= _CERTAIN * error:
        return f"is {start} and {end}, no further apart than chance brings"
    return f"{'rises' if difference > 0 else 'falls'} from {start} to {end}"


def _variance(report: ScalingReport) -> str:
    first, last = report.cases[0], report.cases[-1]
    before, after = (case.plain.measures["score_variance"] for case in (first, last))
    scaled = [case.scaled.measures["score_variance"].value for case in report.cases]
    grown, wider = after.value / before.value, last.d_k / first.d_k
    return (
        f"Seen: without the scale the variance of the scores {_went(report, before, after)}, "
        f"×{plain(grown)} where d_k grows ×{whole(wider)}; with the scale it is {_span(scaled)}."
    )


def _span(values: list[float]) -> str:
    low, high = plain(min(values)), plain(max(values))
    return f"{low} throughout" if low == high else f"between {low} and {high}"


def _theory(report: ScalingReport) -> str:
    """How far the measured variances are from d_k; with the scale it is the same comparison."""
    off = [
        abs(estimate.value - case.plain.expected_variance) / estimate.error
        for case in report.cases
        if (estimate := case.plain.measures["score_variance"]).error
    ]
    if not off:
        return "Theory: one sample has no standard error to hold against; draw more with --samples."
    far = f"{max(off):.1f}" if max(off) >= 0.05 else "less than 0.1"
    words = f"{far} standard errors from d_k, and with the scale as far from 1"
    if len(off) == 1:
        return f"Theory: the measured variance is {words}."
    return f"Theory: the measured variances are at most {words}."


def _gradient(report: ScalingReport) -> str:
    first, last = report.cases[0], report.cases[-1]
    parts = []
    for words, sides in (
        ("without the scale", (first.plain, last.plain)),
        ("With it", (first.scaled, last.scaled)),
    ):
        before, after = (side.measures["jacobian_norm"] for side in sides)
        gone = [percent(side.measures["queries_vanished"].value) for side in sides]
        share = f"{gone[0]} of the queries at both"
        if gone[0] != gone[1]:
            share = f"{gone[0]} of the queries at d_k {first.d_k}, for {gone[1]} at d_k {last.d_k}"
        parts.append(
            f"{words} the mean norm {_went(report, before, after)}; it is below 0.01 for {share}"
        )
    return f"Gradient: {parts[0]}. {parts[1]}."


def _of_model(report: ScalingReport) -> list[str]:
    cases = report.cases
    if len(cases) == 1:
        return [_of_one(cases[0], f"in {report.name(cases[0])}")]
    kind = "heads" if cases[0].head is not None else "layers"
    bare = {report.name(case): case.plain.measures["score_variance"].value for case in cases}
    low, high = min(bare, key=lambda name: bare[name]), max(bare, key=lambda name: bare[name])
    sizes = sorted({case.d_k for case in cases})
    random = " or ".join(map(str, sizes)) if len(sizes) < 3 else f"{sizes[0]} to {sizes[-1]}"
    return [
        f"Seen: without the scale the variance of the scores runs from {plain(bare[low])} ({low}) "
        f"to {plain(bare[high])} ({high}); random queries and keys would have {random}.",
        f"Scale: as a mean of these {len(cases)} {kind} it takes {_moves(cases)}.",
    ]


def _mean(cases: tuple[ScalingCase, ...], side: str, name: str) -> float:
    sides = [case.plain if side == "plain" else case.scaled for case in cases]
    return sum(entry.measures[name].value for entry in sides) / len(sides)
