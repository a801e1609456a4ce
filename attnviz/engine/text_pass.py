"""Read one text in one pass: the weights of all heads, the predictions, the vectors behind them.

The outputs of chosen heads can be set to zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import (
    Asked,
    Choice,
    asked,
    no_such_head,
    open_probing,
    reading_segments,
    record_of,
)
from attnviz.engine.device_sizes import sizes_of
from attnviz.engine.head_run import Head, HeadRun, Run
from attnviz.engine.observer import BlockFacts, KeepWeights, QueriesKeys, to_numpy
from attnviz.engine.selection import check_heads
from attnviz.errors import AttnvizError, UnsupportedError, UsageError
from attnviz.models.model import Model
from attnviz.models.numpy_checkpoint import NumpyCheckpoint
from attnviz.records import AttentionRecord, Floats, HeadVectors, Kind


@dataclass(frozen=True, eq=False)
class TextPass:
    """The record of a run on one text, and its logits (token, vocab), maybe on a GPU, or None."""

    record: AttentionRecord
    logits: Array | None


class TextReader:
    """Runs one model on texts with or without some heads, and remembers the results of trials."""

    def __init__(self, model: Model) -> None:
        self.model, self._backend = model, backend_of(model)
        self._runs: dict[Kind, Run] = {}

    def read(self, wanted: Asked, removed: Collection[Head] = ()) -> TextPass:
        """Run the model on a text with the outputs of the ``removed`` heads set to zero.

        wanted: the text, the kind of attention and the heads to record. Raises UsageError for a
            head that does not exist, UnsupportedError if the attention cannot be observed or its
            heads cannot be removed.
        """
        kind, seen = wanted.kind, self._run(wanted, removed)
        keep = KeepWeights(kind, wanted.heads)
        for layer, weights in seen.weights.items():
            if keep.wants(kind, layer):
                keep.observe(0, kind, layer, 0, weights, BlockFacts(mask=seen.masks.get(layer)))
        if not keep.layers:
            raise no_such_head()
        return TextPass(record_of(self.model, wanted.given, kind, keep.layers), seen.logits)

    def norms(self, wanted: Asked, removed: Collection[Head] = ()) -> Mapping[int, Floats]:
        """Return the norms ‖v_j W_O^h‖ of each layer, (head, key): the size of each value's effect.

        wanted: the text and the kind of attention. removed: the heads whose outputs are set to
            zero. Kobayashi et al. 2020. Raises UnsupportedError if the values cannot be observed.
        """
        return self._run(wanted, removed, norms=True).norms

    def _run(self, wanted: Asked, removed: Collection[Head], norms: bool = False) -> HeadRun:
        check_heads(self.model.info.heads_of_layers, removed)
        given, kind = wanted.given, wanted.kind
        if kind not in self._runs:
            predicts = kind != "encoder"
            if kind == "self" and not self._backend.in_order:
                predicts = open_probing(self.model, kind).causal
            self._runs[kind], _ = self._backend.open_heads(kind, given, predicts)
        with reading_segments(self.model, given.text):
            return self._runs[kind](given, removed, norms)


def token_losses(logits: Array, ids: Sequence[int]) -> NDArray[np.float64]:
    """Return −log p (token − 1,) in nats of each token but the first, of logits (token, vocab)."""
    losses = np.empty(max(len(ids) - 1, 0))
    rows = max(1, sizes_of(logits).logit_cells // logits.shape[-1])
    if len(losses) and not isinstance(logits, np.ndarray):
        xp, parts = namespace(logits), []
        words = xp.asarray(ids[1:], device=logits.device)[:, None]
        for start in range(0, len(losses), rows):
            word = words[start : start + rows]
            part = logits[start : start + len(word)].float()
            parts.append(part.logsumexp(-1) - part.gather(-1, word)[:, 0])
        return to_numpy(xp.concat(parts)).astype(np.float64)
    for start in range(0, len(losses), rows):
        some = slice(start, min(start + rows, len(losses)))
        wide = logits[some].astype(np.float64)
        wide -= wide.max(-1, keepdims=True)
        word = np.asarray(ids[1:])[some, None]
        chosen = np.take_along_axis(wide, word, -1)[:, 0]
        losses[some] = np.log(np.exp(wide).sum(-1)) - chosen
    return losses


# Vectors ----------------------------------------------------------------------------------------

_MOST = 2_000_000
"""The most numbers of all queries and keys that are kept."""


def vectors_of(model: Model, wanted: Asked, removed: Collection[Head] = ()) -> HeadVectors:
    """Return the queries, keys and value norms behind the attention weights of one text.

    The notes of the result say what the model does not show, and why.
    removed: heads whose outputs are zero. Queries and keys are then left out: no run has made them.
    """
    notes, vectors = list[str](), HeadVectors()
    try:
        vectors = replace(vectors, norms=dict(TextReader(model).norms(wanted, removed)))
    except UnsupportedError as error:
        notes.append(_without("the norms of values", error))
    try:
        kept = _queries_keys(model, wanted, removed)
        queries = {layer.layer: layer.query for layer in kept}
        keys = {layer.layer: layer.key for layer in kept}
        vectors = replace(vectors, queries=queries, keys=keys, factor=kept[0].scale)
    except AttnvizError as error:
        notes.append(_without("query × key", error))
    return replace(vectors, notes=tuple(notes))


def _queries_keys(model: Model, wanted: Asked, removed: Collection[Head]) -> list[QueriesKeys]:
    """Return each layer's queries and keys; UnsupportedError if a page cannot show them."""
    info, kept = model.info, list[QueriesKeys]()
    if removed:
        raise UnsupportedError("heads were ablated, which changes those of later layers")
    if wanted.kind not in ("self", "encoder"):
        raise UnsupportedError(
            f"it is shown of one stack's own text, not of {wanted.kind} attention"
        )
    if 2 * info.layers * info.heads * info.head_dim * len(wanted.given.text) > _MOST:
        raise UnsupportedError(f"this text and model have more than {_MOST:,} numbers of them")

    def wants(layer: int) -> bool:
        return wanted.heads is None or layer in wanted.heads

    backend_of(model).observe_queries_keys(wanted.given.text, wants, kept.append)
    if len({(layer.scale, layer.query.shape[-1]) for layer in kept}) != 1:
        raise UnsupportedError("layers differ in their scale or their dimensions")
    return kept


