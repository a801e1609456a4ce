"""A text that a model wrote, and the attention weights of its heads during the writing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.generation import Sampling, Step, written
from attnviz.engine.head_run import Head
from attnviz.measures.labels import KnownLabels
from attnviz.measures.regions import RegionSums, shares
from attnviz.measures.sinks import sink_keys
from attnviz.measures.words import text_of
from attnviz.records import Floats, Kind, LayerWeights, ModelInfo, RegionShares, Tokens

Ending = Literal["tokens", "end", "context", "interrupted", "failed"]
"""Why a text ends: it has as many tokens as requested, an end-of-text token was written, the
context is full, Ctrl-C was pressed, or the next step failed."""


@dataclass(frozen=True, eq=False)
class WrittenRun:
    """A finished or interrupted generation: the text that a model wrote, and its attention weights.

    model: its facts. kind: the attention that is shown. text: the prompt, as it was given.
    source: the encoder's tokens; None if the model has no encoder.
    begun: the tokens before the generated ones: the prompt, or a decoder's start.
    prompt: the attention weights over these, all heads; empty if they were not recorded.
    sampling: how tokens were chosen. ending: why the text ended. removed: (layer, head) of heads
        whose outputs were set to zero. steps: the generated tokens, in order.
    index_base: 0 or 1, the first number in names of layers and heads.
    known: labels of the model's heads that were measured before the generation.
    region: that of the generated tokens, if the prompt has regions.
    Raises ValueError if the rows of weights do not fit the tokens.
    """

    model: ModelInfo
    kind: Kind
    text: str
    source: Tokens | None
    begun: Tokens
    prompt: tuple[LayerWeights, ...]
    sampling: Sampling
    removed: tuple[Head, ...]
    steps: tuple[Step, ...]
    ending: Ending
    index_base: int = 0
    known: KnownLabels | None = None
    region: str = "written"

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("nothing was written")
        shapes = {layer: len(row) for layer, row in self.steps[0].rows.items()}
        for place, step in enumerate(self.steps, len(self.begun) - 1):
            keys = place + 1 if self.kind != "cross" else len(self.source or ())
            found = {layer: row.shape for layer, row in step.rows.items()}
            if step.place != place or found != {at: (n, keys) for at, n in shapes.items()}:
                raise ValueError(f"the rows of token {place + 1} do not fit the text")

    @cached_property
    def tokens(self) -> Tokens:
        """Return the tokens of the prompt (``begun``), followed by the generated ones."""
        return written(self.begun, self.steps, self.region)

    @cached_property
    def regions(self) -> RegionShares | None:
        """Return the steps' mean attention share on each region; None if keys have no regions."""
        if not self.keys.regions:
            return None
        places = np.arange(self.start, len(self.queries))
        asking = self.queries.taken(places.tolist())
        asking = replace(asking, regions=(self.region,) * len(places))
        seen = (np.arange(len(self.keys)) <= places[:, None]) | (self.kind == "cross")
        layers = {}
        for layer, row in self.steps[0].rows.items():
            sums = RegionSums(asking, self.keys, self.sink)
            sums.add(self.weights(layer), 0, seen)
            layers[layer, tuple(range(len(row)))] = sums.sums()
        return shares(asking, self.keys, layers)

    @property
    def text_written(self) -> str:
        """Return the generated text; an incomplete character at its end becomes U+FFFD."""
        return text_of([step.text for step in self.steps if not step.ended])

    @property
    def queries(self) -> Tokens:
        """Return the tokens that were queries: all but the last generated one."""
        return self.tokens.cut(len(self.tokens) - 1)

    @property
    def keys(self) -> Tokens:
        """Return the tokens that could be attended to."""
        return self.queries if self.kind != "cross" or self.source is None else self.source

    @property
    def start(self) -> int:
        """Return the index of the first query, after which the first token was generated."""
        return self.steps[0].place

    @property
    def heads(self) -> tuple[Head, ...]:
        rows = self.steps[0].rows
        return tuple((layer, head) for layer in sorted(rows) for head in range(len(rows[layer])))

    def name(self, head: Head) -> str:
        """Return a head's name, such as ``L2H5``."""
        return f"L{head[0] + self.index_base}H{head[1] + self.index_base}"

    def weights(self, layer: int) -> Floats:
        """Return a layer's attention weights (head, step, key), zero for keys after a step."""
        rows = [step.rows[layer] for step in self.steps]
        whole = np.zeros((len(rows[0]), len(rows), len(self.keys)), rows[0].dtype)
        for place, row in enumerate(rows):
            whole[:, place, : row.shape[1]] = row
        return whole

    @property
    def sink(self) -> NDArray[np.bool_]:
        """Return a mask (key,), True for the keys that belong to the attention sink."""
        return sink_keys(self.keys, self.kind != "cross")

    def peaks(self, head: Head) -> Floats:
        """Return the largest attention weight of each key in any step: (key,), NaN for the sink.

        head: (layer, head). Means over steps would not be comparable: the last tokens are there for
        a few steps only.
        """
        return np.where(self.sink, np.nan, self.weights(head[0])[head[1]].max(0))

    def sources(self, head: Head, place: int, count: int) -> list[tuple[int, float]]:
        """Return the ``count`` keys with the largest attention weights in a step: (index, weight).

        head: (layer, head). place: the index of the step. The sink is left out.
        """
        row = self.steps[place].rows[head[0]][head[1]]
        row = np.where(self.sink[: len(row)], 0.0, row)
        order = np.argsort(-row, kind="stable")[:count].tolist()
        return [(at, float(row[at])) for at in order if row[at] > 0]

    def sink_weight(self, head: Head, place: int) -> float:
        """Return the attention weight of a step on the attention sink.

        head: (layer, head). place: the index of the step.
        """
        row = self.steps[place].rows[head[0]][head[1]]
        return float(row[self.sink[: len(row)]].sum())
