"""What every task offers: sequences without end, what rules reach on them, what heads may do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.sweep.records import Reference, SweepTask
from attnviz.train.records import CorpusFacts

__all__ = ["BEGINNING", "Pattern", "Samples", "Task", "evenly"]

BEGINNING = 0
"""The id that begins every sequence; letters are counted from 1."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Sequences and which of their tokens can be known.

    ids: (sequence, 1 + token), ``BEGINNING`` first. Token i + 1 is predicted at i.
    counted: (sequence, token), whether that prediction counts; at least one does.
    """

    ids: NDArray[np.int64]
    counted: NDArray[np.bool_]

    @property
    def predictions(self) -> int:
        """How many count."""
        return int(self.counted.sum())


@dataclass(frozen=True)
class Pattern:
    """Keys that a head may look at.

    name: for programs. words: for people.
    keys: of samples, (sequence, query, key), True for those keys; a query without any does not
    count. Queries and keys are all tokens but the last, which is only predicted.
    """

    name: str
    words: str
    keys: Callable[[Samples], NDArray[np.bool_]]


class Task(ABC):
    """Sequences to learn from, drawn afresh for every batch.

    name: as ``--task`` has it, or ``text``. words: what is to be predicted.
    vocabulary: ids are below it. length: tokens of a sequence, its beginning aside.
    patterns: that heads are scored by. text: what sequences are cut from, None for random ones.
    """

    name: str
    words: str
    vocabulary: int
    length: int
    patterns: tuple[Pattern, ...]
    text: CorpusFacts | None = None

    @abstractmethod
    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """So many sequences to learn from."""

    def held_out(self, count: int, random: np.random.Generator) -> Samples:
        """So many sequences to measure on, or as many as there are."""
        return self.draw(count, random)

    @abstractmethod
    def chance(self, samples: Samples) -> Reference:
        """What answers reach that are drawn evenly from all that can be one."""

    def best(self, samples: Samples) -> Reference | None:
        """The least loss that is possible; None where nobody knows it."""
        return Reference("best possible", 0.0, 1.0)

    def between(self, samples: Samples) -> tuple[Reference, ...]:
        """What rules reach that are simpler than the task."""
        return ()

    def facts(self, samples: Samples) -> SweepTask:
        """What a report says of the task, its references measured on ``samples``."""
        return SweepTask(
            self.name,
            self.words,
            self.vocabulary,
            self.length,
            self.chance(samples),
            self.best(samples),
            self.between(samples),
            self.text,
        )


def evenly(name: str, choices: NDArray[np.floating]) -> Reference:
    """Answers drawn evenly from so many, the right one among them; a number a prediction."""
    return Reference(name, float(np.log(choices).mean()), float((1 / choices).mean()))
