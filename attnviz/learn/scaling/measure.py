"""Attention scores without and with the scale 1/√d_k, and the weights the softmax makes of both.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1: if entries have mean 0 and variance
1, the products have variance d_k, and the softmax reaches regions of extremely small gradients.
Measured on random queries and keys, or on those of a model over a text. Rows are distributions p
over the keys that a query sees; the weight of a hidden key is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats
from attnviz.engine.backend import backend_of
from attnviz.engine.observer import QueriesKeys, products, softmaxed
from attnviz.errors import UnsupportedError, UsageError
from attnviz.learn.scaling.records import (
    BIN_EDGES,
    HIGH_WEIGHT,
    MEASURES,
    VANISHED,
    Estimate,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
)
from attnviz.models.model import Model
from attnviz.records import Tokens

Visible = NDArray[np.bool_]


def jacobian_norms(weights: Floats) -> Floats:
    """Return the Frobenius norm ‖diag(p) − p pᵀ‖ of each row p: (..., query), in [0, ½].

    weights: (..., query, key).
    The Jacobian of the softmax is ∂p_i/∂s_j = p_i(δ_ij − p_j), so the norm's square is
    Σ_i p_i²(1 − p_i)² + Σ_{i≠j} p_i² p_j². The norm is ½ if two keys share all weight evenly,
    √(n − 1)/n if n keys do, and 0 if one key has all weight.
    """
    place = weights.argmax(-1, keepdims=True)
    # The largest weight is summed apart: near one it would absorb all others.
    top = np.take_along_axis(weights, place, -1)[..., 0]
    others = weights.copy()
    np.put_along_axis(others, place, 0, -1)
    rest = np.square(others)
    between = rest.sum(-1)
    pairs = 2 * np.square(top) * between + np.square(between) - np.square(rest).sum(-1)
    own = np.square(top * others.sum(-1)) + (rest * np.square(1 - others)).sum(-1)
    norms: Floats = np.sqrt(own + pairs)
    return norms


def normalised_entropies(weights: Floats, seen: NDArray[np.integer] | int) -> Floats:
    """Return −Σ p ln p / ln(keys seen) of each row p: (..., query), in [0, 1].

    weights: (..., query, key).
    seen: the number of keys that each query sees, at least two; (query,) or one number.
    """
    logs = np.log(np.where(weights > 0, weights, 1))
    entropies: Floats = -(weights * logs).sum(-1) / np.log(seen)
    return entropies


def histogram(weights: Floats) -> NDArray[np.intp]:
    """Return how many weights lie in each bin of ``BIN_EDGES``."""
    # Rounding may carry a weight past one.
    counts, _ = np.histogram(np.minimum(weights, 1), np.array(BIN_EDGES))
    return counts


def visible_rows(visible: Visible) -> NDArray[np.bool_]:
    """Return a mask (query,) of the queries that see two keys or more.

    With one key there is no choice. visible: (query, key), True if the query sees the key.
    """
    chosen: NDArray[np.bool_] = visible.sum(-1) > 1
    return chosen


def matrix_measures(
    scores: Floats, weights: Floats, visible: Visible | None = None
) -> dict[str, Floats]:
    """Return each measure of ``records.MEASURES`` by name, one number for each matrix: (...).

    scores, weights: (..., query, key), the attention scores and the attention weights.
    visible: (query, key), True if the query sees the key, two keys or more; None if all are seen.
    """
    if visible is None:
        pairs, seen = scores.reshape(*scores.shape[:-2], -1), scores.shape[-1]
        cells = scores.shape[-2] * scores.shape[-1]
    else:
        pairs, seen = scores[..., visible], visible.sum(-1)
        cells = int(visible.sum())
    largest, norms = weights.max(-1), jacobian_norms(weights)
    return {
        "score_variance": pairs.var(-1, ddof=1),
        "normalised_entropy": normalised_entropies(weights, seen).mean(-1),
        "largest_weight": largest.mean(-1),
        "weights_above": (weights > HIGH_WEIGHT).sum((-2, -1)) / cells,
        "queries_above": (largest > HIGH_WEIGHT).mean(-1),
        "jacobian_norm": norms.mean(-1),
        "queries_vanished": (norms < VANISHED).mean(-1),
    }


# Means over matrices --------------------------------------------------------------------------


class _Side:
    """Measures the softmax of the scores q·k times one scale, over many matrices.

    scale: the factor of the scores.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._values: dict[str, list[Floats]] = {name: [] for name in MEASURES}
        self._histogram = np.zeros(len(BIN_EDGES) - 1, np.int64)

    def add(
        self, products: Floats, bias: Floats | None = None, rows: NDArray[np.bool_] | None = None
    ) -> None:
        """Measure the softmax of more matrices of scores q·k.

        ``result`` includes them in its means.
        products: (..., query, key). bias: (query, key), added before the softmax, −inf if a key is
            hidden. rows: which queries count; None for all.
        """
        weights = softmaxed(products, self.scale, bias)
        scores = products * self.scale
        visible = None
        if rows is not None:
            scores, weights = scores[..., rows, :], weights[..., rows, :]
        if bias is not None:
            visible = bias > -np.inf
            visible = visible if rows is None else visible[rows]
        for name, value in matrix_measures(scores, weights, visible).items():
            self._values[name].append(np.ravel(value))
        self._histogram += histogram(weights if visible is None else weights[..., visible])

    def result(self, d_k: int, independent: bool) -> ScaledSoftmax:
        """Return the means over all added matrices, with standard errors if these are independent.

        d_k: the number of entries of a query and of a key.
        """
        joined = {name: np.concatenate(parts) for name, parts in self._values.items()}
        return ScaledSoftmax(
            self.scale,
            {name: _estimate(values, independent) for name, values in joined.items()},
            tuple(self._histogram.tolist()),
            self.scale**2 * d_k,
        )


