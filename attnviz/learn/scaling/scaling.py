"""Measures attention scores without and with the scale 1/√d_k, and the weights that they give.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1: if entries have mean 0 and variance
1, the products have variance d_k, and the softmax reaches regions of extremely small gradients.
Measured on random queries and keys, or on those of a model over a text. Rows are distributions p
over the keys that a query sees; the weight of a hidden key is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import encoded
from attnviz.engine.observer import QueriesKeys, products, softmaxed
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.learn.scaling.report import (
    BIN_EDGES,
    HIGH_WEIGHT,
    MEASURES,
    VANISHED,
    Estimate,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
)
from attnviz.learn.scaling.request import ScalingRequest
from attnviz.models.memory import require_room
from attnviz.models.model import Model
from attnviz.models.work import Work, about_tokens
from attnviz.progress import Advance
from attnviz.records import Tokens
from attnviz.texts import BUILT_IN_TEXT, Texts

_BLOCK_CELLS = 2**18
"""Number of score-matrix cells that are measured at once."""

_NUMBER = 8
"""Bytes of a float64."""

_MATRICES_A_BLOCK = 8
"""Arrays of a block's size in memory at once: scores, weights and intermediate results."""

_MATRICES_A_HEAD = 10
"""Number of float64 arrays (query, key) in memory while one head is measured."""

_NEEDED = "the scores and weights take"

BUILT_IN = Texts((BUILT_IN_TEXT,), "a built-in text")
"""The text that a model reads if none is given."""

Visible = NDArray[np.bool_]


def work(text: Texts, request: ScalingRequest) -> Work:
    """Return what is planned with a model for a text, by which NumPy or torch is chosen."""
    return Work(about_tokens(text.texts[0]))


def scaling(
    model: Model | None,
    text: Texts,
    request: ScalingRequest,
    *,
    advance: Advance = lambda share: None,
) -> ScalingReport:
    """Compare the softmax of the scores with and without the scale 1/√d_k.

    model: the model whose queries and keys over the text are measured; None for random ones, for
        which the text is ignored. advance: is called with the share that is done.
    Raises UsageError if options do not fit, the text has one token or the memory is too small,
    UnsupportedError if the model does not expose its queries and keys.
    """
    request.check_source(model is not None)
    if model is None:
        seq = 64 if request.seq is None else request.seq
        samples = 100 if request.samples is None else request.samples
        needed = needed_bytes(request.sizes, seq, samples)
        require_room(_NEEDED, needed, "choose a smaller --d-k, --seq or --samples")
        return random_scaling(request.sizes, seq, samples, request.seed, advance)
    info = model.info
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, request.index_base)
    tokens = encoded(model, text.texts[0], request.truncate)
    if len(tokens) < 2:
        raise UsageError(
            "the text has one token: expected at least two, or there is nothing to choose"
        )
    needed = _NUMBER * _MATRICES_A_HEAD * len(tokens) ** 2
    require_room(_NEEDED, needed, "shorten the text, or add --truncate")
    report = model_scaling(
        model,
        tokens,
        chosen,
        seed=request.seed,
        by_head=bool(request.head),
        index_base=request.index_base,
    )
    return replace(report, text=text.texts[0], source=text.source)


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


