"""Attention rollout: attention followed through the layers to the input.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3: with Ā the mean over
the heads of a layer, Â = ½ Ā + ½ I for the residual stream, R₁ = Â₁ and R_l = Â_l R_{l−1}.

Of a long text some rows are followed, from the last layer back to the first, r ↦ r Â_l: the queries
and keys of each layer are kept for it, and no matrix of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from attnviz.draw.numbers import layer_names, listed
from attnviz.engine.observer import BlockFacts, no_numbers
from attnviz.engine.probing import open_probing
from attnviz.errors import UsageError
from attnviz.inspect.rollout.report import Matrix, RolloutReport, last_content
from attnviz.measures.reduced import ReducedLayer
from attnviz.models.model import Model
from attnviz.records import Floats, Input, Kind, Tokens


def rollout_after(mean: Floats, before: Matrix | None) -> Matrix:
    """Return the attention rollout (query, key) after one more layer; rows sum to one.

    mean: the layer's attention weights (query, key), mean over its heads. before: the rollout of
        the layers below, None for the first layer.
    """
    mixed: Matrix = 0.5 * mean.astype(np.float64)
    mixed[np.diag_indices_from(mixed)] += 0.5
    return mixed if before is None else mixed @ before


def follow(
    model: Model,
    tokens: Tokens,
    *,
    kind: Kind | None = None,
    target: Tokens | None = None,
    sampled: int | None = None,
) -> RolloutReport:
    """Compute the attention rollout of ``model`` over ``tokens`` through all of its layers.

    kind: the self-attention, None for the model's first. target: the decoder's text, for the kind
        ``decoder``. sampled: how many rows to follow, evenly spaced; None follows all of them, with
        at most four matrices of the text in memory at once.
    Raises UsageError for cross attention, whose queries and keys are different texts, and for a
    decoder without its text; UnsupportedError if the attention cannot be observed.
    """
    probing = open_probing(model, kind)
    if probing.kind == "cross":
        raise UsageError(
            "rollout follows tokens of one text through the layers, cross attention joins two: "
            "choose another --kind"
        )
    if probing.kind == "decoder" and target is None:
        raise UsageError("the decoder reads a text of its own: give one with --target")
    given = Input(tokens, target)
    queries = given.queries(probing.kind)
    rows: tuple[int, ...] | None = None
    found: _WholeRollout | _RolloutRows
    if sampled is None:
        found = _WholeRollout(probing.kind, len(queries))
        probing.run(found, [given])
    else:
        end = last_content(queries, probing.causal)
        rows = tuple(sorted({end * row // sampled for row in range(1, sampled + 1)}))
        found = _RolloutRows(probing.kind, len(queries), rows)
        probing.read_sums(found, [given])
    missing = model.info.not_followed if probing.kind == "self" else ()
    notes = (
        *model.info.notes,
        *no_numbers(model.info, [found.raw, found.matrix]),
        *([_not_followed(missing, model.info.layer_types)] if missing else []),
    )
    return RolloutReport(
        model=replace(model.info, notes=notes),
        kind=probing.kind,
        causal=probing.causal,
        tokens=queries,
        matrix=found.matrix,
        raw=found.raw,
        layers=found.layers,
        sampled=rows,
        not_followed=missing,
    )


def _not_followed(layers: Sequence[int], types: Sequence[str]) -> str:
    """Return the note on layers that mix tokens by something else than attention.

    layers: their indices. types: what each layer of the model is.
    """
    others = [types[layer].replace("_", " ") for layer in layers]
    named = {"attention and another mixer" if "hybrid" in each else each: each for each in others}
    return (
        f"in {layer_names(layers)} tokens mix by {listed([*named])}, which rollout does not "
        "follow: its rows are products of attention alone, and no shares of the input"
    )


class _WholeRollout:
    """An observer that computes the rollout layer by layer, from each layer's mean weights."""

    norms = False

    def __init__(self, kind: Kind, tokens: int) -> None:
        self._kind = kind
        self._joined: Matrix | None = None
        self._seen = 0
        self.raw: Matrix = np.zeros((tokens, tokens))
        self.layers = 0

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, beside: BlockFacts
    ) -> None:
        rows, keys = weights.shape[1:]
        if self._seen == 0:
            self.raw[:] = 0
        self.raw[start : start + rows, :keys] = weights.mean(0, dtype=np.float64)
        self._seen += rows
        if self._seen == len(self.raw):
            self._joined = rollout_after(self.raw, self._joined)
            self.layers += 1
            self._seen = 0

    @property
    def matrix(self) -> Matrix:
        if self._joined is None:
            raise _no_layer()
        return self._joined


class _RolloutRows:
    """Keeps the queries and keys of each layer, and computes some rows of the rollout from them.

    tokens: how many the text has. rows: the positions of the queries whose rows are computed.
    """

    def __init__(self, kind: Kind, tokens: int, rows: Sequence[int]) -> None:
        self._kind = kind
        self._own = np.zeros((len(rows), tokens))
        self._own[np.arange(len(rows)), rows] = 1
        self._layers: dict[int, ReducedLayer] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def sums(self, text: int, kind: Kind, layer: int, found: ReducedLayer) -> None:
        self._layers[layer] = found

    @property
    def layers(self) -> int:
        return len(self._layers)

    @cached_property
    def raw(self) -> Matrix:
        if not self._layers:
            raise _no_layer()
        return self._layers[max(self._layers)].sources(self._own).astype(np.float64)

    @cached_property
    def matrix(self) -> Matrix:
        shares = 0.5 * (self.raw + self._own)
        for layer in sorted(self._layers)[-2::-1]:
            shares = 0.5 * (self._layers[layer].sources(shares) + shares)
        return shares


def _no_layer() -> UsageError:
    return UsageError("the model has no layer of this attention")