def _estimate(values: Floats, independent: bool) -> Estimate:
    """Return the mean of one number per matrix and, if independent, its standard error.

    values: (matrix,).
    """
    mean = float(values.mean())
    if not independent or len(values) < 2:
        return Estimate(mean)
    return Estimate(mean, float(values.std(ddof=1)) / math.sqrt(len(values)))


# Random queries and keys ------------------------------------------------------------------------

_BLOCK_CELLS = 2**18
"""Number of score-matrix cells that are measured at once."""

_NUMBER = 8
"""Bytes of a float64."""

_MATRICES_A_BLOCK = 8
"""Arrays of a block's size in memory at once: scores, weights and intermediate results."""

_MEASURES_A_SAMPLE = 2 * 7


def needed_bytes(sizes: Sequence[int], seq: int, samples: int) -> int:
    """Return the peak memory of ``random_scaling`` in bytes; the arguments are the same."""
    block = min(_samples_a_block(seq), samples)
    drawn = 2 * block * seq * max(sizes, default=0)
    matrices = _MATRICES_A_BLOCK * block * seq * seq
    return _NUMBER * (drawn + matrices + _MEASURES_A_SAMPLE * samples)


def random_scaling(
    sizes: Sequence[int],
    seq: int,
    samples: int,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> ScalingReport:
    """Measure the softmax for random queries and keys with independent N(0, 1) entries.

    sizes: the values of d_k, each at least 1.
    seq: number of queries and of keys of a sample, at least 2.
    samples: independent draws, at least 1; from two on every measure has a standard error.
    progress: called with the share that is done.
    The result for one d_k depends on seed, seq and samples, not on the other sizes.
    """
    ordered = sorted(set(sizes))
    cases, whole = [], sum(ordered) or 1
    for place, d_k in enumerate(ordered):
        before = sum(ordered[:place])

        def advance(share: float, d_k: int = d_k, before: int = before) -> None:
            progress((before + share * d_k) / whole)

        cases.append(_random_case(d_k, seq, samples, seed, advance))
    return ScalingReport(tuple(cases), seq, samples, seed=seed)


def _random_case(
    d_k: int, seq: int, samples: int, seed: int, progress: Callable[[float], None]
) -> ScalingCase:
    generator = np.random.default_rng((seed, d_k))
    plain, scaled = _Side(1.0), _Side(1 / math.sqrt(d_k))
    size = _samples_a_block(seq)
    for start in range(0, samples, size):
        block = min(size, samples - start)
        # Queries and keys of a sample are drawn together, so that ``size`` changes no number.
        drawn = generator.standard_normal((block, 2, seq, d_k))
        scores = products(drawn[:, 0], drawn[:, 1])
        plain.add(scores)
        scaled.add(scores)
        progress((start + block) / samples)
    return ScalingCase(
        d_k,
        plain.result(d_k, independent=True),
        scaled.result(d_k, independent=True),
        queries=samples * seq,
        weights=samples * seq * seq,
    )


def _samples_a_block(seq: int) -> int:
    return max(_BLOCK_CELLS // (seq * seq), 1)


# Queries and keys of a model --------------------------------------------------------------------

_MATRICES_A_HEAD = 10
"""Number of float64 arrays (query, key) in memory while one head is measured."""


def needed_text_bytes(tokens: int) -> int:
    """Return the peak memory of ``model_scaling`` for a text in bytes, without the model itself."""
    return _NUMBER * _MATRICES_A_HEAD * tokens * tokens


def model_scaling(
    model: Model,
    tokens: Tokens,
    heads: Mapping[int, frozenset[int]] | None = None,
    *,
    seed: int = 0,
    by_head: bool = False,
    index_base: int = 0,
) -> ScalingReport:
    """Measure the softmax for each layer's queries and keys over one text, in float64.

    heads: the chosen heads of each layer; None for all.
    by_head: True makes a case for each head instead of a mean over the heads of each layer.
    Queries that see only one key are left out. There are no standard errors: the queries of one
    text are not independent.

    Raises UsageError if no query sees two keys or no layer has a chosen head, UnsupportedError if
    the model does not expose its queries and keys, or has no scale.
    """
    cases: list[ScalingCase] = []

    def take(found: QueriesKeys) -> None:
        every = range(len(found.query))
        chosen = [head for head in every if heads is None or head in heads[found.layer]]
        if found.scale == 1:
            raise UnsupportedError(
                f"{model.info.name!r} does not scale its scores, so there is nothing to compare: "
                "choose another --model"
            )
        groups = [[head] for head in chosen] if by_head else [chosen]
        cases.extend(_model_case(found, group, by_head) for group in groups if group)

    backend_of(model).observe_queries_keys(
        tokens, lambda layer: heads is None or layer in heads, take
    )
    notes = model.info.notes + model.notes_for(tokens)
    if not cases:
        raise UsageError(
            "none of the chosen layers has such a head: choose others with --layer or --head"
        )
    cases.sort(key=lambda case: (case.layer or 0, case.head or 0))
    return ScalingReport(
        tuple(cases), len(tokens), seed=seed, model=model.info, notes=notes, index_base=index_base
    )


def _model_case(found: QueriesKeys, heads: list[int], by_head: bool) -> ScalingCase:
    d_k = found.query.shape[-1]
    plain, scaled = _Side(1.0), _Side(found.scale)
    queries = weights = 0
    for head in heads:
        query, key, bias = found.head(head)
        seen = np.ones((len(query), len(key)), bool) if bias is None else bias > -np.inf
        rows = visible_rows(seen)
        if not rows.any():
            raise UsageError(
                "every query of this text sees one key only: expected a text of at least two tokens"
            )
        scores = products(query.astype(np.float64), key.astype(np.float64))
        for side in (plain, scaled):
            side.add(scores, bias, rows)
        queries += int(rows.sum())
        weights += int(seen[rows].sum())
    return ScalingCase(
        d_k=d_k,
        plain=plain.result(d_k, independent=False),
        scaled=scaled.result(d_k, independent=False),
        queries=queries,
        weights=weights,
        layer=found.layer,
        head=heads[0] if by_head else None,
        heads=len(heads),
    )
