"""Measures attention scores without and with the scale 1/√d_k, and the weights that they give.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1: if entries have mean 0 and variance
1, the products have variance d_k, and the softmax reaches regions of extremely small gradients.
Measured on random queries and keys, or on those of a model over a text. Rows are distributions p
over the keys that a query sees; the weight of a hidden key is zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import ACTIVATE, NEARLY_ZERO, Activation, Floats
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import encoded, no_such_head
from attnviz.engine.observer import QueriesKeys, products, softmaxed
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.learn.scaling.report import (
    BIN_EDGES,
    HIGH_WEIGHT,
    VANISHED,
    ActivationCurve,
    Estimate,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
)
from attnviz.learn.scaling.request import ScalingRequest
from attnviz.models.memory import require_room
from attnviz.models.model import Model
from attnviz.models.work import Work, about_tokens
from attnviz.progress import Advance, shares_of
from attnviz.records import Tokens
from attnviz.texts import BUILT_IN_TEXT, Texts

_BLOCK_CELLS = 2**18  # number of score-matrix cells that are measured at once
_MATRICES_A_BLOCK, _MATRICES_A_HEAD = 8, 10
"""Float64 arrays of the scores' size in memory at once, of a block of samples and of one head."""

_NEEDED = "the scores and weights take"

BUILT_IN = Texts((BUILT_IN_TEXT,), "a built-in text")
"""The text that a model reads if none is given."""


