"""The report of ``attnviz train``: the points of its curve, its results, its heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts
from attnviz.learn.train.recipe import Recipe
from attnviz.records import ModelInfo

FIRST = "first"
"""The directory, in that of a run, of the model before its first training step."""


@dataclass(frozen=True)
class CurvePoint:
    """One point of a learning curve.

    step, tokens, seconds: optimiser steps, training tokens and training time so far.
    learning_rate, phase: of the last step. loss: mean cross-entropy of the training batches since
        the point before, nats per token. valid_loss: of the validation text; None if not measured.
    """

    step: int
    tokens: int
    seconds: float
    learning_rate: float
    loss: float
    valid_loss: float | None = None
    phase: str = ""


@dataclass(frozen=True)
class CorpusFacts:
    """The facts of a text that a model is trained or validated on.

    files: names of the files, in their order. bytes: of their UTF-8. tokens: number of tokens.
    digest: the first 12 hexadecimal digits of a SHA-256 over the files' contents.
    held_out: whether it was cut from the end of the training text.
    """

    files: tuple[str, ...]
    bytes: int
    tokens: int
    digest: str
    held_out: bool = False


@dataclass(frozen=True)
class SequenceMean:
    """A mean over sequences with its standard error, which is None for a single sequence."""

    mean: float
    error: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.error is None else f" ± {self.error:.3f}")


@dataclass(frozen=True)
class ScoredHeads:
    """One pattern score of every head of a trained model.

    name: such as ``previous``. probe: the data of the measurement, ``text`` or ``random`` tokens.
    heads: by layer and head, each in [0, 1]. even: the score of uniform attention.
    """

    name: str
    probe: str
    heads: tuple[tuple[SequenceMean, ...], ...]
    even: float

    @property
    def best(self) -> tuple[int, int, SequenceMean]:
        """Return the layer, the number and the score of the head with the highest score."""
        rows = enumerate(self.heads)
        scores = [(layer, head, score) for layer, row in rows for head, score in enumerate(row)]
        return max(scores, key=lambda scored: scored[2].mean)


@dataclass(frozen=True)
class ModelScores:
    """The pattern scores of a trained model's heads, from its stored parameters in float32.

    windows, window_tokens: number of windows of validation text, and tokens of each.
    copies: number of sequences of random tokens followed by a copy; copy_tokens: tokens of a copy.
    seed: of the random tokens. first_copy, second_copy: losses on them, nats per token; for the
    second copy without its first token, which is not predictable.
    """

    scores: tuple[ScoredHeads, ...]
    windows: int
    window_tokens: int
    copies: int
    copy_tokens: int
    seed: int
    first_copy: SequenceMean
    second_copy: SequenceMean

    def score(self, name: str, probe: str) -> ScoredHeads:
        """Return a score of every head on ``text`` or ``random``; KeyError if not measured."""
        return {(scored.name, scored.probe): scored for scored in self.scores}[name, probe]

    def data(self) -> dict[str, Any]:
        """Return the scores as JSON values, grouped by the data they were measured on."""
        return {
            "text": {
                "sequences": self.windows,
                "tokens": self.window_tokens,
                **self._heads("text"),
            },
            "random": {
                "sequences": self.copies,
                **fields_of(self, ("copy_tokens", "seed")),
                "first_copy_loss": asdict(self.first_copy),
                "second_copy_loss": asdict(self.second_copy),
                **self._heads("random"),
            },
        }

    def _heads(self, probe: str) -> dict[str, Any]:
        """Return the list of heads with their scores on one probe: ``text`` or ``random``."""
        scored = [scored for scored in self.scores if scored.probe == probe]
        heads = [
            {
                "layer": layer,
                "head": head,
                "scores": {score.name: score.heads[layer][head].mean for score in scored},
                "errors": {score.name: score.heads[layer][head].error for score in scored},
                "even": {score.name: score.even for score in scored},
            }
            for layer, row in enumerate(scored[0].heads)
            for head in range(len(row))
        ]
        return {"heads": heads}


_MEASURED = ("tokens_per_second", "shares", "valid_loss", "valid_perplexity", "valid_bits_per_byte")
_LEAST_STEPS, _CLEARLY = 100, 0.95  # steps of a trained run; share of the unigram loss if it learnt


@dataclass(frozen=True, repr=False)
class TrainReport(Report):
    """The report of ``attnviz train``: the trained model, its curve and its heads' scores.

    directory: of the model. model: its facts, with the revision of its tensors.
    recipe: by which it was trained. parameters: number of trained parameters. vocabulary: number of
        tokens. train, valid: the facts of the texts.
    shares: share of the training tokens by kind of sequence, out of 1.
    points: the whole curve, from the first step on.
    valid_loss: of the whole validation text, nats per token, computed with the stored parameters.
    unigram_loss: loss of the training text's token frequencies on the whole validation text.
    finished: whether the budget was used up. scores: of its heads, from the stored parameters.
    """

    directory: str
    model: ModelInfo
    recipe: Recipe
    parameters: int
    vocabulary: int
    train: CorpusFacts
    valid: CorpusFacts
    points: tuple[CurvePoint, ...]
    shares: Mapping[str, float]
    valid_loss: float
    unigram_loss: float
    finished: bool
    scores: ModelScores

    command = "train"

    def data(self) -> dict[str, Any]:
        last, recipe = self.points[-1], self.recipe
        return {
            "schema": "attnviz.train/1",
            "model": {
                **model_facts(self.model),
                **fields_of(self, ("parameters", "vocabulary")),
                "d_model": recipe.model.d_model,
            },
            "path": self.directory,
            "first": f"{self.directory}/{FIRST}",
            "train": asdict(self.train),
            "valid": asdict(self.valid),
            "budget": str(recipe.budget),
            "finished": self.finished,
            **fields_of(recipe, ("autocast", "stored", "seed")),
            "steps": last.step,
            **fields_of(last, ("tokens", "seconds")),
            **fields_of(self, _MEASURED),
            "valid_tokens": self.valid.tokens,
            **fields_of(self, ("unigram_loss", "learnt")),
            "valid_windows": recipe.phase[-1].length,
            "curve_windows": recipe.window,
            "scores": self.scores.data(),
            "curve": [asdict(point) for point in self.points],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the table: a row for each point of the curve."""
        yield tuple(own.name for own in fields(CurvePoint))
        yield from map(astuple, self.points)

    @property
    def tokens_per_second(self) -> float:
        """Return the speed of the training in tokens per second, validation included."""
        last = self.points[-1]
        return last.tokens / last.seconds

    @property
    def valid_perplexity(self) -> float | None:
        """Return exp of the validation loss; None if it is too large for a number."""
        return math.exp(self.valid_loss) if self.valid_loss < 700 else None

    @property
    def even_loss(self) -> float:
        """Return the loss in nats per token if all tokens of the vocabulary are equally likely."""
        return math.log(self.vocabulary)

    @property
    def trained(self) -> bool:
        """Return whether there were enough steps to train anything."""
        return self.points[-1].step >= _LEAST_STEPS

    @property
    def learnt(self) -> bool:
        """Return whether the model predicts clearly better than token frequencies alone."""
        return self.trained and self.valid_loss <= _CLEARLY * self.unigram_loss

    @property
    def valid_bits_per_byte(self) -> float:
        """Return loss · tokens / (bytes · ln 2), which is comparable across vocabularies."""
        return self.valid_loss * self.valid.tokens / (self.valid.bytes * math.log(2))