def _without(vectors: str, error: AttnvizError) -> str:
    """Return a note with the reason, but without the advice to those who asked for this alone."""
    return f"Without {vectors}: {str(error).partition(': choose ')[0].rstrip('.')}."


# A model of its first day -------------------------------------------------------------------------

_TEXT = "The cat sat on the mat because it was tired, and the dog went home."
_CLOSE = 0.5
"""The nats by which a loss must be below that of uniform predictions to be better."""


def judged(model: Model) -> Model:
    """Return the model, whose facts say so if it predicts no better than uniform chance.

    Training moves the gains of norms. So only a model that has a norm, and the first gain of which
    is still one number throughout, is run over a short text. A model of pictures or sounds is not
    run, nor is one that translates, whose decoder has no text to predict.
    """
    info = model.info
    if info.weights not in ("checkpoint", "loaded") or next(_gains_moved(model), True):
        return model
    if not getattr(model, "reads_text", True) or "cross" in model.kinds:
        return _described(model, "untrained? the gains of its norms are all equal")
    try:
        wanted = asked(model, _TEXT, Choice())
        logits = TextReader(model).read(wanted).logits
    except (UnsupportedError, UsageError):
        return model  # what is asked of the model says why it cannot be run
    if logits is None or len(wanted.given.text) < 2 or len(logits) != len(wanted.given.text):
        return model
    loss = float(token_losses(logits, wanted.given.text.ids).mean())
    uniform = math.log(logits.shape[-1])
    if not loss > uniform - _CLOSE:
        return model
    return _described(model, f"untrained? loss {loss:.2f}, uniform {uniform:.2f}")


def _described(model: Model, untrained: str) -> Model:
    """Return the model with the reason why it seems untrained among its facts."""
    info = replace(model.info, untrained=untrained)
    if isinstance(model, NumpyCheckpoint):
        model.describe(info)
        return model
    changed: Any = model
    return replace(changed, info=info)


def _gains_moved(model: Model) -> Iterator[bool]:
    """Yield for each norm of a model whether its gain has more than one number."""
    if isinstance(model, NumpyCheckpoint):
        stored = model.stack.tensors.stored
        for name in stored:
            if "norm" in name and name.endswith(".weight"):
                yield bool(np.ptp(np.asarray(stored[name], np.float32)) > 0)
        return
    torch_model: Any = model
    for name, weight in torch_model.model.named_parameters():
        if weight.ndim == 1 and name.endswith(".weight") and weight.device.type != "meta":
            yield bool((weight != weight[0]).any())
