"""The report of ``attnviz scaling``: the softmax of scores without and with the scale 1/√d_k.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 and its footnote: the product of a
query and a key whose d_k entries are independent with mean 0 and variance 1 has variance d_k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from attnviz.draw.numbers import percent
from attnviz.draw.report import Report
from attnviz.draw.values import model_facts
from attnviz.records import ModelInfo, Provenance

HIGH_WEIGHT = 0.9
"""A weight above this leaves almost nothing for the other keys."""

VANISHED = 0.01
"""Norm of the softmax's Jacobian below which almost no gradient passes; √(n − 1)/n is uniform."""

LABELS = {
    "score_variance": "score variance",
    "normalised_entropy": "normalised entropy (1 = uniform)",
    "largest_weight": "largest weight",
    "weights_above": "weights > 0.9",
    "queries_above": "queries with a weight > 0.9",
    "jacobian_norm": "softmax gradient norm",
    "queries_vanished": "vanishing-gradient queries (< 0.01)",
}
"""The name of each measure on screen, in the order of the report."""

MEASURES = tuple(LABELS)

PERCENTS = frozenset({"weights_above", "queries_above", "queries_vanished"})
"""The measures that are shares and are shown as percentages."""

_LOWEST_DECADE, _BINS_A_DECADE = -8, 4
BIN_EDGES = (
    0.0,
    *(
        10 ** (step / _BINS_A_DECADE + _LOWEST_DECADE)
        for step in range(-_LOWEST_DECADE * _BINS_A_DECADE + 1)
    ),
)
"""Edges of the histogram bins: 0 to 1e-8, then four bins per power of ten up to 1. A weight on an
edge is in the bin above it, 1 in the last bin."""


_CERTAIN = 2.0
"""Number of standard errors from which a difference is reported."""

_COLUMNS = (
    *("d_k", "layer", "head", "side", "scale", "measure"),
    *("value", "standard_error", "expected", "bin_from", "bin_to"),
)


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty.

    value: the mean. error: its standard error; None without independent samples.
    """

    value: float
    error: float | None = None


@dataclass(frozen=True)
class ScaledSoftmax:
    """The measures of the softmax of the scores q·k times one scale.

    scale: the factor of the products q·k. measures: by the names of ``MEASURES``. score_variance:
        over all pairs of a query and a key that it sees (divisor N − 1). normalised_entropy: −Σ p
        ln p over ln(keys seen), mean over queries; in [0, 1]. largest_weight: mean over queries; in
        (0, 1]. weights_above: share of all weights that exceed ``HIGH_WEIGHT``. queries_above:
        share of the queries that have such a weight. jacobian_norm: mean over queries of ‖diag(p) −
        p pᵀ‖, Frobenius; in [0, ½]. queries_vanished: share of the queries whose norm is below
        ``VANISHED``. histogram: number of weights in each bin of ``BIN_EDGES``. expected_variance:
        score_variance in theory: scale² · d_k for independent entries of mean 0 and variance 1.
    """

    scale: float
    measures: Mapping[str, Estimate]
    histogram: tuple[int, ...]
    expected_variance: float

    def __post_init__(self) -> None:
        if tuple(self.measures) != MEASURES:
            raise ValueError(f"expected the measures {MEASURES}, got {tuple(self.measures)}")
        if len(self.histogram) != len(BIN_EDGES) - 1:
            raise ValueError(
                f"expected {len(BIN_EDGES) - 1} bins, got {len(self.histogram)} of them"
            )

    def shares(self) -> tuple[float, ...]:
        """Return the share of all weights in each bin of ``BIN_EDGES``."""
        total = sum(self.histogram)
        return tuple(count / total for count in self.histogram)


@dataclass(frozen=True)
class ScalingCase:
    """The same queries and keys measured without the scale and with it.

    d_k: number of entries of a query and of a key.
    plain: the products q·k themselves, scale 1. scaled: the products times the scale.
    queries, weights: how many were measured, over all samples or heads together.
    layer, head: of the queries and keys, from 0; None for random ones, head None for a whole layer.
    heads: number of heads taken together.
    """

    d_k: int
    plain: ScaledSoftmax
    scaled: ScaledSoftmax
    queries: int
    weights: int
    layer: int | None = None
    head: int | None = None
    heads: int = 1

    def __post_init__(self) -> None:
        for side in self.sides.values():
            if sum(side.histogram) != self.weights:
                raise ValueError(
                    f"expected {self.weights} weights in a histogram, got {sum(side.histogram)}"
                )

    @property
    def sides(self) -> dict[str, ScaledSoftmax]:
        """Return the softmax ``without`` and ``with`` the scale."""
        return {"without": self.plain, "with": self.scaled}

    def both(self, name: str) -> tuple[float, float]:
        """Return the measure ``name`` without and with the scale."""
        return self.plain.measures[name].value, self.scaled.measures[name].value

    def both_ways(self, name: str) -> str:
        """Return the measure ``name`` without and with the scale, such as ``64.0 → 1.00``."""
        return " → ".join(map(percent if name in PERCENTS else plain, self.both(name)))

    @property
    def gain(self) -> float:
        """Return the mean normalised entropy with the scale minus that without it; in [−1, 1]."""
        before, after = self.both("normalised_entropy")
        return after - before


@dataclass(frozen=True, repr=False)
class ScalingReport(Report, Provenance):
    """The report of ``attnviz scaling``: the effect of the scale 1/√d_k on the softmax.

    cases: for random queries and keys one for each d_k, smallest first; for a model one for each
        layer or head.
    keys: number of keys and of queries of a sample; of a model the number of tokens.
    samples: independent draws of each case; 1 for a model.
    model: the model of the queries and keys; None for random ones.
    """

    cases: tuple[ScalingCase, ...]
    keys: int
    samples: int = 1
    model: ModelInfo | None = None

    command = "scaling"

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError("a report has at least one case")
        sizes = [case.d_k for case in self.cases]
        if self.model is None and any(left >= right for left, right in pairwise(sizes)):
            raise ValueError(f"expected the sizes in order, each once, got {sizes}")

    def name(self, case: ScalingCase) -> str:
        """Return the name of a case: ``d_k 64``, ``layer 2`` or ``L2H5``."""
        if case.layer is None:
            return f"d_k {case.d_k}"
        if case.head is None:
            return f"layer {case.layer + self.index_base}"
        return self.head_name((case.layer, case.head))

    def data(self) -> dict[str, Any]:
        """Return the whole report as one JSON object."""
        return {
            "schema": "attnviz.scaling/1",
            "model": None if self.model is None else model_facts(self.model),
            "source": "random" if self.model is None else "model",
            "seed": self.seed,
            "keys": self.keys,
            "samples": self.samples,
            "text": self.text if self.model is not None else None,
            "text_source": self.source or None,
            "high_weight": HIGH_WEIGHT,
            "vanished_norm": VANISHED,
            "bin_edges": BIN_EDGES,
            "cases": [
                {
                    "d_k": case.d_k,
                    "layer": case.layer,
                    "head": case.head,
                    "heads": case.heads,
                    "queries": case.queries,
                    "weights": case.weights,
                    **{f"{name}_scale": _side(side) for name, side in case.sides.items()},
                }
                for case in self.cases
            ],
            "finding": self.finding,
            "seen": self.seen,
            "notes": self.notes,
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the table: a row for each measure, and for each bin of a histogram."""
        yield _COLUMNS
        for case in self.cases:
            for name, side in case.sides.items():
                shared = (case.d_k, case.layer, case.head, name, side.scale)
                for measure, estimate in side.measures.items():
                    expected = side.expected_variance if measure == "score_variance" else None
                    yield (*shared, measure, estimate.value, estimate.error, expected, None, None)
                for edges, count in zip(pairwise(BIN_EDGES), side.histogram, strict=True):
                    yield (*shared, "weights_in_bin", count, None, None, *edges)

    @property
    def seen(self) -> list[str]:
        """Return sentences on the variance of the scores; each begins with a label and a colon."""
        variances = [case.plain.measures["score_variance"] for case in self.cases]
        if self.model is not None:
            return [_of_model(self, [variance.value for variance in variances])]
        # Of one sample there is no standard error.
        off = [
            abs(variance.value - case.plain.expected_variance) / variance.error
            for case, variance in zip(self.cases, variances, strict=True)
            if variance.error
        ]
        theory = (
            "Theory: one sample has no standard error to hold against; draw more with --samples."
        )
        if off:
            far = f"{max(off):.1f}" if max(off) >= 0.05 else "less than 0.1"
            most = "variance is" if len(off) == 1 else "variances are at most"
            theory = (
                f"Theory: the measured {most} {far} SE from d_k; with the scale likewise from 1."
            )
        return [*([_growth(self.cases)] if len(self.cases) > 1 else []), theory]


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


