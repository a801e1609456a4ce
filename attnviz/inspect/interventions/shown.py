"""How effects are shown: a grid of places, and a table with a row for each effect.

Both are the same for ablations, patches and paths; each adds columns of its own to the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.provenance import label_title
from attnviz.draw.signed import Place, interval_text, layer_grid, ranked_table
from attnviz.inspect.interventions.means import Mean
from attnviz.records import HeadLabel

Entry = TypeVar("Entry")


def place_name(place: Place, letters: str, base: int) -> str:
    """Return the name of a head or layer, such as ``L2H5`` or ``L2KV1``; without letters ``L2``.

    place: (layer, head), (layer, key/value head) or (layer, 0). letters: such as ``H``, between
    both numbers. base: the number of the first layer and head, 0 or 1.
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

    means: the effects by (layer, column); values that are not finite have no cell. scale: the
    number format. title: of the grid. column: returns the name of a column. base: the number of
    the first layer, 0 or 1.
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

    title: over the table. entries: of the rows. columns: the column of the value, then those after
        the interval; a column without any filled cell is left out. scale: the number format. name,
        mean: return the name and the effect of an entry. Rows whose interval includes zero are
        grey.
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
    """Return a number as a string; empty for None or NaN, which were not measured.

    scale: the number format.
    """
    return "" if value is None or math.isnan(value) else scale.text(value)


def base_rates(
    title: str, mean: Callable[[Entry], Mean], scale: NumberScale
) -> doc.ColumnOf[Entry]:
    """Return the table column of the base rates, under a title.

    mean: returns the effect of an entry. scale: the number format.
    """
    return doc.ColumnOf(title, lambda entry: number(mean(entry).base_rate, scale))


def label_column(
    labels: Mapping[Place, HeadLabel],
    head: Callable[[Entry], Place | None],
    write: Callable[[HeadLabel], str],
) -> doc.ColumnOf[Entry]:
    """Return the table column of the labels of heads.

    labels: by (layer, head). head: returns that of an entry; None stands for several heads. write:
        returns the string for a label.
    """

    def text(entry: Entry) -> str:
        place = head(entry)
        label = None if place is None else labels.get(place)
        return "" if label is None else write(label)

    return doc.ColumnOf(label_title(labels.values()), text, right=False)


def incomplete(done: int, wanted: int, noun: str, changes: str) -> str:
    """Return the clause with which the finding of an interrupted run begins.

    done, wanted: how many texts or pairs, each called ``noun``. changes: such as ``ablations``.
    """
    share = f"{done} of {counted(wanted, noun)}" if wanted > 1 else f"a part of the {changes}"
    return f"Incomplete, {share}. "
