"""The report of ``attnviz scaling``: the softmax of scores without and with the scale 1/√d_k.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 and its footnote: the product of a
query and a key whose d_k entries are independent with mean 0 and variance 1 has variance d_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts
from attnviz.records import ModelInfo, Provenance

HIGH_WEIGHT = 0.9
"""A weight above this leaves almost nothing for the other keys."""

VANISHED = 0.01
"""Norm of the softmax's Jacobian below which almost no gradient passes; √(n − 1)/n is uniform."""

BIN_EDGES = (0.0, *(10 ** (step / 4 - 8) for step in range(33)))
"""Edges of the histogram bins: 0 to 1e-8, then four bins per power of ten up to 1. A weight on an
edge is in the bin above it, 1 in the last bin."""

_COLUMNS = (
    *("d_k", "layer", "head", "side", "scale", "measure"),
    *("value", "standard_error", "expected", "bin_from", "bin_to"),
)


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error, which is None without independent samples."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class ScaledSoftmax:
    """The measures of the softmax of the scores q·k times one scale.

    scale: the factor of the products q·k. histogram: number of weights in each bin of
    ``BIN_EDGES``. measures: by name. score_variance: over all pairs of a query and a key that it
    sees (divisor N − 1). normalised_entropy: −Σ p ln p over ln(keys seen), mean over queries; in
    [0, 1]. largest_weight: mean over queries; in (0, 1]. weights_above: share of all weights that
    exceed ``HIGH_WEIGHT``. queries_above: share of the queries that have such a weight.
    jacobian_norm: mean over queries of ‖diag(p) − p pᵀ‖, Frobenius; in [0, ½]. queries_vanished:
    share of the queries whose norm is below ``VANISHED``. expected_variance: score_variance in
    theory: scale² · d_k for independent entries of mean 0 and variance 1.
    """

    scale: float
    measures: Mapping[str, Estimate]
    histogram: tuple[int, ...]
    expected_variance: float

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

    @property
    def sides(self) -> dict[str, ScaledSoftmax]:
        """Return the softmax ``without`` and ``with`` the scale."""
        return {"without": self.plain, "with": self.scaled}

    def both(self, name: str) -> tuple[float, float]:
        """Return the measure ``name`` without and with the scale."""
        return self.plain.measures[name].value, self.scaled.measures[name].value

    @property
    def gain(self) -> float:
        """Return the mean normalised entropy with the scale minus that without it; in [−1, 1]."""
        before, after = self.both("normalised_entropy")
        return after - before


@dataclass(frozen=True)
class ActivationCurve:
    """An activation function over its input, or a gate times the input that it multiplies.

    points: (x, value), from left to right. lowest: the point of the least value; None for a gate,
        and for a function that is never below 0.
    zero: the share of inputs from N(0, 1) at which the output is exactly 0. nearly: the share at
        which it is closer to 0 than ``NEARLY_ZERO``. up: what the gate multiplies; None without.
    """

    name: str
    formula: str
    points: tuple[tuple[float, float], ...]
    lowest: tuple[float, float] | None = None
    zero: float | None = None
    nearly: float | None = None
    up: float | None = None


@dataclass(frozen=True, repr=False)
class ScalingReport(Report, Provenance):
    """The report of ``attnviz scaling``: the effect of the scale 1/√d_k on the softmax.

    cases: for random queries and keys one for each d_k, smallest first; for a model one for each
        layer or head.
    keys: number of keys and of queries of a sample; of a model the number of tokens.
    samples: independent draws of each case; 1 for a model.
    model: the model of the queries and keys; None for random ones.
    activations: activation functions as curves, in place of all cases.
    """

    cases: tuple[ScalingCase, ...]
    keys: int
    samples: int = 1
    model: ModelInfo | None = None
    activations: tuple[ActivationCurve, ...] = ()

    command = "scaling"

    def name(self, case: ScalingCase) -> str:
        """Return the name of a case: ``d_k 64``, ``layer 2`` or ``L2H5``."""
        if case.layer is None:
            return f"d_k {case.d_k}"
        if case.head is None:
            return f"layer {case.layer + self.index_base}"
        return self.head_name((case.layer, case.head))

    def data(self) -> dict[str, Any]:
        return {
            "schema": "attnviz.scaling/1",
            "model": None if self.model is None else model_facts(self.model),
            "source": "random" if self.model is None else "model",
            **fields_of(self, ("seed", "keys", "samples")),
            "text": self.text if self.model is not None else None,
            "text_source": self.source or None,
            "high_weight": HIGH_WEIGHT,
            "vanished_norm": VANISHED,
            "bin_edges": BIN_EDGES,
            "cases": [
                {
                    **fields_of(case, ("d_k", "layer", "head", "heads", "queries", "weights")),
                    **{f"{name}_scale": _side(side) for name, side in case.sides.items()},
                }
                for case in self.cases
            ],
            **({"activations": [*map(asdict, self.activations)]} if self.activations else {}),
            **fields_of(self, ("finding", "seen", "notes")),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the table: a row for each measure, and for each bin of a histogram.

        Of activation functions it has a row for each point of a curve.
        """
        if self.activations:
            yield ("activation", "up", "x", "value")
            for curve in self.activations:
                yield from ((curve.name, curve.up, *point) for point in curve.points)
            return
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
        """Return a sentence that compares the variance of random scores with theory, or []."""
        estimates = [(case.d_k, case.plain.measures["score_variance"]) for case in self.cases]
        off = [abs(mean.value - d_k) / mean.error for d_k, mean in estimates if mean.error]
        if self.model is not None or not off:  # of one sample there is no standard error
            return []
        far = f"{-(-10 * max(off) // 1) / 10:.1f}"  # rounded up
        most = "variance is" if len(off) == 1 else "variances are"
        return [f"Theory: the measured {most} within {far} SE of d_k, and of 1 with the scale."]


def _side(side: ScaledSoftmax) -> dict[str, Any]:
    return {
        **fields_of(side, ("scale", "expected_variance")),
        **{name: asdict(estimate) for name, estimate in side.measures.items()},
        "histogram": side.histogram,
    }
