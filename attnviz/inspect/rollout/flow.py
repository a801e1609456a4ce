"""Attention rollout: attention followed through the layers to the input.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3: with Ā the mean over
the heads of a layer, Â = ½ Ā + ½ I for the residual stream, R₁ = Â₁ and R_l = Â_l R_{l−1}.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import BlockFacts, Floats, no_numbers
from attnviz.engine.probing import open_probing
from attnviz.errors import UsageError
from attnviz.inspect.rollout.records import Matrix, RolloutReport
from attnviz.models.model import Model
from attnviz.records import Input, Kind, Tokens


def rollout_after(mean: NDArray[np.floating], before: Matrix | None) -> Matrix:
    """Return the attention rollout (query, key) after one more layer; rows sum to one.

    mean: the layer's attention weights (query, key), mean over its heads. before: the rollout of
        the layers
    below, None for the first layer.
    """
    mixed: Matrix = 0.5 * mean.astype(np.float64)
    mixed[np.diag_indices_from(mixed)] += 0.5
    return mixed if before is None else mixed @ before


def follow(
    model: Model, tokens: Tokens, *, kind: Kind | None = None, target: Tokens | None = None
) -> RolloutReport:
    """Compute the attention rollout of ``model`` over ``tokens`` through all of its layers.

    kind: the self-attention, None for the model's first. target: the decoder's text, for the kind
        ``decoder``.
    At most four matrices of the text are in memory at once.
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
    follow = _Follow(probing.kind, len(queries))
    probing.run(follow, [given])
    notes = (*model.info.notes, *no_numbers(model.info, [follow.raw, follow.matrix]))
    return RolloutReport(
        model=replace(model.info, notes=notes),
        kind=probing.kind,
        causal=probing.causal,
        tokens=queries,
        matrix=follow.matrix,
        raw=follow.raw,
        layers=follow.layers,
    )


class _Follow:
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
            raise UsageError("the model has no layer of this attention")
        return self._joined
