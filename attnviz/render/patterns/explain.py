"""A reading of the labels in plain words, for someone new to attention heads."""

from __future__ import annotations

from attnviz.patterns import PatternReport, label_named
from attnviz.render.blocks import Block, stack
from attnviz.render.labels import visible
from attnviz.render.meanings import meaning
from attnviz.render.patterns.numbers import score
from attnviz.render.prose import paragraph
from attnviz.render.theme import Theme

__all__ = ["explain_patterns"]

_LONGEST = 100
_BASES = {
    "position": "what attention spread evenly over all that a token sees would give",
    "content": "what attention spread evenly over all that a token sees would give",
    "identity": "what the same head gives where the tokens are shuffled, so that copies stand "
    "where they mean nothing",
    "relation": "what looking always the same number of words back or ahead would find, at the "
    "best such number",
    "alignment": "what attention spread evenly over the other text would give",
}

_DIRECTIONS = {
    True: "the later word is asked where it looks, because no token sees the future",
    False: "the dependent (a subject, a pronoun and so on) is asked whether it looks at its head",
}
"""How annotated pairs are read, by whether attention is causal."""

_FURTHER = {
    "induction": "prefix: the same over random tokens that come several times, all copies counted "
    "(prefix matching, Olsson et al. 2022).",
    "alignment": "monotone: how steadily the place looked at moves on as the output is written, "
    "from -1 (backwards) to 1.",
}
"""Scores that stand beside a label's own."""


def explain_patterns(report: PatternReport, watch: str | None, theme: Theme, room: int) -> Block:
    """How to read the grid and its numbers, then what each label means and who has it."""
    mark = "brightness" if theme.colour else "the digit" if theme.ascii else "the glyph"
    paragraphs = [
        "How to read this: each cell of the grid is one attention head, rows are layers. Its "
        f"letter is its label: what the head does most clearly; {mark} says how strongly. The "
        "numbers go from 0 (never) to 1 (always).",
        "base: a label means something only against a base rate: what the score would be without "
        "the pattern. margin is the score minus its base rate, strength the share of what could "
        "be gained over it; a head whose best strength stays below the threshold gets no label.",
        "agree: the share of the texts (of random ones of the seeds, of annotated ones of ten "
        "equal parts) that show this label on their own.",
    ]
    if report.control is not None:
        paragraphs.append(
            "random: the score of the same place in a model of this shape with random weights; "
            "what it does as well no training explains, so strength is counted from the highest "
            "such score of the layer."
        )
    names = report.labels if watch is None else (watch,)
    families = dict.fromkeys(label_named(name).family for name in names)
    for words in dict.fromkeys(_BASES[family] for family in families):
        named = [name for name in names if _BASES[label_named(name).family] == words]
        paragraphs.append(f"base of {', '.join(named)}: {words}.")
    if any(label_named(name).family == "relation" for name in names):
        paragraphs.append(f"pairs of words: {_DIRECTIONS[report.causal]}.")
    paragraphs += [_about(report, name) for name in names]
    paragraphs += [_FURTHER[name] for name in names if name in _FURTHER]
    if {"first", "induction"} <= set(names):
        paragraphs.append(
            "first or induction: a head that reaches both thresholds is called induction. It rests "
            "on the first token where nothing comes again, which is nearly everywhere."
        )
    paragraphs.append(
        "A label says where a head looks, not that it matters: attnviz ablate measures that."
    )
    safe = [visible(text, theme.encoding) for text in paragraphs]
    return stack([paragraph(text, min(room, _LONGEST), theme) for text in safe], gap=0)


def _about(report: PatternReport, name: str) -> str:
    """What a label means, from which strength it is given, and which head has it most."""
    threshold = report.thresholds.get(name)
    given = "" if threshold is None else f"; given from strength {threshold:.2f}"
    heads = report.labelled(name)
    where = "no head here"
    if heads:
        best = heads[0]
        where = f"here most of all {report.name(best.layer, best.head)}, {score(best.score)}"
    return f"{name} ({label_named(name).letter}): {meaning(name)}{given}; {where}."
