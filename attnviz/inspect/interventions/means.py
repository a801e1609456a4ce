"""The effect of a change as a mean over texts, and how effects are shown: in a grid, in a table.

A mean has its confidence interval, p-value and base rate. Grid and table are the same for
ablations, patches and paths; each adds columns of its own to the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.provenance import label_title
from attnviz.draw.signed import Place, interval_text, layer_grid, ranked_table
from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, includes_zero
from attnviz.records import HeadLabel

_SIGNIFICANT = 0.05
"""The probability that any change at all is called significant if none has an effect."""

Ends = tuple[float, float]
"""The lower and the upper end of an interval."""


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


# How effects are shown -------------------------------------------------------------------------


Entry = TypeVar("Entry")


def place_name(place: Place, letters: str, base: int) -> str:
    """Return the name of a head or layer, such as ``L2H5`` or ``L2KV1``; without letters ``L2``.

    place: (layer, head), (layer, key/value head) or (layer, 0). letters: such as ``H``, between
    both numbers.
    """
    layer = f"L{place[0] + base}"
    return f"{layer}{letters}{place[1] + base}" if letters else layer


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
    known = {place: mean for place, mean in means.items() if math.isfinite(mean.value)}
    return layer_grid(
        {place: mean.value for place, mean in known.items()},
        scale,
        title,
        column,
        base=base,
        unclear={place for place, mean in known.items() if mean.unclear},
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
    doubt = ("95% interval", [interval_text(own.interval, scale) for own in means])
    if not any(doubt[1]):
        plain = NumberScale(scale.limit, False, scale.percent)
        doubt = ("std error", [number(own.error, plain) for own in means])
    first, *others = (
        (doc.Column(column.title, *column[2:]), [column.write(entry) for entry in entries])
        for column in columns
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
        place = head(entry)
        label = None if place is None else labels.get(place)
        return "" if label is None else write(label)

    return doc.ColumnOf(label_title(labels.values()), text, right=False)


def incomplete(done: int, wanted: int, noun: str, changes: str) -> str:
    """Return the clause with which the finding of an interrupted run begins."""
    share = f"{done} of {counted(wanted, noun)}" if wanted > 1 else f"a part of the {changes}"
    return f"Incomplete, {share}. "
