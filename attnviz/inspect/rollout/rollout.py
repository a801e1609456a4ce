"""Attention rollout: attention followed through the layers to the input.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3: with Ā the mean over
the heads of a layer, Â = ½ Ā + ½ I for the residual stream, R₁ = Â₁ and R_l = Â_l R_{l−1}.

Of a long text some rows are followed, from the last layer back to the first, r ↦ r Â_l: the queries
and keys of each layer are kept for it, and no matrix of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from attnviz.draw.numbers import layer_names, listed
from attnviz.engine.capture import Choice, attention_kind, encoded, target_tokens
from attnviz.engine.observer import BlockFacts, no_numbers, notes_of_runs, sums_or_maps
from attnviz.engine.probing import Probing, open_probing
from attnviz.errors import UsageError
from attnviz.inspect.rollout.report import Matrix, RolloutReport, last_word
from attnviz.inspect.rollout.request import RolloutRequest
from attnviz.measures.words import joined, place_of
from attnviz.models.memory import require_room
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.work import Work, about_tokens
from attnviz.records import Floats, Input, Kind
from attnviz.regions import finished

_MATRICES = 4  # how many float64 matrices of the text a rollout holds at once
_SAMPLED = 16  # how many tokens of a long text are followed


def work(text: str, request: RolloutRequest) -> Work:
    """Return the planned work over a text, from which the loader chooses NumPy or torch."""
    return Work(None if request.reduce == "fused" else about_tokens(text))


def rollout(model: Model, text: str, request: RolloutRequest) -> RolloutReport:
    """Return the report of the attention rollout of a model over a text.

    Raises UsageError if a text or a kind of attention does not fit the model or the memory;
    UnsupportedError if the attention cannot be observed.
    """
    text = finished(model, text, answering=False)
    choice = Choice(kind=request.kind, target=request.target, truncate=request.truncate)
    kind = attention_kind(model, choice)
    given, target = Input(encoded(model, text, choice.truncate)), None
    if isinstance(model, TwoStackModel) and kind == "decoder":
        given = replace(given, target=target_tokens(model, given.text, choice))
        target = choice.target if choice.target is not None else joined(given.queries(kind))
    probing, queries = open_probing(model, kind), given.queries(kind)
    asked = None if request.token is None else place_of(queries, request.token)
    end = last_word(queries, probing.causal) if asked is None else asked
    some, every = partial(_follow_rows, probing, given, end), partial(_follow_all, probing, given)
    followed = sums_or_maps(model.info, len(queries), request.reduce, some, every)
    info = model.info  # only the run may have found overflow
    missing = info.not_followed if kind == "self" else ()
    notes = (
        *info.notes,
        *notes_of_runs(),
        *no_numbers(info, [followed.raw, followed.matrix]),
        *([_not_followed(missing, info.layer_types)] if missing else []),
    )
    return RolloutReport(
        model=replace(info, notes=notes),
        kind=kind,
        causal=probing.causal,
        tokens=queries,
        text=text,
        target=target,
        values=request.values,
        keep_sink=request.sink,
        **followed._asdict(),
        not_followed=missing,
        asked=asked,
    )


class _Followed(NamedTuple):
    """A rollout through some layers; the arrays and ``sampled`` are those of the report."""

    matrix: Matrix
    raw: Matrix
    layers: int
    sampled: tuple[int, ...] | None = None


def _follow_rows(probing: Probing, given: Input, end: int) -> _Followed:
    """Return some rows, up to ``end``, from the queries and keys of each layer."""
    info, queries = probing.model.info, given.queries(probing.kind)
    kept = info.layers * (info.heads + info.kv_heads) * info.head_dim + 4 * _SAMPLED
    device = None  # of several devices, each keeps some layers
    if info.device.partition(":")[0] == "cuda" and info.device.count("cuda") == 1:
        import torch  # where the model is on a GPU, torch is there

        device = torch.device(info.device)
    require_room(
        f"the queries and keys of {len(queries):,} tokens in every layer take",
        4 * len(queries) * kept,
        "shorten the text, or add --truncate",
        device,
    )
    rows = tuple(sorted({end * row // _SAMPLED for row in range(1, _SAMPLED + 1)}))
    own = np.zeros((len(rows), len(queries)))
    own[np.arange(len(rows)), rows] = 1
    layers = probing.read_layers(given, lambda sums: sums)
    if not layers:
        raise _no_layer()
    *below, last = sorted(layers)
    raw = layers[last].sources(own).astype(np.float64)
    shares: Matrix = 0.5 * (raw + own)
    for layer in reversed(below):
        shares = 0.5 * (layers[layer].sources(shares) + shares)
    return _Followed(shares, raw, len(layers), rows)


def _follow_all(probing: Probing, given: Input) -> _Followed:
    """Return the whole rollout, with at most four matrices of the text in memory at once."""
    length = len(given.queries(probing.kind))
    require_room(
        f"following {length:,} tokens through the layers takes",
        _MATRICES * 8 * length**2,
        "shorten the text, or add --truncate",
    )
    whole = _WholeRollout(probing.kind, np.zeros((length, length)))
    probing.run(whole, [given])
    if whole.matrix is None:
        raise _no_layer()
    return _Followed(whole.matrix, whole.raw, whole.layers)


def rollout_after(mean: Floats, before: Matrix | None) -> Matrix:
    """Return the attention rollout (query, key) after one more layer; rows sum to one.

    mean: the layer's attention weights (query, key), mean over its heads. before: the rollout of
        the layers below, None for the first layer.
    """
    mixed: Matrix = 0.5 * mean.astype(np.float64)
    mixed[np.diag_indices_from(mixed)] += 0.5
    return mixed if before is None else mixed @ before


@dataclass
class _WholeRollout:
    """An observer that computes the rollout layer by layer, from each layer's mean weights."""

    kind: Kind
    raw: Matrix
    matrix: Matrix | None = None
    layers: int = 0
    seen: int = 0

    norms = False

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self.kind

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, beside: BlockFacts
    ) -> None:
        rows, keys = weights.shape[1:]
        if self.seen == 0:
            self.raw[:] = 0
        self.raw[start : start + rows, :keys] = weights.mean(0, dtype=np.float64)
        self.seen += rows
        if self.seen == len(self.raw):
            self.matrix = rollout_after(self.raw, self.matrix)
            self.layers += 1
            self.seen = 0


def _not_followed(layers: Sequence[int], types: Sequence[str]) -> str:
    """Return the note on layers that mix tokens by something else than attention."""
    others = [types[layer].replace("_", " ") for layer in layers]
    named = ["attention and another mixer" if "hybrid" in kind else kind for kind in others]
    return (
        f"in {layer_names(layers)} tokens mix by {listed([*dict.fromkeys(named)])}, which rollout "
        "does not follow: its rows are products of attention alone, and no shares of the input"
    )


def _no_layer() -> UsageError:
    return UsageError("the model has no layer of this attention")
