"""What is kept of a model over texts, and the numbers of a comparison of two.

The models are loaded one after the other. Attention rows, head outputs and predictions of each are
kept for all queries of a text, or for evenly spaced ones if all need over ``MOST_BYTES``.

A head counts as changed if the 95 % bootstrap interval, over paired texts, of its divergence lies
above the noise floor, which is the effect of rounding alone on either model. A difference by itself
means nothing, because any change of a weight changes every head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array
from attnviz.engine.capture import Probing
from attnviz.engine.head_run import Head, HeadRun
from attnviz.engine.likely import log_softmax
from attnviz.engine.observer import Reduce, sums_or_maps, to_numpy
from attnviz.errors import UsageError
from attnviz.inspect.diff.report import Floor, Predictions
from attnviz.measures.bootstrap import intervals
from attnviz.measures.divergence import cheapest_pairs, cosine, js_divergence, kl_divergence
from attnviz.measures.sinks import sink_keys, without_sink
from attnviz.models.model import require_number
from attnviz.records import Floats, Input, Kind, ModelInfo, Tokens

_LEAST_ROWS = 8  # the fewest rows of a long text that are compared

MOST_BYTES = 2**28
"""The most that is kept of one model: 256 MiB hold all heads of GPT-2 over some 900 tokens."""


@dataclass(frozen=True, eq=False)
class TextMaps:
    """The attention, the outputs and the predictions of one model over one text.

    queries, keys: its tokens on the two axes. kept: (row,) the positions of the recorded queries.
        sink: (key,) whether a key is part of the attention sink.
    rows: by layer, the attention weights (head, row, key). outputs: by layer, (head, row, dim)
        before the output projection; empty if they cannot be observed.
    predictions: (row, vocab) log-probabilities of the next token; None if there are none.
    """

    queries: Tokens
    keys: Tokens
    kept: NDArray[np.int64]
    sink: NDArray[np.bool_]
    rows: Mapping[int, Floats]
    outputs: Mapping[int, Floats]
    predictions: Floats | None

    @property
    def whole(self) -> bool:
        """Return whether every query of the text was recorded."""
        return len(self.kept) == len(self.queries)


@dataclass(frozen=True, eq=False)
class ModelMaps:
    """The attention maps of a model over all texts, stored for comparison with another model.

    stride: every ``stride``-th query was recorded. notes: sentences on what is not available.
    """

    info: ModelInfo
    kind: Kind
    causal: bool
    texts: tuple[TextMaps, ...]
    stride: int = 1
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> dict[int, int]:
        """Return for each layer how many heads it has."""
        return {layer: len(rows) for layer, rows in self.texts[0].rows.items()}


def model_maps(
    probing: Probing,
    inputs: Sequence[Input],
    stride: int | None = None,
    progress: Callable[[float], None] = lambda share: None,
    reduce: Reduce = "auto",
) -> ModelMaps:
    """Run a model over every input; return its attention maps.

    stride: record every ``stride``-th query, as for the other model; None decides by memory.
    reduce: whether a text is read whole, or only the rows that are recorded.
    Raises UnsupportedError if its attention cannot be observed, and as ``require_number`` if an
    attention weight or an output is not finite.
    """
    model, kind, causal = probing.model, probing.kind, probing.causal
    run, notes = probing.open_heads(inputs[0])

    def by_rows(number: int, given: Input, queries: int, stride: int | None) -> HeadRun:
        if stride is None:
            target = None if given.target is None else given.target.cut(2)
            stride = _stride(inputs, kind, run(Input(given.text.cut(2), target), rows=(0,)))
        if stride > 1 and queries // stride < _LEAST_ROWS:
            raise UsageError(
                f"text {number + 1} has {len(given.keys(kind)):,} tokens, of which {_LEAST_ROWS} "
                f"rows of attention take more than {MOST_BYTES:,} bytes: shorten it"
            )
        return run(given, rows=range(0, queries, stride))

    texts = []
    for number, given in enumerate(inputs):
        queries, keys = given.queries(kind), given.keys(kind)
        few = partial(by_rows, number, given, len(queries), stride)
        tokens = max(len(queries), len(keys))
        seen = sums_or_maps(model.info, tokens, reduce, few, partial(run, given))
        _require_numbers(model.info, seen, number)
        stride = stride or _stride(inputs, kind, seen)
        kept = np.arange(0, len(queries), stride)
        texts.append(
            TextMaps(
                queries=queries,
                keys=keys,
                kept=kept,
                sink=sink_keys(keys, causal),
                rows={layer: _some(rows, kept) for layer, rows in seen.weights.items()},
                outputs={layer: _some(rows, kept) for layer, rows in seen.outputs.items()},
                predictions=None
                if seen.logits is None
                else log_softmax(to_numpy(_some(seen.logits, kept))),
            )
        )
        progress((number + 1) / len(inputs))
    return ModelMaps(model.info, kind, causal, tuple(texts), stride or 1, notes)


def _require_numbers(info: ModelInfo, seen: HeadRun, text: int) -> None:
    """Raise the error of ``require_number`` for a head whose weights or outputs are not finite."""
    for layer, rows in seen.weights.items():
        whole = np.isfinite(rows).all((1, 2))
        if layer in seen.outputs:
            whole &= np.isfinite(seen.outputs[layer]).all((1, 2))
        if not whole.all():
            name = f"attention of L{layer}H{whole.argmin()} over text {text + 1}"
            require_number(name, math.nan, info)


def _some(rows: Array, kept: NDArray[np.int64]) -> Array:
    """Return the kept ones of rows (…, row, number), which may be all that were read."""
    return rows if len(kept) == rows.shape[-2] else rows[..., kept, :]


def _stride(inputs: Sequence[Input], kind: Kind, seen: HeadRun) -> int:
    """Return the stride between recorded queries with which all texts fit ``MOST_BYTES``."""
    heads = sum(map(len, seen.weights.values()))
    always = sum(4 * len(rows) * rows.shape[-1] for rows in seen.outputs.values())
    always += 0 if seen.logits is None else 4 * seen.logits.shape[-1]
    total = sum(
        len(given.queries(kind)) * (4 * heads * len(given.keys(kind)) + always) for given in inputs
    )
    return max(math.ceil(int(total) / MOST_BYTES), 1)


# Two models beside each other ------------------------------------------------------------------


Values = NDArray[np.floating]

Pair = tuple[Head, Head]
"""A head of the first model, and the head of the second that it is compared with."""

_ROUNDED = 2.0
"""The ratio of the floor to the divergence between a rounded and an exact side. If both sides are
rounded, squared errors add up, and a divergence is a squared error to first order."""

_MOST_PAIRS = 2**18  # the most pairs of heads that are compared to find a match


class Divergences(NamedTuple):
    """The divergences of two models' heads over each text: (text, head pair); NaN if unknown.

    js: Jensen–Shannon divergence of the attention rows in bits, mean over queries. no_sink: the
    same without the attention sink's keys, rows rescaled. output: 1 − cosine of the heads' outputs,
    mean over queries.
    """

    js: Values
    no_sink: Values
    output: Values


def divergences(
    first: ModelMaps, second: ModelMaps, pairs: Sequence[Pair], *, bare: bool = True
) -> Divergences:
    """Return the divergences of each pair of heads (one of each model) over each text.

    bare: False leaves out ``no_sink``, which a noise floor does not need.

    The first query of a causal text, which sees only itself, does not count.
    """
    found = np.full((3, len(first.texts), len(pairs)), np.nan)
    by_layers: dict[tuple[int, int], list[int]] = {}
    for place, ((a, _), (b, _)) in enumerate(pairs):
        by_layers.setdefault((a, b), []).append(place)
    for number, (one, other) in enumerate(zip(first.texts, second.texts, strict=True)):
        rows = one.kept >= 1 if first.causal else np.ones(len(one.kept), bool)
        if not rows.any():
            rows[:] = True
        for (a, b), at in by_layers.items():
            left, right = ([pairs[place][side][1] for place in at] for side in (0, 1))
            weights = one.rows[a][left][:, rows], other.rows[b][right][:, rows]
            found[0, number, at] = js_divergence(*weights).mean(-1)
            if bare:
                bared = map(without_sink, weights, (one.sink, other.sink))
                found[1, number, at] = known_mean(js_divergence(*bared))
            if a in one.outputs and b in other.outputs:
                outputs = one.outputs[a][left][:, rows], other.outputs[b][right][:, rows]
                if outputs[0].shape == outputs[1].shape:
                    found[2, number, at] = 1 - cosine(*outputs).mean(-1)
    return Divergences(*found)


def known_mean(values: Values) -> Values:
    """Return the mean of the finite values over the last axis; NaN if there are none."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(-1)
    means = np.full(total.shape, np.nan)
    np.divide(total, known.sum(-1), out=means, where=known.any(-1))
    return means


