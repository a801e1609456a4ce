"""The data of a model over texts that are kept to compare another model with it later.

The models are loaded one after the other. Attention rows, head outputs and predictions of each are
kept for all queries of a text, or for evenly spaced ones if all need over ``MOST_BYTES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array
from attnviz.engine.head_run import HeadRun
from attnviz.engine.likely import log_softmax
from attnviz.engine.observer import Reduce, sums_or_maps, to_numpy
from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.measures.sinks import sink_keys
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

    info: the model's facts. kind: of attention. causal: whether a query sees no later key.
    texts: the maps of each text. stride: every ``stride``-th query was recorded. notes: sentences
        on what is not available.
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

    probing: the model. inputs: one for each text.
    stride: record every ``stride``-th query, as for the other model; None decides by memory.
    progress: is called with the share that is done. reduce: whether a text is read whole, or only
        the rows that are recorded.
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
    """Return the stride between recorded queries with which all texts fit ``MOST_BYTES``.

    seen: a run over some tokens, which shows the sizes of the model's arrays.
    """
    heads = sum(map(len, seen.weights.values()))
    always = sum(4 * len(rows) * rows.shape[-1] for rows in seen.outputs.values())
    always += 0 if seen.logits is None else 4 * seen.logits.shape[-1]
    total = sum(
        len(given.queries(kind)) * (4 * heads * len(given.keys(kind)) + always) for given in inputs
    )
    return max(math.ceil(int(total) / MOST_BYTES), 1)
