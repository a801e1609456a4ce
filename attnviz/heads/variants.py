"""The runs that ``attnviz heads`` sets side by side: by kind of attention, score and mask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar, get_args

from attnviz.engine.capture import Choice
from attnviz.errors import UsageError
from attnviz.models.resolve import LoadOptions
from attnviz.records import Kind, Score

__all__ = ["Variant", "make_variants"]

Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Variant:
    """One run: of which model, and of which of its attention."""

    options: LoadOptions
    choice: Choice


def make_variants(
    options: LoadOptions,
    choice: Choice,
    kind: str | None,
    score: str | None,
    masks: bool,
) -> tuple[Variant, ...]:
    """One run for each kind and score, and with ``masks`` for either mask; one in all by default.

    kind, score: as typed, several with commas between.

    A causal mask is for self-attention: beside it, cross attention goes without. The target is
    only for the kinds that have one.

    Raises UsageError where a name is unknown or given twice, or a mask is compared where none
    belongs.
    """
    kinds: tuple[Kind, ...] = _chosen("--kind", kind, get_args(Kind))
    scores: tuple[Score, ...] = _chosen("--score", score, get_args(Score))
    if masks and "cross" in kinds:
        raise UsageError(
            "--compare-mask hides the later words of one text, cross attention has two: leave out "
            "--kind cross"
        )
    runs = product(kinds or (None,), scores or (None,), (False, True) if masks else (None,))
    return tuple(_variant(options, choice, *run, alone=len(kinds) < 2) for run in runs)


def _chosen(option: str, typed: str | None, known: tuple[Name, ...]) -> tuple[Name, ...]:
    """The names between the commas."""
    names = [] if typed is None else [name.strip() for name in typed.split(",")]
    for place, name in enumerate(names):
        if name not in known:
            expected = ", ".join(map(repr, known))
            raise UsageError(f"{option}: {name!r} is not one of {expected}")
        if name in names[:place]:
            raise UsageError(f"{option} {name} is given twice: there is one run of each")
    return tuple(one for name in names for one in known if one == name)


def _variant(
    options: LoadOptions,
    choice: Choice,
    kind: Kind | None,
    score: Score | None,
    causal: bool | None,
    alone: bool,
) -> Variant:
    """alone: whether no other kind stands beside this one."""
    choice = replace(choice, kind=kind)
    if not alone and kind == "cross":
        causal = False
    if not alone and kind not in ("decoder", "cross"):
        choice = replace(choice, target=None)
    if score is not None:
        options = replace(options, score=score)
    if causal is not None:
        options = replace(options, causal=causal)
    return Variant(options, choice)
