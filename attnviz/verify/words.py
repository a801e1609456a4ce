"""Verdicts, small numbers and tolerances in words."""

from __future__ import annotations

import math

from rich.color import Color
from rich.style import Style

from attnviz.draw.theme import Theme
from attnviz.verify.records import Check, Tolerance, Verdict, Verification

__all__ = [
    "INKS",
    "bound_words",
    "difference",
    "epsilon_words",
    "failure_words",
    "summary",
    "verdict",
    "verdict_style",
]

INKS: dict[Verdict, str] = {"pass": "#1fa37a", "fail": "#e8562a", "skipped": "#8a94a3"}
"""Green and vermilion that stay apart for common colour blindness (Okabe & Ito 2008)."""


def verdict(check: Check) -> str:
    """The verdict in four letters: PASS, FAIL, SKIP of what is missing, N/A of what cannot be."""
    if check.verdict == "skipped":
        return "N/A" if check.claim else "SKIP"
    return check.verdict.upper()


def verdict_style(found: Verdict, theme: Theme) -> Style:
    """Bold, and in its colour where there is any."""
    if not theme.colour:
        return Style(bold=found != "skipped", dim=found == "skipped")
    return Style(color=Color.parse(INKS[found]), bold=found != "skipped")


def difference(value: float) -> str:
    """A difference or a tolerance in at most seven characters, such as ``1.2e-07``."""
    if value == 0:
        return "0"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf"
    return f"{value:,.0f}" if value >= 1 and value == int(value) < 1e6 else f"{value:.1e}"


def bound_words(tolerance: Tolerance) -> str:
    """How a tolerance comes about, such as ``4ε·√152·6.3``."""
    if not tolerance.value:
        return "exactly 0"
    return f"4ε·√{tolerance.roundings:,}·{tolerance.largest:.3g}"


def epsilon_words(found: Verification) -> str:
    """Where tolerances come from, in one sentence."""
    least = (
        "" if found.rounds_in == found.dtype else ", in which its least exact steps are computed"
    )
    return (
        f"tolerance: 4ε·√n·m, where ε = {found.epsilon:.3g} is the machine epsilon of "
        f"{found.rounds_in}{least}, n roundings follow one another and add up as a random walk "
        "(Higham & Mary 2019), and m is the largest number that is rounded."
    )


def summary(found: Verification) -> list[tuple[str, Verdict]]:
    """How many checks ended how, as parts with the verdict that they tell of."""
    total = len(found.checks)
    parts: list[tuple[str, Verdict]] = [(f"{found.count('pass')} of {total} checks pass", "pass")]
    if found.failed:
        parts.append((f"{found.count('fail')} fail", "fail"))
    if found.count("skipped"):
        word = "do not apply" if found.model is not None else "skipped"
        if found.model is not None and found.count("skipped") == 1:
            word = "does not apply"
        parts.append((f"{found.count('skipped')} {word}", "skipped"))
    return parts


def failure_words(found: Verification) -> str:
    """The failed checks in one line."""
    named = []
    for check in found.failed:
        name = check.name if not check.against else f"{check.name} against {check.against}"
        group = f"{check.group}: " if check.group else ""
        worst = [measure for measure in check.measures if not measure.passed]
        told = ", ".join(
            f"{measure.name} {difference(measure.difference)}, tolerance "
            f"{difference(measure.tolerance.value)}"
            for measure in worst[:1]
        )
        named.append(f"{group}{name} ({told})")
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    count = f"{len(named)} of {len(found.checks)} checks failed"
    return f"{count}: {'; '.join(named[:3])}{more}"
