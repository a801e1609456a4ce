"""The words of a verification: the verdict, the failures, the tolerances, the explanation."""

from __future__ import annotations

import math

from attnviz.draw.document import Explanation
from attnviz.learn.verify.records import Check, ComparedNumber, VerifyReport


def difference(value: float) -> str:
    """Return a difference or a tolerance as a string of at most seven characters: ``1.2e-07``."""
    if value == 0:
        return "0"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf"
    return f"{value:,.0f}" if value >= 1 and value == int(value) < 1e6 else f"{value:.1e}"


def severity(measure: ComparedNumber) -> tuple[float, float, float]:
    """Return a sort key: (difference ÷ tolerance, difference, tolerance); NaN is the worst."""
    found, allowed = measure.difference, measure.tolerance.value
    if math.isnan(found):
        return math.inf, math.inf, allowed
    share = found / allowed if allowed else math.inf if found else 0.0
    return share, found, allowed


def verdict_words(report: VerifyReport) -> str:
    """Return a string with the numbers of checks that passed, failed and were skipped."""
    passed, failed, skipped = (report.count(one) for one in ("pass", "fail", "skipped"))
    words = [f"{passed} check{'s' * (passed != 1)} pass{'es' * (passed == 1)}"]
    if failed:
        words = [f"{failed} of {len(report.checks)} checks fail", f"{passed} pass"]
    if skipped:
        does_not = f"do{'es' * (skipped == 1)} not apply"
        words.append(f"{skipped} {'skipped' if report.model is None else does_not}")
    return ", ".join(words)


def worst_words(report: VerifyReport) -> str:
    """Return the worst error and its tolerance, as the end of a sentence."""
    places = [(check, measure) for check in report.checks for measure in check.measures]
    if not places:
        return ""
    check, worst = max(places, key=lambda place: severity(place[1]))
    numbers = f"{difference(worst.difference)} of {difference(worst.tolerance.value)}"
    if worst.passed:
        return f", worst error {severity(worst)[0]:.0%} of its tolerance ({numbers})"
    return f", worst error {numbers} allowed ({_named(check)}: {worst.name})"


def _named(check: Check) -> str:
    name = check.name if not check.against else f"{check.name} against {check.against}"
    return f"{check.group}: {name}" if check.group else name


def tolerance_words(report: VerifyReport) -> str:
    """Return a sentence on the origin of the tolerances."""
    least = (
        "" if report.rounds_in == report.dtype else ", in which its least exact steps are computed"
    )
    return (
        f"tolerance: 4ε·√n·m, where ε = {report.epsilon:.3g} is the machine epsilon of "
        f"{report.rounds_in}{least}, n roundings follow one another and add up as a random walk "
        "(Higham & Mary 2019), and m is the largest number that is rounded."
    )


def failure_words(report: VerifyReport) -> str:
    """Return the failed checks in one line."""
    named = []
    for check in report.failed:
        worst = max(check.measures, key=severity)
        numbers = f"{difference(worst.difference)}, tolerance {difference(worst.tolerance.value)}"
        named.append(f"{_named(check)} ({worst.name} {numbers})")
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    count = f"{len(named)} of {len(report.checks)} checks failed"
    return f"{count}: {'; '.join(named[:3])}{more}"


def explanation(report: VerifyReport) -> Explanation:
    """Return the glossary of a verification."""
    measured = "each line compares this library's attention with another's, on the same numbers."
    if report.model is not None:
        measured = "each line is a property that must hold for this model, measured on this text."
    return Explanation("verify", measured)
