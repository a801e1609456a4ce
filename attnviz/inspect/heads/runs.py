"""The runs of a model that ``heads`` shows; several are shown side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar, get_args

from attnviz.engine.capture import Choice
from attnviz.errors import UsageError
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.records import Kind, Score

RequestedRun = tuple[dict[str, Any], Choice]
"""One run: the changes to the library's own attention, and which attention is kept."""

_Name = TypeVar("_Name", bound=str)


def requested_runs(request: HeadsRequest) -> tuple[RequestedRun, ...]:
    """Return the requested runs: one for each kind and score, and for each mask if compared.

    A causal mask is for self-attention: cross attention next to it has none. The target is only
    for the kinds that have one.

    Raises UsageError if a name is unknown or given twice, or masks of cross attention are compared.
    """
    return tuple(_each_run(request))


def _each_run(request: HeadsRequest) -> Iterator[RequestedRun]:
    kinds: tuple[Kind, ...] = _chosen("--kind", request.kind, get_args(Kind))
    scores: tuple[Score, ...] = _chosen("--score", request.score, get_args(Score))
    if request.compare_mask and "cross" in kinds:
        raise UsageError(
            "--compare-mask hides the later words of one text, cross attention has two: leave "
            "out --kind cross"
        )
    choice = Choice(
        request.layer,
        request.head,
        request.index_base,
        target=request.target,
        truncate=request.truncate,
        no_known_labels=request.no_known_labels,
    )
    masks = (False, True) if request.compare_mask else (None,)
    for one, matched, causal in product(kinds or (None,), scores or (None,), masks):
        target = choice.target
        if len(kinds) > 1 and one == "cross":
            causal = False
        if len(kinds) > 1 and one not in ("decoder", "cross"):
            target = None
        changes = {"score": matched, "causal": causal}
        yield (
            {name: value for name, value in changes.items() if value is not None},
            replace(choice, kind=one, target=target),
        )


def _chosen(option: str, typed: str | None, known: tuple[_Name, ...]) -> tuple[_Name, ...]:
    """Return the names between the commas of an option's value.

    option: its name, for messages. typed: its value, None if not given. known: the valid names.
        Raises UsageError if a name is unknown or repeated.
    """
    names = [] if typed is None else [name.strip() for name in typed.split(",")]
    for place, name in enumerate(names):
        if name not in known:
            expected = ", ".join(map(repr, known))
            raise UsageError(f"{option}: {name!r} is not one of {expected}")
        if name in names[:place]:
            raise UsageError(f"{option} {name} is given twice: there is one run of each")
    return tuple(one for name in names for one in known if one == name)