# The floor -----------------------------------------------------------------------------------


def noise_floor(noise: Divergences) -> Floor:
    """Return the noise floor. noise: a model's divergences from itself in another number format."""
    means = (known_mean(values.T) for values in (noise.js, noise.output))
    return Floor(*(_ROUNDED * float(np.fmax.reduce(mean)) for mean in means))


class MeanOverTexts(NamedTuple):
    """A mean over texts; ends: of its 95% confidence interval, None for fewer than five texts."""

    mean: float
    ends: tuple[float, float] | None

    def above(self, floor: float) -> bool:
        """Return whether the interval lies above ``floor``; False if either is unknown."""
        return self.ends is not None and self.ends[0] > floor


def over_texts(values: Values, seed: int) -> list[MeanOverTexts]:
    """Return the mean of each column over texts, with its bootstrap interval.

    values: (text, column), not below zero, so that no end of an interval is.
    """
    means = []
    for mean, ends in zip(values.mean(axis=0).tolist(), intervals(values, seed), strict=True):
        known = ends is not None and math.isfinite(ends[0])
        means.append(MeanOverTexts(mean, (max(ends[0], 0.0), ends[1]) if ends and known else None))
    return means


# What the models predict ---------------------------------------------------------------------


def predictions(first: ModelMaps, second: ModelMaps) -> Predictions | None:
    """Return how far two models' next-token predictions differ, or None.

    None if a model has no predictions, or NaN. Ids must mean the same tokens in both; those beyond
    the smaller vocabulary are left out.
    """
    apart, same, outside = [], [], None
    for one, other in zip(first.texts, second.texts, strict=True):
        p, q = one.predictions, other.predictions
        if p is None or q is None or np.isnan([p.max(), q.max()]).any():
            return None
        if (shared := min(p.shape[-1], q.shape[-1])) < max(p.shape[-1], q.shape[-1]):
            kept = [np.logaddexp.reduce(logs[:, :shared], -1, keepdims=True) for logs in (p, q)]
            p, q = p[:, :shared] - kept[0], q[:, :shared] - kept[1]
            outside = max(outside or 0.0, *(float(-np.expm1(logs.min())) for logs in kept))
        apart.append(kl_divergence(p, q))
        same.append(p.argmax(-1) == q.argmax(-1))
    kl, share = np.concatenate(apart), float(np.concatenate(same).mean())
    spare = max(len(kl) - 1, 1)
    return Predictions(
        kl=float(kl.mean()),
        kl_error=float(kl.std(ddof=min(1, len(kl) - 1)) / math.sqrt(len(kl))),
        same_top=share,
        same_top_error=math.sqrt(share * (1 - share) / spare),
        positions=len(kl),
        outside=outside,
    )


