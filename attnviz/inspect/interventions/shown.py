"""How effects are shown: a grid of places, and a table with a row for each effect.

Both are the same for ablations, patches and paths; each adds columns of its own to the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.provenance import label_title
from attnviz.draw.signed import Place, interval_text, layer_grid, ranked_table
from attnviz.inspect.interventions.means import Mean
from attnviz.records import HeadLabel

Cells = tuple[str | doc.Column, Sequence[str]]
"""A column of a table and its cells."""


def place_name(place: Place, letters: str, base: int) -> str:
    """Return the name of a head or layer, such as ``L2H5`` or ``L2KV1``; without letters ``L2``.

    place: (layer, head), (layer, key/value head) or (layer, 0). letters: such as ``H``, between
    both numbers. base: the number of the first layer and head, 0 or 1.
    """
    layer = f"L{place[0] + base}"
    return f"{layer}{letters}{place[1] + base}" if letters else layer


def effect_grid(
    found: Mapping[Place, Mean],
    scale: NumberScale,
    title: str,
    column: Callable[[int], str],
    *,
    base: int,
    blank: Iterable[Place] = (),
    bar: doc.Scale | None = None,
) -> doc.HeadGrid:
    """Return a grid with a cell for each effect; grey if its confidence interval includes zero.

    found: the effects by (layer, column); values that are not finite have no cell. scale: the
        number format. title: of the grid. column: returns the name of a column. base: the number of
        the first layer, 0 or 1.
    blank: further cells, without a value. bar: the colour bar; None for a first screen.
    """
    known = {place: one for place, one in found.items() if math.isfinite(one.value)}
    return layer_grid(
        {place: one.value for place, one in known.items()},
        scale,
        title,
        column,
        base=base,
        unclear={place for place, one in known.items() if one.unclear},
        blank=blank,
        bar=bar,
    )


def effect_table(
    title: str,
    names: Sequence[str],
    found: Sequence[Mean],
    scale: NumberScale,
    columns: Sequence[Cells],
) -> doc.Table:
    """Return a table with a row for each effect: bar, value, interval, further columns.

    title: over the table. names, found: the name and the effect of each row. scale: the number
        format. columns: the column of the value, then those after the interval; a column without
        any filled cell is left out. Rows whose interval includes zero are grey.
    """
    doubt: Cells = ("95% interval", [interval_text(one.interval, scale) for one in found])
    if not any(doubt[1]):
        plain = NumberScale(scale.limit, False, scale.percent)
        doubt = ("std error", [number(one.error, plain) for one in found])
    values, grey = [one.value for one in found], [one.unclear for one in found]
    return ranked_table(title, names, values, scale, [columns[0], doubt, *columns[1:]], grey)


def number(value: float | None, scale: NumberScale) -> str:
    """Return a number as a string; empty for None or NaN, which were not measured.

    scale: the number format.
    """
    return "" if value is None or math.isnan(value) else scale.text(value)


def base_rates(title: str, found: Sequence[Mean], scale: NumberScale) -> Cells:
    """Return the table column of the base rates, under a title.

    found: the effect of each row. scale: the number format.
    """
    return title, [number(one.base_rate, scale) for one in found]


def label_column(
    labels: Mapping[Place, HeadLabel],
    heads: Iterable[Place | None],
    write: Callable[[HeadLabel], str],
) -> Cells:
    """Return the table column of the labels of heads.

    labels: by (layer, head). heads: that of each row; None stands for several heads. write: returns
        the string for a label.
    """
    known = [labels.get(head) if head is not None else None for head in heads]
    cells = ["" if label is None else write(label) for label in known]
    return doc.Column(label_title(labels.values()), right=False), cells


def incomplete(done: int, wanted: int, noun: str, changes: str) -> str:
    """Return the first words of the finding of an interrupted run.

    done, wanted: how many texts or pairs, each called ``noun``. changes: such as ``ablations``.
    """
    share = f"{done} of {counted(wanted, noun)}" if wanted > 1 else f"a part of the {changes}"
    return f"Incomplete, {share}. "
