"""A text that a model wrote, and what each of its heads attended to during the writing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.engine.generation import Sampling, Step, written
from attnviz.engine.head_run import Head
from attnviz.measures.labels import KnownLabels, best_label, strength
from attnviz.measures.regions import RegionSums, shares
from attnviz.measures.registry import label_named
from attnviz.measures.rows import Conditions, TextFacts, base_rates, whole_scores
from attnviz.measures.sinks import sink_keys
from attnviz.measures.words import text_of
from attnviz.records import Floats, HeadLabel, Kind, LayerWeights, ModelInfo, RegionShares, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer


Ending = Literal["tokens", "end", "context", "interrupted", "failed"]
"""Why a text ends: it has as many tokens as requested, an end-of-text token was written, the
context is full, Ctrl-C was pressed, or the next step failed."""

NAMED = ("previous", "self", "first", "duplicate", "induction", "separator", "delimiter")
"""The measures of what a head attends to, token by token."""

TELLING = ("previous", "duplicate", "induction", "delimiter")
"""The labels that show where a head attends while it writes: not at itself, nor at the sink."""

_SPREAD, _PEAKED = ("spread", "normalised_entropy"), ("peaked", "confidence")
_DIFFUSE = 0.6
"""The normalised entropy from which a head without another name is called diffuse."""


class HeadActivity(NamedTuple):
    """The attention of one head during a generation, described by one measure.

    name: of its label, or of the measure that describes it. score: the mean of that measure, in [0,
        1], over ``steps`` generation steps. uniform: the score of uniform attention.
    label: the head's label in the model's card or from ``patterns``; None without one.
    """

    name: str
    score: float
    uniform: float
    steps: int
    label: HeadLabel | None = None

    @property
    def known(self) -> bool:
        """Return whether the name is that of the head's label, because these steps can show it."""
        return self.label is not None and self.label.name == self.name

    @property
    def said(self) -> str:
        return label_named(self.name).said


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
        asking = self.queries.taken(range(self.start, len(self.queries)))
        asking = replace(asking, regions=tuple(self.region for _ in self.steps))
        count = len(self.keys)
        ends = np.full(len(self.steps), count) if self.kind == "cross" else None
        ends = np.arange(self.start + 1, self.start + 1 + len(self.steps)) if ends is None else ends
        seen = np.arange(count) < ends[:, None]
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
        row = np.where(self.sink[: self.steps[place].rows[head[0]].shape[1]], 0.0, 1.0)
        row = row * self.steps[place].rows[head[0]][head[1]]
        order = np.argsort(-row, kind="stable")[:count].tolist()
        return [(at, float(row[at])) for at in order if row[at] > 0]

    def sink_weight(self, head: Head, place: int) -> float:
        """Return the attention weight of a step on the attention sink.

        head: (layer, head). place: the index of the step.
        """
        row = self.steps[place].rows[head[0]][head[1]]
        return float(row[self.sink[: len(row)]].sum())


@dataclass(frozen=True, repr=False)
class GenerateReport(Report):
    """The report of ``attnviz generate``: the generated text, and where the heads attended.

    Iterating yields the generation steps. run: the generation. found: the activity of each (layer,
    head). heads: those that are shown in full; the first one colours the text. chosen: whether the
    user chose them.
    """

    run: WrittenRun
    found: Mapping[Head, HeadActivity]
    heads: tuple[Head, ...]
    chosen: bool = False

    command = "generate"
    lists = None

    def __iter__(self) -> Iterator[Step]:
        return iter(self.run.steps)

    @property
    def head(self) -> Head:
        """Return the (layer, head) whose weights colour the text."""
        return self.heads[0]

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.generate.data import run_data

        return run_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.generate.data import run_rows

        return run_rows(self.run, self.heads)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.generate.document import run_document

        return run_document(self).shown(explain=explain, hints=hints)

    def arrays(self) -> Mapping[str, Writer]:
        from attnviz.draw.files import text_file
        from attnviz.inspect.generate.data import write_run_lines

        return {".jsonl": text_file(lambda stream: write_run_lines(self.run, stream))}


def activities(run: WrittenRun) -> dict[Head, HeadActivity]:
    """Return the activity of every (layer, head) during a generation, from its attention weights.

    A head is named by its known label, if the text can show it; else by the measure that gained
    most over uniform attention, as ``best_label`` decides. A query is taken to see each key to
    which some head of the layer gives any weight.
    """
    causal = run.kind != "cross"
    facts = TextFacts(run.queries, run.keys, Conditions(run.kind, causal))
    names = (*NAMED, _SPREAD[1], _PEAKED[1])
    found: dict[Head, HeadActivity] = {}
    labels = {} if run.known is None else run.known.named()
    for layer in sorted(run.steps[0].rows):
        weights = run.weights(layer)
        seen: NDArray[np.bool_] = np.any(weights > 0, axis=0)
        uniform, counts = base_rates(facts, names, seen, run.start)
        scores = whole_scores(facts, weights, names, run.start, seen)
        for head in range(len(run.steps[0].rows[layer])):
            own = {name: float(values[head]) for name, values in scores.items()}
            label = labels.get((layer, head))
            said, measure = _called(own, uniform, None if label is None else label.name)
            base = uniform[measure]
            found[layer, head] = HeadActivity(
                said, own[measure], math.nan if base is None else base, counts[measure], label
            )
    return found


def _called(
    scores: Mapping[str, float], uniform: Mapping[str, float | None], known: str | None
) -> tuple[str, str]:
    """Return a head's name and the measure behind it, for the weights of a generation.

    scores, uniform: of the head and of uniform attention, by measure. known: the name of the head's
    label, if it was measured before.
    """
    if known is not None and not math.isnan(scores.get(known, math.nan)):
        return known, known
    gained = {
        name: strength(scores[name], uniform[name]) or 0.0
        for name in NAMED
        if not math.isnan(scores.get(name, math.nan))
    }
    best = best_label(gained, scores, uniform, {})
    if best is not None:
        return best, best
    return _SPREAD if scores[_SPREAD[1]] >= _DIFFUSE else _PEAKED
