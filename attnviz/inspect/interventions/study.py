"""The loop of every intervention study, its effects as means over texts, and how these are shown.

A study measures piece by piece, keeps what is done, and counts progress. It has one or more series,
such as the ablations and their control. A piece of a series holds what some of its changes
(ablations or patches) do to one text or to one pair of prompts. A mean has its confidence interval,
p-value and base rate. Grid and table are the same for ablations, patches and paths; each adds
columns of its own to the table.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.provenance import label_title
from attnviz.draw.signed import Place, interval_text, layer_grid, ranked_table
from attnviz.engine.effects import Scores
from attnviz.engine.patching import PatchScores
from attnviz.errors import LoadError
from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, includes_zero
from attnviz.progress import Watch
from attnviz.reading import damaged, typed
from attnviz.records import HeadLabel
from attnviz.resume import Piece, ResumeFile, restored, stored

Metrics = dict[Any, NDArray[np.float64]]  # numbers (change,) of each metric, by its name
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
        """Measure what the texts lack of ``wanted``; ``add`` is given each change's cost."""
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


_SIGNIFICANT = 0.05
"""The probability that any change at all is called significant if none has an effect."""

Ends = tuple[float, float]  # the lower and the upper end of an interval


@dataclass(frozen=True)
class Mean:
    """The mean of one number over texts or prompt pairs, with its uncertainty.

    value: the mean; NaN if it was not measured or is not finite.
    interval: its 95% bootstrap-t confidence interval; None for fewer than five texts.
    adjusted: the two-sided p-value, adjusted for all changes that were tested; None for fewer than
        five texts, or if the number has only one sign.
    base_rate: the same number for an unrelated change (the random baseline); None if there is none.
    error: the standard error over random draws of the replacement; None if nothing was drawn.
    signed: whether the number can be below zero; else no interval is said to include zero.
    """

    value: float = math.nan
    interval: Ends | None = None
    adjusted: float | None = None
    base_rate: float | None = None
    error: float | None = None
    signed: bool = True

    @property
    def unclear(self) -> bool:
        """Return whether the confidence interval includes zero; False without an interval."""
        return self.signed and includes_zero(self.interval)

    @property
    def significant(self) -> bool:
        """Return whether the mean differs from zero, corrected for the number of tested changes."""
        return not self.unclear and self.adjusted is not None and self.adjusted <= _SIGNIFICANT

    def times(self, factor: float) -> Mean:
        """Return the mean, its interval and all other fields multiplied by ``factor``."""
        ends, base, error = self.interval, self.base_rate, self.error
        return replace(
            self,
            value=self.value * factor,
            interval=None if ends is None else (ends[0] * factor, ends[1] * factor),
            base_rate=None if base is None else base * factor,
            error=None if error is None else error * factor,
        )


NOT_MEASURED = Mean()


def p_values(
    values: NDArray[np.floating], seed: int, known: NDArray[np.floating] | None = None
) -> list[float | None]:
    """Return the adjusted p-value of each mean over texts, (text, change); None for under five."""
    if len(values) < LEAST_TEXTS:
        return [None] * values.shape[1]
    return list(adjusted_p(values, seed, known).tolist())


Entry = TypeVar("Entry")


def cell_name(cell: Place, letters: str, base: int) -> str:
    """Return a cell's name: ``L2H5``, ``L2KV1``, or without ``letters`` its layer's, ``L2``."""
    layer = f"L{cell[0] + base}"
    return f"{layer}{letters}{cell[1] + base}" if letters else layer


def effect_grid(
    means: Mapping[Place, Mean],
    scale: NumberScale,
    title: str,
    column: Callable[[int], str],
    *,
    base: int,
    blank: Iterable[Place] = (),
    bar: doc.Scale | None = None,
) -> doc.HeadGrid:
    """Return a grid with a cell for each effect; grey if its confidence interval includes zero.

    means: the effects by (layer, column); values that are not finite have no cell.
    blank: further cells, without a value. bar: the colour bar; None to leave it out.
    """
    known = {cell: mean for cell, mean in means.items() if math.isfinite(mean.value)}
    return layer_grid(
        {cell: mean.value for cell, mean in known.items()},
        scale,
        title,
        column,
        base=base,
        unclear={cell for cell, mean in known.items() if mean.unclear},
        blank=blank,
        bar=bar,
    )


def effect_table(
    title: str,
    entries: Sequence[Entry],
    *columns: doc.ColumnOf[Entry],
    scale: NumberScale,
    name: Callable[[Entry], str],
    mean: Callable[[Entry], Mean],
) -> doc.Table:
    """Return a table with a row for each effect: bar, value, interval, further columns.

    columns: the column of the value, then those after the interval; a column without any filled
        cell is left out. name, mean: return the name and the effect of an entry. Rows whose
        interval includes zero are grey.
    """
    means = [mean(entry) for entry in entries]
    doubt = ("95% CI", [interval_text(own.interval, scale) for own in means])
    if not any(doubt[1]):
        plain = NumberScale(scale.limit, False, scale.percent)
        doubt = ("std error", [number(own.error, plain) for own in means])
    first, *others = (
        (doc.Column(own.title, *own[2:]), [*map(own.write, entries)]) for own in columns
    )
    values, grey = [own.value for own in means], [own.unclear for own in means]
    return ranked_table(title, [*map(name, entries)], values, scale, [first, doubt, *others], grey)


def number(value: float | None, scale: NumberScale) -> str:
    """Return a number as a string; empty for None or NaN, which were not measured."""
    return "" if value is None or math.isnan(value) else scale.text(value)


def base_rates(
    title: str, mean: Callable[[Entry], Mean], scale: NumberScale
) -> doc.ColumnOf[Entry]:
    """Return the table column of the base rates, under a title."""
    return doc.ColumnOf(title, lambda entry: number(mean(entry).base_rate, scale))


def label_column(
    labels: Mapping[Place, HeadLabel],
    head: Callable[[Entry], Place | None],
    write: Callable[[HeadLabel], str],
) -> doc.ColumnOf[Entry]:
    """Return the table column of the labels of heads."""

    def text(entry: Entry) -> str:
        of = head(entry)
        label = None if of is None else labels.get(of)
        return "" if label is None else write(label)

    return doc.ColumnOf(label_title(labels.values()), text, right=False)


def incomplete(done: int, wanted: int, noun: str, changes: str) -> str:
    """Return the clause with which the finding of an interrupted run begins."""
    share = f"{done} of {counted(wanted, noun)}" if wanted > 1 else f"a part of the {changes}"
    return f"Incomplete, {share}. "
