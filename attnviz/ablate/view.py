"""What is to be shown of a report on removals, beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.records import HeadsReport

__all__ = ["AblationView"]


@dataclass(frozen=True)
class AblationView:
    """The wishes and the surroundings of one run.

    text: the first text, as it was given.
    source: where the texts come from, in words; empty where the person typed the text.
    texts_wanted: how many texts there were to scan; more than the report has where it was cut off.
    patterns: the attention of the ranked heads over the first text, for their traits and small
        maps; None where it was not observed.
    top: heads in the ranking.
    by_token: show where in the first text the removals hurt.
    index_base: 0, or 1 for names that start at one.
    target: what the decoder of an encoder–decoder read with the first text, safe or not.
    answer, foil: the tokens whose logits are compared, safe or not.
    explain: add a reading for newcomers.
    hints: sentences of advice below everything.
    """

    text: str
    source: str = ""
    texts_wanted: int = 1
    patterns: HeadsReport | None = None
    top: int = 8
    by_token: bool = False
    index_base: int = 0
    target: str | None = None
    answer: str | None = None
    foil: str | None = None
    explain: bool = False
    hints: Sequence[str] = ()