# Which head is compared with which ------------------------------------------------------------


def heads_of(counts: Mapping[int, int]) -> list[Head]:
    """Return every (layer, head). counts: how many heads each layer has."""
    return [(layer, head) for layer, count in counts.items() for head in range(count)]


def pairs_by_index(first: Mapping[int, int], second: Mapping[int, int]) -> list[Pair]:
    """Return the heads that both models have, each as a pair of the same (layer, head) twice."""
    return [(head, head) for head in heads_of(first) if head[1] < second.get(head[0], 0)]


def matched_pairs(first: ModelMaps, second: ModelMaps) -> list[Pair]:
    """Return the pairs of heads with the least sum of divergences: (head of A, head of B).

    Heads are paired within layers if both models have equally many layers, else over the whole
    model. Raises UsageError if too many pairs of heads would have to be compared.
    """
    heads, others = first.heads, second.heads
    groups = [(heads_of(heads), heads_of(others))]
    if len(heads) == len(others):
        layers = zip(heads.items(), others.items(), strict=True)
        groups = [(heads_of(dict([a])), heads_of(dict([b]))) for a, b in layers]
    tried = sum(len(lefts) * len(rights) for lefts, rights in groups)
    if tried > _MOST_PAIRS:
        raise UsageError(
            f"--match would hold {tried:,} pairs of heads against each other, at most "
            f"{_MOST_PAIRS:,} are: leave it out"
        )
    pairs: list[Pair] = []
    for lefts, rights in groups:
        texts = zip(first.texts, second.texts, strict=True)
        table = sum(_table(one, other, lefts, rights) for one, other in texts)
        pairs += [(lefts[left], rights[right]) for left, right in cheapest_pairs(np.asarray(table))]
    return sorted(pairs)


def _table(one: TextMaps, other: TextMaps, lefts: Sequence[Head], rights: Sequence[Head]) -> Values:
    """Return the divergences (head of A, head of B) of two models' heads over one text."""
    chosen = np.stack([other.rows[layer][head] for layer, head in rights])
    return np.stack(
        [js_divergence(one.rows[layer][head], chosen).mean(-1) for layer, head in lefts]
    )
