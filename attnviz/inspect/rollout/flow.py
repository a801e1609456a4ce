"""Attention followed through the layers to the input: attention rollout.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3: with Ā the mean over
the heads of a layer, Â = ½ Ā + ½ I for the residual stream, R₁ = Â₁ and R_l = Â_l R_{l−1}.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import Floats, no_numbers
from attnviz.engine.probing import open_probing
from attnviz.errors import UsageError
from attnviz.measures.sinks import sink_keys, without_sink
from attnviz.models.model import Model
from attnviz.records import Input, Kind, ModelInfo, Tokens

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Rollout:
    """Attention followed through all layers (Abnar & Zuidema 2020).

    kind: the attention that was followed; cross attention cannot be.
    tokens: of both axes.
    matrix: float64 (query, key): how much of each output comes from each input token; rows sum to
        one.
    raw: float64 (query, key): the mean over the heads of the last layer's weights.
    layers: how many were followed.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    tokens: Tokens
    matrix: NDArray[np.float64]
    raw: NDArray[np.float64]
    layers: int

    def __post_init__(self) -> None:
        shape = (len(self.tokens), len(self.tokens))
        if self.matrix.shape != shape or self.raw.shape != shape:
            raise ValueError(
                f"expected matrices of shape {shape}, got {self.matrix.shape}, {self.raw.shape}"
            )

    @property
    def sink(self) -> NDArray[np.bool_]:
        """(token,) the special tokens and, of causal attention, the first one."""
        return sink_keys(self.tokens, self.causal)

    @property
    def last(self) -> int:
        """The last token that is neither of the sink nor blank, or the last one where all are."""
        blank = np.array([not text.strip() for text in self.tokens.texts])
        content = np.flatnonzero(~self.sink & ~blank)
        return int(content[-1]) if content.size else len(self.tokens) - 1

    def without_sink(self) -> Matrix:
        """The rollout (query, key) of which the sink's columns are left out, rows summing to one.

        NaN in these columns, and in rows that come from the sink alone.
        """
        return without_sink(self.matrix, self.sink).astype(np.float64)


def followed(mean: NDArray[np.floating], before: Matrix | None) -> Matrix:
    """The rollout (query, key) after a layer of mean weights (query, key); rows sum to one.

    before: that of the layers below, None for the first.
    """
    mixed: Matrix = 0.5 * mean.astype(np.float64)
    mixed[np.diag_indices_from(mixed)] += 0.5
    return mixed if before is None else mixed @ before


def rollout(
    model: Model, tokens: Tokens, *, kind: Kind | None = None, target: Tokens | None = None
) -> Rollout:
    """Follow one kind of self-attention of ``model`` over ``tokens`` through all of its layers.

    kind: None for the model's first. target: the decoder's text, for the kind ``decoder``.
    No more than four matrices of the text are there at once.

    Raises UsageError for cross attention, whose queries and keys are different texts, and for a
    decoder without its text; UnsupportedError where the attention cannot be observed.
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
    return Rollout(
        model=replace(model.info, notes=notes),
        kind=probing.kind,
        causal=probing.causal,
        tokens=queries,
        matrix=follow.matrix,
        raw=follow.raw,
        layers=follow.layers,
    )


class _Follow:
    """Takes the mean over each layer's heads as it passes by, and multiplies it on."""

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
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, norms: Floats | None
    ) -> None:
        rows, keys = weights.shape[1:]
        if self._seen == 0:
            self.raw[:] = 0
        self.raw[start : start + rows, :keys] = weights.mean(0, dtype=np.float64)
        self._seen += rows
        if self._seen == len(self.raw):
            self._joined = followed(self.raw, self._joined)
            self.layers += 1
            self._seen = 0

    @property
    def matrix(self) -> Matrix:
        if self._joined is None:
            raise UsageError("the model has no layer of this attention")
        return self._joined
