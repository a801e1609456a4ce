"""What is to be shown of a report on patterns, beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PatternView"]


@dataclass(frozen=True)
class PatternView:
    """The wishes and the surroundings of one run.

    text: a person's own text as given; None where the probes were scored.
    target: what a decoder read beside it; None where there is none.
    source: where texts or probes come from, in words; empty for what was typed or is built in.
    watch: the one label that is ranked, or None.
    stats: tell the statistics of every head.
    top: heads listed for a label; None for as many as read well.
    explain: add a reading for newcomers.
    hints: sentences of advice below everything.
    """

    text: str | None = None
    target: str | None = None
    source: str = ""
    watch: str | None = None
    stats: bool = False
    top: int | None = None
    explain: bool = False
    hints: Sequence[str] = ()
