"""The loop of every intervention study: measure piece by piece, keep what is done, count progress.

A study has one or more series, such as the ablations and their control. A piece of a series holds
what some of its changes (ablations or patches) do to one text or to one pair of prompts.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.numbers import counted
from attnviz.engine.effects import Scores
from attnviz.engine.patching import PatchScores
from attnviz.errors import LoadError
from attnviz.progress import Watch
from attnviz.reading import damaged, typed
from attnviz.resume import Piece, ResumeFile, restored, stored

Metrics = dict[Any, NDArray[np.float64]]
"""Numbers (change,) of each metric, by its name."""

S = TypeVar("S", bound=Scores | PatchScores)


class Series(ABC, Generic[S]):
    """The measurements of one part of a study, such as the ablations or their baseline.

    Pieces are measured one by one, and stored in the resume file under the part's ``name``.
    count: the number of changes (ablations or patches); pieces name changes by their index.
    texts: the number of texts, or of prompt pairs. pieces: the finished ones, by text.
    changed: the name of the changes of a piece, as an attribute and in the resume file.
    noun, nouns, text: the words in messages for a change, several changes, and a text.
    Raises LoadError if a piece of the resume file is damaged.
    """

    changed: ClassVar[str]
    noun: ClassVar[str]
    nouns: ClassVar[str]
    text: ClassVar[str] = "text"

    def __init__(self, name: str, count: int, texts: int, file: ResumeFile | None) -> None:
        self.name, self.count, self.texts, self._file = name, count, texts, file
        self.pieces: dict[int, list[S]] = {}
        for piece in file.done if file is not None else []:
            if piece.part == name:
                self._add(piece.text, self._read(piece))

    @abstractmethod
    def measure(self, missing: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, S]]:
        """Measure what each text misses; yield each piece with the index of its text."""

    def cost(self, text: int) -> float:
        """Return the cost of one change of a text, in the unit of the progress. text: its index."""
        return 1.0

    @abstractmethod
    def details(self, piece: S) -> dict[str, Any]:
        """Return the facts of a piece that the resume file stores beyond changes and metrics."""

    @abstractmethod
    def rebuild(self, text: int, changes: tuple[int, ...], metrics: Metrics, kept: Any) -> S:
        """Return a piece made from the facts in the resume file; a ValueError means damage."""

    def changes(self, piece: S) -> tuple[int, ...]:
        """Return the indices of the changes that a piece has measured."""
        return tuple(getattr(piece, self.changed))

    def over(self, *texts: int) -> list[S]:
        """Return the finished pieces of some texts. texts: their indices."""
        return [piece for text in texts for piece in self.pieces.get(text, ())]

    def done(self, text: int) -> set[int]:
        """Return the indices of the changes measured over one text so far. text: its index."""
        return {index for piece in self.over(text) for index in self.changes(piece)}

    def cover(
        self, wanted: Sequence[int], texts: Iterable[int], add: Callable[[float], None]
    ) -> None:
        """Measure the wanted changes over the texts, except those that are already done.

        wanted, texts: their indices. add: called with the cost of each finished change.
        """
        missing: dict[int, list[int]] = {}
        for text in texts:
            done = self.done(text)
            left = [index for index in wanted if index not in done]
            add((len(wanted) - len(left)) * self.cost(text))
            if left:
                missing[text] = left
        for text, piece in self.measure(missing):
            changes = self.changes(piece)
            if self._file is not None:
                metrics = {name: stored(values) for name, values in piece.metrics.items()}
                kept = {self.changed: list(changes), "metrics": metrics}
                self._file.append(Piece(self.name, text, kept | self.details(piece)))
            self._add(text, piece)
            add(len(changes) * self.cost(text))

    def _add(self, text: int, piece: S) -> None:
        changes = self.changes(piece)
        if len(self.done(text) | set(changes)) < len(self.done(text)) + len(changes):
            raise LoadError(
                f"the resume file is damaged: {self.text} {text + 1} has a {self.noun} twice; "
                "remove one of its lines"
            )
        self.pieces.setdefault(text, []).append(piece)

    def _read(self, piece: Piece) -> S:
        where = f"the resume file: the result of {self.text} {piece.text + 1}"
        with damaged(where, f"remove its line, and the {self.text} is measured again"):
            kept = piece.result
            changes = tuple(typed(index, int) for index in kept[self.changed])
            if not 0 <= piece.text < self.texts:
                raise ValueError(f"there are {counted(self.texts, self.text)}")
            if not changes or not all(0 <= index < self.count for index in changes):
                raise ValueError(f"there are {self.count:,} {self.nouns}")
            metrics: Metrics = {name: restored(values) for name, values in kept["metrics"].items()}
            return self.rebuild(piece.text, changes, metrics, kept)


class Study(ABC):
    """Measures the request of one command; ``complete`` is False if Ctrl-C interrupted it."""

    def __init__(self, file: ResumeFile | None) -> None:
        self.file, self.seconds, self.complete = file, 0.0, True

    @abstractmethod
    def run(self, watch: Watch) -> None:
        """Measure everything that the request asks for. watch: is given the progress."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Return whether too little was measured for any report."""

    def measure(self, watch: Watch) -> None:
        """Measure all series to the end or until Ctrl-C; KeyboardInterrupt if that left nothing."""
        start = time.monotonic()
        try:
            self.run(watch)
        except KeyboardInterrupt:
            self.complete = False
        self.seconds = time.monotonic() - start
        if self.empty:
            raise KeyboardInterrupt
