"""Why a score has no number, in words: what is not measured is never shown as zero."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.engine.probing import Probing
from attnviz.measures.records import PatternScores, View

__all__ = ["not_measured"]


def not_measured(
    probing: Probing,
    view: View,
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
    crosses = probing.kind == "cross"
    known = set() if crosses else {"alignment", "monotone"}  # of two texts alone
    found = {name: _reason(name, probing, view, own) for name in missing if name not in known}
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


def _reason(name: str, probing: Probing, view: View, own: bool) -> str:
    text = "the text" if own else "the natural text"
    if probing.kind == "cross" and name in _OF_ONE_TEXT:
        return "queries and keys of cross attention are different texts"
    if name == "next" and probing.causal:
        return "attention is causal: no query sees the next token"
    if name == "first" and view == "without-first":
        return "the first token is taken out in this view"
    if name in ("duplicate", "induction", "text_duplicate", "text_induction"):
        return f"no token of {text} repeats" + (" far enough" if "induction" in name else "")
    if name == "rare" and not probing.ranked:
        return "the order of the vocabulary does not tell how rare a token is"
    if name == "rare":
        return f"{text} has too few different tokens to call some rare"
    if name == "separator":
        return "no special token stands in the text but its first one"
    if name == "delimiter":
        return f"{text} has no punctuation and no special token"
    if name == "monotone":
        return "every head looks at one place, whatever the query"
    return "the weights are not numbers"


_OF_ONE_TEXT = (
    "previous", "self", "next", "duplicate", "induction", "rare", "text_duplicate",
    "text_induction",
)  # fmt: skip
