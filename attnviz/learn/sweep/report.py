"""The report of ``attnviz sweep``: a decoder that is trained with several numbers of heads."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnviz.draw.report import Report, fields_of
from attnviz.learn.train.report import CorpusFacts, CurvePoint


@dataclass(frozen=True)
class Reference:
    """The result of a simple rule, without training, on the held-out predictions.

    loss: nats per prediction. accuracy: share of right answers, in [0, 1].
    """

    name: str
    loss: float
    accuracy: float


@dataclass(frozen=True)
class SweepTask:
    """The facts of the task that the models learn.

    name: the value of ``--task``, or ``text``. words: a sentence that says what is to be predicted.
    vocabulary: number of tokens. length: tokens of a sequence, without the beginning token.
    chance: the result of guessing letters at random. best: the result at the least possible loss;
        None if unknown. between: the results of rules that are simpler than the task.
    text: the facts of the training text; None for other tasks.
    """

    name: str
    words: str
    vocabulary: int
    length: int
    chance: Reference
    best: Reference | None = Reference("best possible", 0.0, 1.0)
    between: tuple[Reference, ...] = ()
    text: CorpusFacts | None = None


@dataclass(frozen=True)
class PatternScore:
    """The best head of one model for a pattern of attention, with its score.

    score: mean share of attention on the pattern's keys, over the head's queries, in [0, 1].
    even: the same share for uniform attention.
    """

    name: str
    words: str
    layer: int
    head: int
    score: float
    even: float


@dataclass(frozen=True)
class SweepModel:
    """One trained model of a sweep, with its results.

    seed: of its first parameters and batches. points: its learning curve, over predictable tokens.
    loss, accuracy: on the held-out sequences, nats per prediction and share in [0, 1].
    step_seconds: time of one training step, the median over the points of the curve.
    patterns: the best head of each pattern.
    """

    heads: int
    seed: int
    parameters: int
    points: tuple[CurvePoint, ...]
    loss: float
    accuracy: float
    step_seconds: float
    patterns: tuple[PatternScore, ...]

    def pattern(self, name: str) -> PatternScore:
        """Return the best head of the pattern ``name``; raise KeyError if it was not measured."""
        return {scored.name: scored for scored in self.patterns}[name]


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with its sample standard deviation, which is None for one seed."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the mean and the standard deviation of at least one value."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, repr=False)
class SweepReport(Report):
    """The report of ``attnviz sweep``: the trained models, with their options and results.

    heads, seeds: as requested, heads ascending. models: the trained ones, seed by seed.
    layers, d_model: of every model; d_model is also the inner width of its feed-forward blocks.
    learning_rate: its peak. held_out: number of sequences that no model was trained on.
        predictions: how many of their tokens count. threads: of the CPU. seconds: total time.
    """

    task: SweepTask
    heads: tuple[int, ...]
    seeds: tuple[int, ...]
    layers: int
    d_model: int
    steps: int
    batch: int
    learning_rate: float
    held_out: int
    predictions: int
    device: str
    threads: int
    models: tuple[SweepModel, ...]
    seconds: float

    command = "sweep"

    def data(self) -> dict[str, Any]:
        settings = ("steps", "batch", "learning_rate", "held_out", "predictions", "threads")
        return {
            "schema": "attnviz.sweep/1",
            "model": {
                "name": "attnviz's own decoder",
                **fields_of(self, ("layers", "d_model")),
                "d_ff": self.d_model,
                "dtype": "float32",
                "device": self.device,
            },
            "task": asdict(self.task),
            **fields_of(self, ("heads", "seeds", "complete", *settings)),
            "results": [self._result(heads) for heads in self.measured],
            "models": [self._model(model) for model in self.models],
            **fields_of(self, ("seconds", "notes")),
        }

    def rows(self) -> Iterator[list[object]]:
        """Yield the table: a row for each model, with the best head of each pattern."""
        names = [pattern.name for pattern in self.models[0].patterns]
        columns = ("heads", "head_dim", "seed", "parameters", "loss", "accuracy", "step_seconds")
        yield [*columns, *(f"{name}{part}" for name in names for part in ("", "_layer", "_head"))]
        for model in self.models:
            facts, best = self._model(model), map(model.pattern, names)
            scores = [cell for head in best for cell in (head.score, head.layer, head.head)]
            yield [*(facts[name] for name in columns), *scores]

    def _model(self, model: SweepModel) -> dict[str, Any]:
        names = ("seed", "parameters", "loss", "accuracy", "step_seconds")
        return {
            "heads": model.heads,
            "head_dim": self.d_model // model.heads,
            **fields_of(model, names),
            "patterns": [*map(asdict, model.patterns)],
            "curve": [
                fields_of(point, ("step", "loss", "learning_rate")) for point in model.points
            ],
        }

    def _result(self, heads: int) -> dict[str, Any]:
        models = self.of(heads)
        patterns = [pattern.name for pattern in models[0].patterns]
        measured = ("loss", "accuracy", "step_seconds")
        return {
            "heads": heads,
            "head_dim": self.d_model // heads,
            "parameters": models[0].parameters,
            "seeds": [model.seed for model in models],
            **{name: asdict(self.spread(heads, name)) for name in measured},
            "patterns": {name: asdict(self.score(heads, name)) for name in patterns},
        }

    @property
    def complete(self) -> bool:
        """Return whether every requested model is trained."""
        return len(self.models) == len(self.heads) * len(self.seeds)

    @property
    def trained_words(self) -> str:
        """Return a string such as ``3 of 12 models are trained``."""
        return f"{len(self.models)} of {len(self.heads) * len(self.seeds)} models are trained"

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a note if the sweep was interrupted; else empty."""
        note = f"interrupted: {self.trained_words}, the others are left out"
        return () if self.complete else (note,)

    @property
    def measured(self) -> tuple[int, ...]:
        """Return the numbers of heads that have at least one trained model."""
        return tuple(heads for heads in self.heads if self.of(heads))

    def of(self, heads: int) -> tuple[SweepModel, ...]:
        """Return the models with this number of heads, in the order of their seeds."""
        return tuple(model for model in self.models if model.heads == heads)

    def spread(self, heads: int, measure: str = "loss") -> Spread:
        """Return mean and deviation over seeds of ``loss``, ``accuracy`` or ``step_seconds``."""
        return Spread.of([getattr(model, measure) for model in self.of(heads)])

    def score(self, heads: int, pattern: str) -> Spread:
        """Return mean and deviation over seeds of a pattern's best score with ``heads`` heads."""
        return Spread.of([model.pattern(pattern).score for model in self.of(heads)])
