"""A reading of the screen in plain words, for someone new to attention."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw.blocks import Block, stack
from attnviz.draw.kind_words import kind_reading
from attnviz.draw.prose import paragraph
from attnviz.draw.provenance import rests, share
from attnviz.draw.theme import Theme
from attnviz.measures.registry import label_named
from attnviz.records import NO_TRAIT, HeadsReport, Trait

__all__ = ["explain"]


def explain(
    report: HeadsReport, theme: Theme, room: int, beside: Sequence[HeadsReport] = ()
) -> Block:
    """How to read the maps, and what the traits on this screen mean.

    beside: the reports that stand beside this one, where several are compared.
    """
    reports = [report, *beside]
    causal = [each.record.causal for each in reports]
    hidden = "a token sees no later token, so that half is blank"
    mark = "colour" if theme.colour else "glyph"
    paragraphs = [
        "How to read this: each map is one attention head. A row is a token as it reads (the "
        "query), a column is a token it may look at (a key), and the cell is the share of its "
        "attention that goes there. A row sums to one"
        + (f"; {hidden}" if all(causal) else f"; under a mask {hidden}" if any(causal) else "")
        + ".",
        f"The {mark} grows with the square root of the weight, so that small weights can be seen.",
        "The word or letter beside a map is its trait: the pattern that stands out most against "
        "attention spread evenly, with its score from 0 to 1. One sentence is a hint, not a proof.",
    ]
    paragraphs[1:1] = kind_reading([each.record for each in reports], theme.ascii)
    traits: dict[str, tuple[Trait, str]] = {}
    for entry in (entry for each in reports for entry in each.heads if entry.trait is not NO_TRAIT):
        known = traits.get(entry.trait.name)
        if known is None or entry.trait.score > known[0].score:
            traits[entry.trait.name] = entry.trait, report.name(entry.layer, entry.head)
    paragraphs += [
        f"{trait.name} ({trait.letter}): {label_named(name).meaning}; clearest of those named so: "
        f"{where}, {share(trait.score)}."
        for name, (trait, where) in traits.items()
    ]
    if any(rests(entry) for each in reports for entry in each.heads):
        paragraphs.append(
            "An induction head may look at the first token more than at anything else: there it "
            "rests where nothing comes again. It has its name from what it does where something "
            "does."
        )
    return stack([paragraph(text, min(room, 100), theme) for text in paragraphs], gap=0)