class _Side:
    """Measures the softmax of the scores q·k times one scale, over many matrices."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._values: dict[str, list[Floats]] = {name: [] for name in MEASURES}
        self._histogram = np.zeros(len(BIN_EDGES) - 1, np.int64)

    def add(
        self, products: Floats, bias: Floats | None = None, rows: NDArray[np.bool_] | None = None
    ) -> None:
        """Measure the softmax of more matrices of scores q·k.

        products: (..., query, key). bias: (query, key), added before the softmax, −inf if a key is
            hidden. rows: which queries count; None for all.
        """
        weights, scores = softmaxed(products, self.scale, bias), products * self.scale
        visible = None if bias is None else bias > -np.inf
        if rows is not None:
            scores, weights = scores[..., rows, :], weights[..., rows, :]
            visible = None if visible is None else visible[rows]
        for name, value in matrix_measures(scores, weights, visible).items():
            self._values[name].append(np.ravel(value))
        self._histogram += histogram(weights if visible is None else weights[..., visible])

    def result(self, d_k: int, independent: bool) -> ScaledSoftmax:
        """Return the means over all added matrices, with standard errors if these are independent.

        d_k: the number of entries of a query and of a key.
        """
        measures = {}
        for name, parts in self._values.items():
            values = np.concatenate(parts)
            error = None
            if independent and len(values) > 1:
                error = float(values.std(ddof=1)) / math.sqrt(len(values))
            measures[name] = Estimate(float(values.mean()), error)
        counts = tuple(self._histogram.tolist())
        return ScaledSoftmax(self.scale, measures, counts, self.scale**2 * d_k)


def needed_bytes(sizes: Sequence[int], seq: int, samples: int) -> int:
    """Return the peak memory of ``random_scaling`` in bytes; the arguments are the same."""
    block = min(_samples_a_block(seq), samples)
    drawn = 2 * block * seq * max(sizes, default=0)
    matrices = _MATRICES_A_BLOCK * block * seq * seq
    return _NUMBER * (drawn + matrices + 2 * len(MEASURES) * samples)


def _samples_a_block(seq: int) -> int:
    return max(_BLOCK_CELLS // (seq * seq), 1)


def random_scaling(
    sizes: Sequence[int],
    seq: int,
    samples: int,
    seed: int = 0,
    advance: Advance = lambda share: None,
) -> ScalingReport:
    """Measure the softmax for random queries and keys with independent N(0, 1) entries.

    sizes: the values of d_k, each at least 1.
    seq: number of queries and of keys of a sample, at least 2.
    samples: independent draws, at least 1; from two on every measure has a standard error.
    advance: called with the share that is done.
    The result for one d_k depends on seed, seq and samples, not on the other sizes.
    """
    cases, done, total = [], 0.0, sum(sorted(set(sizes))) or 1
    for d_k in sorted(set(sizes)):
        generator = np.random.default_rng((seed, d_k))
        plain, scaled = _Side(1.0), _Side(1 / math.sqrt(d_k))
        size = _samples_a_block(seq)
        for start in range(0, samples, size):
            block = min(size, samples - start)
            # Queries and keys of a sample are drawn together, so that ``size`` changes no number.
            drawn = generator.standard_normal((block, 2, seq, d_k))
            scores = products(drawn[:, 0], drawn[:, 1])
            for side in (plain, scaled):
                side.add(scores)
            done += d_k * block / samples
            advance(min(done / total, 1.0))
        bare, divided = (side.result(d_k, independent=True) for side in (plain, scaled))
        queries = samples * seq
        cases.append(ScalingCase(d_k, bare, divided, queries=queries, weights=queries * seq))
    return ScalingReport(tuple(cases), seq, samples, seed=seed)


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

    def take(layer: QueriesKeys) -> None:
        every = range(len(layer.query))
        chosen = [head for head in every if heads is None or head in heads[layer.layer]]
        if layer.scale == 1:
            raise UnsupportedError(
                f"{model.info.name!r} does not scale its scores, so there is nothing to compare: "
                "choose another --model"
            )
        groups = [[head] for head in chosen] if by_head else [chosen]
        cases.extend(_model_case(layer, group, by_head) for group in groups if group)

    backend_of(model).observe_queries_keys(
        tokens, lambda number: heads is None or number in heads, take
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


def _model_case(layer: QueriesKeys, heads: list[int], by_head: bool) -> ScalingCase:
    d_k = layer.query.shape[-1]
    plain, scaled = _Side(1.0), _Side(layer.scale)
    queries = weights = 0
    for head in heads:
        query, key, bias = layer.head(head)
        seen = np.ones((len(query), len(key)), bool) if bias is None else bias > -np.inf
        rows = seen.sum(-1) > 1  # with one key there is no choice
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
        layer=layer.layer,
        head=heads[0] if by_head else None,
        heads=len(heads),
    )
