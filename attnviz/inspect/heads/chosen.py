"""The heads of a report that a Python caller chooses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.options import spelled_head
from attnviz.records import HeadsRecord

HeadChoice: TypeAlias = str | int | tuple[int, int]
"""A head as on the command line (``L2H5``, ``2.*``, ``0-3.1,4``), the number of a head in every
layer, or (layer, head)."""

_NAMED = 4


def chosen_heads(
    report: HeadsRecord, heads: Sequence[HeadChoice], layer: str | int | None
) -> frozenset[tuple[int, int]]:
    """Return the chosen (layer, head) that the report has, or all its heads if none is chosen.

    heads, layer: the choices as typed, such as ``L1H2`` and ``0-3``; None for any layer.

    Raises UsageError if a choice is not valid, or the report has none of the chosen heads.
    """
    info = report.record.model
    here = frozenset((at, head) for at, head, _ in report.record)
    layers = None if layer is None else str(layer)
    named = choose_heads(layers, [*map(spelled_head, heads)], info.layers, info.heads, 0)
    if named is None:
        return here
    chosen = here & {(at, head) for at, kept in named.items() for head in kept}
    if not chosen:
        names = ", ".join(report.name(*head) for head in sorted(here)[:_NAMED])
        more = ", …" if len(here) > _NAMED else ""
        raise UsageError(f"none of the chosen heads was kept: here are {names}{more}")
    return chosen


def one_head(report: HeadsRecord, head: HeadChoice) -> tuple[int, int]:
    """Return the (layer, head) of the one head that ``head`` names, such as ``L1H2``.

    Raises UsageError if it names none or several.
    """
    chosen = chosen_heads(report, (head,), None)
    if len(chosen) != 1:
        raise UsageError(
            f"{head!r} names {len(chosen)} heads: name one, such as "
            f"{report.name(*min(chosen))}, or take .heads({head!r})"
        )
    return next(iter(chosen))


def only(report: HeadsRecord, chosen: Iterable[tuple[int, int]]) -> HeadsRecord:
    """Return the report limited to some heads, as if only they had been requested.

    chosen: the (layer, head) of each.
    """
    kept, layers = frozenset(chosen), []
    for layer in report.record.layers:
        places = [at for at, head in enumerate(layer.heads) if (layer.layer, head) in kept]
        if places:
            heads = tuple(layer.heads[at] for at in places)
            layers.append(replace(layer, heads=heads, weights=layer.weights[places]))
    scores = tuple(entry for entry in report.heads if (entry.layer, entry.head) in kept)
    return replace(
        report,
        record=replace(report.record, layers=tuple(layers)),
        heads=scores,
        notable=tuple((entry.layer, entry.head) for entry in scores[: len(report.notable)]),
        selected=True,
    )
