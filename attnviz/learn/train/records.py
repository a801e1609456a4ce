"""What crosses the layers of a training run: the points of its curve and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnviz.draw.report import Report
from attnviz.records import ModelInfo

if TYPE_CHECKING:
    from attnviz.draw.document import Document


@dataclass(frozen=True)
class CurvePoint:
    """One point of a learning curve.

    step: optimiser steps done. tokens: tokens read by then, of every kind of sequence.
    seconds: time spent training, validation and what came before a resumption included.
    learning_rate: of the last step.
    loss: mean cross-entropy of the training batches since the point before, nats per token.
    valid_loss: of the validation text, nats per token; None where it was not measured here.
    phase: name of the recipe's phase that the last step belongs to.
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
    """A text that a model is trained or validated on.

    files: names of the files, in their order. bytes: of their UTF-8. tokens: that they become.
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
    """A mean over sequences. error: its standard error; None where there is one sequence."""

    mean: float
    error: float | None

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.3f}"
        return f"{self.mean:.3f}{error}"


@dataclass(frozen=True)
class ScoredHeads:
    """One score of every head.

    name: such as ``previous``. probe: ``text`` or ``random``, what it was measured on.
    heads: by layer and head, each in [0, 1]. even: the same of uniform attention.
    """

    name: str
    probe: str
    heads: tuple[tuple[SequenceMean, ...], ...]
    even: float

    @property
    def best(self) -> tuple[int, int, SequenceMean]:
        """Layer, head and score of the highest one."""
        places = ((layer, head) for layer, row in enumerate(self.heads) for head in range(len(row)))
        layer, head = max(places, key=lambda place: self.heads[place[0]][place[1]].mean)
        return layer, head, self.heads[layer][head]


@dataclass(frozen=True)
class ModelScores:
    """What the heads of a trained model do, measured from its stored weights in float32.

    scores: of every head. windows, window_tokens: of validation text, the token that begins each
    aside; 0 where none was read.
    copies: sequences of random tokens that stand there twice; copy_tokens: of one copy.
    seed: of the random tokens. first_copy, second_copy: losses on them, nats per token; of the
    second copy those that the first one tells, all but its first token.
    """

    scores: tuple[ScoredHeads, ...]
    windows: int
    window_tokens: int
    copies: int
    copy_tokens: int
    seed: int
    first_copy: SequenceMean
    second_copy: SequenceMean

    def of(self, probe: str) -> tuple[ScoredHeads, ...]:
        """Return what was measured on ``text`` or on ``random`` tokens."""
        return tuple(scored for scored in self.scores if scored.probe == probe)

    def score(self, name: str, probe: str) -> ScoredHeads:
        """KeyError where it was not measured."""
        for scored in self.scores:
            if (scored.name, scored.probe) == (name, probe):
                return scored
        raise KeyError((name, probe))


_LARGEST_EXPONENT = 700.0

LEAST_STEPS = 100
"""Steps under which a run has trained nothing."""

CLEARLY = 0.95
"""Share of the unigram loss that a model must reach for its heads to be worth a look."""


@dataclass(frozen=True, repr=False)
class TrainReport(Report):
    """What a training run left behind.

    directory: the model's. model: what it is, with the revision of its tensors.
    parameters: how many numbers were trained. vocabulary: number of tokens.
    d_model: width of the residual stream.
    shares: share of the tokens read by kind of sequence, of 1.
    points: the whole curve, from the first step on.
    valid_loss: over the first ``valid_tokens`` of the validation text, all of them where the budget
    allows it, nats per token, from the stored weights.
    unigram_loss: of that text, what the frequencies of tokens in the training text predict.
    valid_windows: tokens of the windows that the validation text was cut into for it.
    curve_windows: the same for the curve's points.
    dtype: of the matrix products while it was trained; weights and optimiser are float32.
    stored: what the tensors are stored in.
    budget: what was asked for, such as ``1,000,000 tokens``. finished: whether it was used up.
    scores: of its heads, from the stored weights.
    """

    directory: str
    model: ModelInfo
    parameters: int
    vocabulary: int
    d_model: int
    train: CorpusFacts
    valid: CorpusFacts
    points: tuple[CurvePoint, ...]
    shares: Mapping[str, float]
    valid_loss: float
    valid_tokens: int
    unigram_loss: float
    valid_windows: int
    curve_windows: int
    dtype: str
    stored: str
    seed: int
    budget: str
    finished: bool
    scores: ModelScores

    command = "train"

    def data(self) -> dict[str, Any]:
        from attnviz.learn.train.data import train_data

        return train_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.learn.train.data import train_rows

        return train_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.learn.train.document import train_document

        return train_document(self, explain=explain, hints=hints)

    @property
    def tokens_per_second(self) -> float:
        """Over the whole run, validation included."""
        last = self.points[-1]
        return last.tokens / last.seconds

    @property
    def valid_perplexity(self) -> float | None:
        """exp of the validation loss; None where it is too large for a number."""
        return math.exp(self.valid_loss) if self.valid_loss < _LARGEST_EXPONENT else None

    @property
    def even_loss(self) -> float:
        """Nats per token of a guess that finds all tokens of the vocabulary equally likely."""
        return math.log(self.vocabulary)

    @property
    def whole(self) -> bool:
        """Return whether the loss is over all of the validation text."""
        return self.valid_tokens == self.valid.tokens

    @property
    def steps(self) -> int:
        """Of the optimiser."""
        return self.points[-1].step

    @property
    def trained(self) -> bool:
        """Return whether there were enough steps for anything to form."""
        return self.steps >= LEAST_STEPS

    @property
    def learnt(self) -> bool:
        """Return whether it predicts clearly better than token frequencies, which need no
        attention.
        """
        return self.trained and self.valid_loss <= CLEARLY * self.unigram_loss

    @property
    def valid_bits_per_byte(self) -> float:
        """Return the validation loss as bits per byte of text, which compares across
        vocabularies.
        """
        return bits_per_byte(self.valid_loss, self.valid)


def bits_per_byte(nats_per_token: float, text: CorpusFacts) -> float:
    """Return a loss in nats per token as bits per UTF-8 byte: loss · tokens / (bytes · ln 2)."""
    return nats_per_token * text.tokens / (text.bytes * math.log(2))