def _side(side: ScaledSoftmax) -> dict[str, Any]:
    return {
        "scale": side.scale,
        "expected_variance": side.expected_variance,
        **{name: asdict(estimate) for name, estimate in side.measures.items()},
        "histogram": side.histogram,
    }


def _growth(cases: tuple[ScalingCase, ...]) -> str:
    """Return a sentence on how the score variance changes from the smallest d_k to the largest."""
    first, last = (case.plain.measures["score_variance"] for case in (cases[0], cases[-1]))
    start = f"{plain(first.value)} at d_k {cases[0].d_k}"
    end = f"{plain(last.value)} at d_k {cases[-1].d_k}"
    difference = last.value - first.value
    change = f"{'rises' if difference > 0 else 'falls'} from {start} to {end}"
    if abs(difference) <= _CERTAIN * math.hypot(first.error or 0.0, last.error or 0.0):
        change = f"is {start} and {end}, no significant difference"
    scaled = [case.both("score_variance")[1] for case in cases]
    low, high = plain(min(scaled)), plain(max(scaled))
    span = f"{low} throughout" if low == high else f"between {low} and {high}"
    return (
        f"Result: without the scale the score variance {change}, "
        f"×{plain(last.value / first.value)} where d_k grows ×"
        f"{whole(cases[-1].d_k / cases[0].d_k)}; with the scale it is {span}."
    )


def _of_model(report: ScalingReport, variances: list[float]) -> str:
    """Return a sentence on the score variances of a model's cases."""
    bare = sorted(zip(variances, map(report.name, report.cases), strict=True))
    (low, lowest), (high, highest) = bare[0], bare[-1]
    span = f"is {plain(low)} in {lowest}"
    if len(bare) > 1:
        span = f"runs from {plain(low)} ({lowest}) to {plain(high)} ({highest})"
    sizes = sorted({case.d_k for case in report.cases})
    random = " or ".join(map(str, sizes)) if len(sizes) < 3 else f"{sizes[0]} to {sizes[-1]}"
    return (
        f"Result: without the scale the score variance {span}; random queries and keys would have "
        f"{random}."
    )
