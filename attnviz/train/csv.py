"""``attnviz train --save FILE.csv``: the curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING

from attnviz.train.records import CurvePoint

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_train_csv"]


def write_train_csv(points: Sequence[CurvePoint], stream: SupportsWrite[str]) -> None:
    """A line for each point of the curve, losses in nats per token; what was not measured is empty.

    The columns are the fields of ``CurvePoint``; a phase's name is in quotes.
    """
    stream.write(",".join(one.name for one in fields(CurvePoint)) + "\n")
    for point in points:
        *numbers, phase = astuple(point)
        cells = ["" if number is None else repr(number) for number in numbers]
        quoted = phase.replace('"', '""')
        stream.write(",".join([*cells, f'"{quoted}"']) + "\n")
