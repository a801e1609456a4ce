"""Which heads of a report Python code means, and errors in the words of Python.

The layers below name an option as the command line does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from attnviz.engine.selection import choose_heads
from attnviz.errors import AttnvizError, UsageError
from attnviz.records import HeadsReport, LayerWeights

HeadChoice: TypeAlias = str | int | tuple[int, int]
"""A head as the command line writes it (``L2H5``, ``2.*``, ``0-3.1,4``), the number of a head of
every layer, or (layer, head)."""

_NAMED = 4
_BARE = re.compile(r"(^|[\s,])[Hh](?=[\d*-])")


def spelled(choice: Any) -> str:
    """A choice as the command line writes it; ``H3``, an array's head, is a bare 3 there."""
    if isinstance(choice, tuple) and len(choice) == 2:
        return f"L{choice[0]}H{choice[1]}"
    return _BARE.sub(r"\1", str(choice))


def chosen_heads(
    report: HeadsReport, heads: Sequence[HeadChoice], layer: str | int | None
) -> frozenset[tuple[int, int]]:
    """The chosen (layer, head) that the report has; all of them where nothing is chosen.

    Raises UsageError for what is no choice, and where the report has none of these heads.
    """
    info = report.record.model
    here = frozenset((at, head) for at, head, _ in report.record)
    layers = None if layer is None else str(layer)
    with in_python_words():
        named = choose_heads(layers, [*map(spelled, heads)], info.layers, info.heads, 0)
    if named is None:
        return here
    chosen = here & {(at, head) for at, kept in named.items() for head in kept}
    if not chosen:
        names = ", ".join(report.name(*head) for head in sorted(here)[:_NAMED])
        more = ", …" if len(here) > _NAMED else ""
        raise UsageError(f"none of the chosen heads was kept: here are {names}{more}")
    return chosen


def one_head(report: HeadsReport, head: HeadChoice) -> tuple[int, int]:
    """The one (layer, head) that is meant; UsageError where it is none or several."""
    chosen = chosen_heads(report, (head,), None)
    if len(chosen) != 1:
        raise UsageError(
            f"{head!r} names {len(chosen)} heads: name one, such as "
            f"{report.name(*min(chosen))}, or take .heads({head!r})"
        )
    return next(iter(chosen))


def only(report: HeadsReport, chosen: Iterable[tuple[int, int]]) -> HeadsReport:
    """The report of these of its heads, as if they had been chosen from the start."""
    kept, layers = frozenset(chosen), []
    for layer in report.record.layers:
        places = [at for at, head in enumerate(layer.heads) if (layer.layer, head) in kept]
        if places:
            heads = tuple(layer.heads[at] for at in places)
            layers.append(LayerWeights(layer.layer, heads, layer.weights[places]))
    scores = tuple(entry for entry in report.heads if (entry.layer, entry.head) in kept)
    return replace(
        report,
        record=replace(report.record, layers=tuple(layers)),
        heads=scores,
        notable=tuple((entry.layer, entry.head) for entry in scores[: len(report.notable)]),
        selected=True,
    )


# Words ---------------------------------------------------------------------------------------

_FLAGS = {"truncate", "causal", "offline", "trust_remote_code", "allow_pickle"}
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@contextmanager
def in_python_words() -> Iterator[None]:
    """Let the same error pass: ``head=`` for ``--head``, ``truncate=True`` for ``--truncate``."""
    try:
        yield
    except AttnvizError as error:
        error.args = (_OPTION.sub(_keyword, str(error)), *error.args[1:])
        raise


def _keyword(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return f"{name}=True" if name in _FLAGS else f"{name}="
