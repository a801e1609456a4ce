"""Records of the softmax of attention scores without and with the scale 1/√d_k.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 and its footnote: the product of a
query and a key whose d_k entries are independent with mean 0 and variance 1 has variance d_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attnviz.draw.report import Report
from attnviz.draw.values import model_facts
from attnviz.records import ModelInfo, Provenance

if TYPE_CHECKING:
    from attnviz.draw.document import Document

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

    def data(self) -> dict[str, Any]:
        """Return the measures and the histogram as JSON values."""
        return {
            "scale": self.scale,
            "expected_variance": self.expected_variance,
            **{name: asdict(estimate) for name, estimate in self.measures.items()},
            "histogram": list(self.histogram),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the last cells of a row for each measure and for each bin of the histogram."""
        for measure, estimate in self.measures.items():
            expected = self.expected_variance if measure == "score_variance" else None
            yield measure, estimate.value, estimate.error, expected, None, None
        for edges, count in zip(pairwise(BIN_EDGES), self.histogram, strict=True):
            yield ("weights_in_bin", count, None, None, *edges)


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
        for side in (self.plain, self.scaled):
            if sum(side.histogram) != self.weights:
                raise ValueError(
                    f"expected {self.weights} weights in a histogram, got {sum(side.histogram)}"
                )


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
        from attnviz.learn.scaling.words import finding, seen

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
            "bin_edges": list(BIN_EDGES),
            "cases": [
                {
                    "d_k": case.d_k,
                    "layer": case.layer,
                    "head": case.head,
                    "heads": case.heads,
                    "queries": case.queries,
                    "weights": case.weights,
                    "without_scale": case.plain.data(),
                    "with_scale": case.scaled.data(),
                }
                for case in self.cases
            ],
            "finding": finding(self),
            "seen": seen(self),
            "notes": list(self.notes),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        yield _COLUMNS
        for case in self.cases:
            for name, side in (("without", case.plain), ("with", case.scaled)):
                for row in side.rows():
                    yield (case.d_k, case.layer, case.head, name, side.scale, *row)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.learn.scaling.document import scaling_document

        return scaling_document(self).shown(explain=explain, hints=hints)