def work(text: Texts, request: ScalingRequest) -> Work:
    """Return the planned work over a text, from which the loader chooses NumPy or torch."""
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
    Raises UsageError if options do not fit, no query sees two keys or the memory is too small,
    UnsupportedError if the model does not expose its queries and keys, or has no scale.
    """
    request.check_source(model is not None)
    if request.activation:
        return ScalingReport((), 0, 0, activations=activation_curves())
    if model is None:
        seq = 64 if request.seq is None else request.seq
        samples = 100 if request.samples is None else request.samples
        drawn = tuple(_random_cases(request, seq, samples, advance))
        return ScalingReport(drawn, seq, samples, seed=request.seed)
    tokens = encoded(model, text.texts[0], request.truncate)
    if len(tokens) < 2:
        raise UsageError(
            "the text has one token: expected at least two, or there is nothing to choose"
        )
    needed = 8 * _MATRICES_A_HEAD * len(tokens) ** 2
    require_room(_NEEDED, needed, "shorten the text, or add --truncate")
    return ScalingReport(
        cases=_model_cases(model, tokens, request),
        keys=len(tokens),
        text=text.texts[0],
        source=text.source,
        seed=request.seed,
        model=model.info,
        notes=model.info.notes + model.notes_for(tokens),
        index_base=request.index_base,
    )


def jacobian_norms(weights: Floats) -> Floats:
    """Return the Frobenius norm ‖diag(p) − p pᵀ‖ of each row p: (..., query), in [0, ½].

    weights: (..., query, key). The Jacobian of the softmax is ∂p_i/∂s_j = p_i(δ_ij − p_j), so the
    norm's square is Σ_i p_i²(1 − p_i)² + Σ_{i≠j} p_i² p_j². The norm is ½ if two keys share all
    weight evenly, √(n − 1)/n if n keys do, and 0 if one key has all weight.
    """
    largest = weights.argmax(-1, keepdims=True)
    # The largest weight is summed apart: near one it would absorb all others.
    top = np.take_along_axis(weights, largest, -1)[..., 0]
    others = weights.copy()
    np.put_along_axis(others, largest, 0, -1)
    rest = np.square(others)
    between = rest.sum(-1)
    pairs = 2 * np.square(top) * between + np.square(between) - np.square(rest).sum(-1)
    own = np.square(top * others.sum(-1)) + (rest * np.square(1 - others)).sum(-1)
    return np.sqrt(own + pairs)


def matrix_measures(
    scores: Floats, weights: Floats, visible: NDArray[np.bool_]
) -> dict[str, Floats]:
    """Return each measure of ``ScaledSoftmax`` by name, one number for each matrix: (...).

    scores, weights: (..., query, key), the attention scores and the attention weights.
    visible: (query, key), True if the query sees the key; two keys or more of each query.
    """
    logs = np.log(np.where(weights > 0, weights, 1))
    entropies = -(weights * logs).sum(-1) / np.log(visible.sum(-1))
    largest, norms = weights.max(-1), jacobian_norms(weights)
    return {
        "score_variance": np.ascontiguousarray(scores[..., visible]).var(-1, ddof=1),
        "normalised_entropy": entropies.mean(-1),
        "largest_weight": largest.mean(-1),
        "weights_above": (weights > HIGH_WEIGHT).sum((-2, -1)) / visible.sum(),
        "queries_above": (largest > HIGH_WEIGHT).mean(-1),
        "jacobian_norm": norms.mean(-1),
        "queries_vanished": (norms < VANISHED).mean(-1),
    }


_Scores: TypeAlias = tuple[Floats, NDArray[np.bool_], Floats | None]
"""Matrices (..., query, key) of scores q·k; a mask (query, key), True if the query sees the key;
and what is added before the softmax, −inf if a key is hidden, or None."""


def _case(d_k: int, scale: float, parts: Iterable[_Scores], **whose: Any) -> ScalingCase:
    """Measure scores without and with a scale. whose: the layer, if they are those of a model.

    Only random queries are independent samples, whose means have standard errors.
    """
    factors, values = (1.0, scale), (dict[str, list[Floats]](), dict[str, list[Floats]]())
    histograms = np.zeros((2, len(BIN_EDGES) - 1), np.int64)
    queries = weights = 0
    for scores, visible, bias in parts:
        seen = visible.sum(-1)
        rows = seen > 1  # with one key there is no choice
        for factor, measured, histogram in zip(factors, values, histograms, strict=True):
            shares, scaled, kept = softmaxed(scores, factor, bias), scores * factor, visible
            if not rows.all():
                shares, scaled, kept = shares[..., rows, :], scaled[..., rows, :], visible[rows]
            for name, numbers in matrix_measures(scaled, shares, kept).items():
                measured.setdefault(name, []).append(np.ravel(numbers))
            # Rounding may carry a weight past one.
            inside = np.minimum(shares[..., kept], 1)
            histogram += np.histogram(inside, np.array(BIN_EDGES))[0]
        queries += int(rows.sum()) * (scores.size // visible.size)
        weights += int(seen[rows].sum()) * (scores.size // visible.size)
    sides = []
    for factor, measured, histogram in zip(factors, values, histograms, strict=True):
        measures = {}
        for name, arrays in measured.items():
            numbers, error = np.concatenate(arrays), None
            if not whose and len(numbers) > 1:
                error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
            measures[name] = Estimate(float(numbers.mean()), error)
        counts = tuple(histogram.tolist())
        sides.append(ScaledSoftmax(factor, measures, counts, factor**2 * d_k))
    return ScalingCase(d_k, *sides, queries=queries, weights=weights, **whose)


def _random_cases(
    request: ScalingRequest, seq: int, samples: int, advance: Advance
) -> Iterator[ScalingCase]:
    """Yield a case for each d_k, of random queries and keys with independent N(0, 1) entries.

    The numbers for one d_k depend on the seed, seq and samples, not on the other sizes.
    """
    sizes, visible = request.sizes, np.ones((seq, seq), bool)
    size = min(max(_BLOCK_CELLS // (seq * seq), 1), samples)
    numbers = size * seq * (2 * max(sizes) + _MATRICES_A_BLOCK * seq) + 14 * samples
    require_room(_NEEDED, 8 * numbers, "choose a smaller --d-k, --seq or --samples")
    add = shares_of(sum(sizes) * samples, advance)

    def parts(d_k: int) -> Iterator[_Scores]:
        generator = np.random.default_rng((request.seed, d_k))
        for start in range(0, samples, size):
            block = min(size, samples - start)
            # Queries and keys of a sample are drawn together, so that ``size`` changes no number.
            drawn = generator.standard_normal((block, 2, seq, d_k))
            yield products(drawn[:, 0], drawn[:, 1]), visible, None
            add(d_k * block)

    for d_k in sizes:
        yield _case(d_k, 1 / math.sqrt(d_k), parts(d_k))


def _model_cases(model: Model, tokens: Tokens, request: ScalingRequest) -> tuple[ScalingCase, ...]:
    """Return a case for each chosen head, or the mean of each layer's heads, in float64.

    There are no standard errors: the queries of one text are not independent.
    """
    cases: list[ScalingCase] = []
    layers, heads = model.info.layers, model.info.heads
    chosen = choose_heads(request.layer, request.head, layers, heads, request.index_base)

    def parts(layer: QueriesKeys, heads: Sequence[int]) -> Iterator[_Scores]:
        for head in heads:
            query, key, bias = layer.head(head)
            seen = np.ones((len(query), len(key)), bool) if bias is None else bias > -np.inf
            yield products(query.astype(np.float64), key.astype(np.float64)), seen, bias

    def take(layer: QueriesKeys) -> None:
        if layer.scale == 1:
            raise UnsupportedError(
                f"{model.info.name!r} does not scale its scores, so there is nothing to compare: "
                "choose another --model"
            )
        every = range(len(layer.query))
        own = [head for head in every if chosen is None or head in chosen[layer.layer]]
        for group in [[head] for head in own] if request.head else [own] * bool(own):
            whose = {"layer": layer.layer, "head": group[0] if request.head else None}
            scores, d_k = parts(layer, group), layer.query.shape[-1]
            cases.append(_case(d_k, layer.scale, scores, **whose, heads=len(group)))

    wanted = range(layers) if chosen is None else chosen
    backend_of(model).observe_queries_keys(tokens, wanted.__contains__, take)
    if not cases:
        raise no_such_head()
    return tuple(sorted(cases, key=lambda case: (case.layer or 0, case.head or 0)))


_DRAWN: dict[Activation, tuple[str, str]] = {
    "relu": ("ReLU", "max(x, 0)"),
    "gelu": ("GELU", "x·Φ(x)"),
    "silu": ("SiLU", "x·σ(x)"),
}
_UPS = (2.0, 1.0, -1.0)  # the values of the input that the gate multiplies
_END, _STEPS = 4.0, 160
_FINE = 1 << 14  # cells from −8 to 8 in which shares of a normal distribution are summed


def activation_curves() -> tuple[ActivationCurve, ...]:
    """Return the curves of all activation functions, then those of the gate.

    GELU: Hendrycks & Gimpel 2016. SiLU: Elfwing et al. 2017. SwiGLU, SiLU(g)·u: Shazeer 2020.
    """
    x = np.linspace(-_END, _END, _STEPS + 1)
    edges = np.linspace(-8, 8, _FINE + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    chance = np.diff([NormalDist().cdf(edge) for edge in edges])
    curves = []
    for activation, (name, formula) in _DRAWN.items():
        y, fine = (ACTIVATE[activation](points) for points in (x, middle))
        least = int(fine.argmin())
        curves.append(
            ActivationCurve(
                name=name,
                formula=formula,
                points=tuple(zip(x.tolist(), y.tolist(), strict=True)),
                lowest=(float(middle[least]), float(fine[least])) if fine[least] else None,
                zero=float(chance[fine == 0].sum()),
                nearly=float(chance[np.abs(fine) < NEARLY_ZERO].sum()),
            )
        )
    gate = ACTIVATE["silu"](x)
    for up in _UPS:
        points = tuple(zip(x.tolist(), (gate * up).tolist(), strict=True))
        curves.append(ActivationCurve(f"up = {up:g}", "SiLU(gate)·up", points, up=up))
    return tuple(curves)
