"""The options of ``head``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.options import IndexBase, Kind, Known, Options, Seed, Truncation, argument, option


@dataclass(frozen=True)
class _Shown(Options, panel="View"):
    top: int = option("N", "Number of rows in each table.", 5, min=1)


@dataclass(frozen=True)
class CardRequest(Truncation, Kind, _Shown, Known, IndexBase, Seed):
    """The options of a head's card, except the choice of the head."""


@dataclass(frozen=True)
class _Which(Options):
    head: str = argument("HEAD", "The head, such as L1H2, or a label: induction.", ...)


@dataclass(frozen=True)
class HeadRequest(_Which, CardRequest):
    """All options of ``head``."""
