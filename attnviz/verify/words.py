"""Verdicts, small numbers and tolerances in words, and the reading for newcomers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attnviz.draw.theme import Tone
from attnviz.verify.records import Check, Measure, Tolerance, Verdict, Verification

__all__ = [
    "TONES",
    "bound_words",
    "difference",
    "epsilon_words",
    "explanation",
    "failure_words",
    "reason_words",
    "summary",
    "verdict",
]

TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "skipped": "skipped"}


def verdict(check: Check) -> str:
    """The verdict in four letters: PASS, FAIL, SKIP of what is missing, N/A of what cannot be."""
    if check.verdict == "skipped":
        return "N/A" if check.claim else "SKIP"
    return check.verdict.upper()


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


def reason_words(measure: Measure) -> str:
    """How the tolerance of a measure comes about, and why."""
    return f"{bound_words(measure.tolerance)}: {measure.reason}"


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


def summary(found: Verification) -> list[tuple[str, Tone]]:
    """How many checks ended how, as parts with the tone of the verdict that they tell of."""
    failed, skipped = found.count("fail"), found.count("skipped")
    parts: list[tuple[str, Tone]] = [
        (f"{found.count('pass')} of {len(found.checks)} checks pass", "good")
    ]
    if failed:
        parts.append((f"{failed} fail", "bad"))
    if skipped:
        word = "skipped" if found.model is None else f"do{'es' * (skipped == 1)} not apply"
        parts.append((f"{skipped} {word}", "skipped"))
    return parts


def failure_words(found: Verification) -> str:
    """The failed checks in one line."""
    named = []
    for check in found.failed:
        name = check.name if not check.against else f"{check.name} against {check.against}"
        group = f"{check.group}: " if check.group else ""
        worst = next(measure for measure in check.measures if not measure.passed)
        named.append(
            f"{group}{name} ({worst.name} {difference(worst.difference)}, tolerance "
            f"{difference(worst.tolerance.value)})"
        )
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    count = f"{len(named)} of {len(found.checks)} checks failed"
    return f"{count}: {'; '.join(named[:3])}{more}"


def explanation(found: Verification) -> tuple[str, ...]:
    """Paragraphs; what stands before the first colon is what they are about."""
    return tuple(_of_model(found) if found.model is not None else _of_own(found))


def _of_own(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each row computes the same attention twice, by this library and by "
        "another way, and shows the largest difference of any two numbers: of the outputs, and of "
        "the attention weights. PASS means that no difference is larger than rounding explains."
    )
    yield (
        "ours: NumPy and torch are the library's own two ways; fused is its torch module while "
        "nobody looks at the weights, when a kernel computes the output without them."
    )
    yield (
        "against: the naive loop is the textbook's formula as three nested loops over plain "
        "numbers, written apart from the library; torch and Keras bring layers of their own, into "
        "which the same numbers were put. F.scaled_dot_product_attention returns no weights: they "
        "are read off by letting it mix the rows of an identity matrix."
    )
    yield (
        "rounding: computers keep a limited number of digits, so the same sum in another order "
        "ends a little differently. A mistake in the formula is thousands of times larger."
    )
    if found.steps:
        yield (
            "the steps: each head compares the query of a token (Q) with the key of every token "
            "(K), turns the scores into shares of one (A), and mixes the values (V) by them."
        )


def _of_model(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each block is a property that must hold if what attnviz shows of this "
        "model is to be trusted. A line is one measured number, its tolerance, and why it may be "
        "that large. PASS means that every number of the block is within its tolerance."
    )
    yield "rows: a query spreads exactly one over what it sees; a learned sink may take a part."
    yield (
        "causality: a language model must not see the future. Later tokens are changed for real, "
        "and everything before them has to stay."
    )
    yield (
        "heads: what each head puts out (z_h), sent through its own part of the output projection "
        "(W_O^h), adds up to what the module puts out; so removing a head is well defined."
    )
    yield (
        "bit for bit: where the same operations run on the same numbers, not even the last digit "
        "may differ; there the tolerance is 0."
    )
