"""Why a score has no number, in words: what is not measured is never shown as zero."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.measures.registry import MEASURES, NEEDS
from attnviz.measures.rows import Conditions
from attnviz.patterns.records import PatternScores
from attnviz.patterns.summary import ON_TEXT

__all__ = ["not_measured"]


def not_measured(
    attention: Conditions,
    heads: Sequence[PatternScores],
    *,
    own: bool,
    relations: Sequence[str],
) -> dict[str, str]:
    """The reason of each score that no head has.

    own: whether a person's own text was scored.
    relations: annotated ones of which no pair could be looked at.
    """
    names = dict.fromkeys(name for head in heads for name in head.scores)
    missing = [name for name in names if all(head.scores.get(name) is None for head in heads)]
    reasons = {name: _reason(name, attention, own) for name in missing}
    found = {name: reason for name, reason in reasons.items() if reason != NEEDS["two texts"]}
    crosses = attention.kind == "cross"
    if not own and not crosses and "induction" not in names:
        for name in ("duplicate", "induction", "prefix_matching"):
            found[name] = "the model has no room or too few tokens for random repeated ones"
    for relation in relations:
        found[relation] = (
            "words that belong together stand in one text, cross attention joins two"
            if crosses
            else "the annotated words are not whole tokens of the model"
        )
    return found


def _reason(name: str, attention: Conditions, own: bool) -> str:
    measure = MEASURES.get(name.removeprefix(ON_TEXT))
    need = None if measure is None else attention.lacks(measure)
    if need is not None:
        return NEEDS[need]
    text = "the text" if own else "the natural text"
    absent = "" if measure is None else measure.absent.format(text=text)
    return absent or "the weights are not numbers"
