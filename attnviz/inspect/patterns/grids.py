"""The grid of all heads: the label of each head, or its score for one label.

A label has its own colour and short form; the stronger the label, the brighter the colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw.document import Cell, HeadGrid, Key, Scale, Tint, Words
from attnviz.draw.numbers import counted
from attnviz.draw.palette import STEPS, shades
from attnviz.inspect.patterns.records import PatternReport, PatternScores
from attnviz.inspect.patterns.summary import ON_TEXT
from attnviz.inspect.patterns.words import score, short
from attnviz.measures.registry import label_named, said_name
from attnviz.records import SINKS

_NONE = "·"
_TICKS = [(0.0, "0"), (0.25, ".25"), (0.5, ".50"), (0.75, ".75"), (1.0, "1")]


def label_tint(name: str, strength: float) -> Tint:
    """Return a label's colour, from dark but visible at strength 0 to full at 1.

    name: of the label.
    """
    return Tint(round(min(max(strength, 0.0), 1.0) * (STEPS - 1)), shades(label_named(name).colour))


def _scale(name: str) -> Scale:
    return Scale(_TICKS, "strength", palette=shades(label_named(name).colour))


def _grid(
    report: PatternReport,
    cells: Sequence[Cell],
    title: Words,
    key: Sequence[Key],
    scale: Scale | None,
) -> HeadGrid:
    """Return the grid with a cell for each of the report's heads.

    cells: in the order of the heads. title, key, scale: the title and the legends of the grid.
    """
    base = report.index_base
    layers = sorted({entry.layer for entry in report.heads})
    heads = sorted({entry.head for entry in report.heads})
    places = ((layers.index(entry.layer), heads.index(entry.head)) for entry in report.heads)
    return HeadGrid(
        [f"L{layer + base}" for layer in layers],
        [f"H{head + base}" for head in heads],
        dict(zip(places, cells, strict=True)),
        title,
        key,
        scale,
    )


def label_grid(report: PatternReport) -> HeadGrid:
    """Return the grid of heads with their labels, and the number of heads for each label."""
    counts = {name: len(report.labelled(name)) for name in report.labels}
    total, resting = len(report.heads), sum(counts.get(name, 0) for name in SINKS)
    unlabelled = total - sum(counts.values())
    title = (
        f"What each head does: {total - unlabelled - resting} of {counted(total, 'head')} labelled"
    )
    title += f", {counted(resting, 'more sink')}" if resting else ""
    key = [
        Key(label_tint(name, 1.0), f"{label_named(name).said} in {count}", label_named(name).short)
        for name, count in counts.items()
        if count
    ]
    key.append(Key(None, f"no label{', no sink' * bool(resting)} in {unlabelled}", _NONE))
    absent = ", ".join(label_named(name).said for name, count in counts.items() if not count)
    key += [Key(None, f"in none: {absent}")] if absent else []
    cells = [_cell(report, entry) for entry in report.heads]
    return _grid(report, cells, [(title, True)], key, _scale("previous"))


def _cell(report: PatternReport, entry: PatternScores) -> Cell:
    tip = _tip(report, entry)
    if entry.label is None:
        return Cell(0.0, None, "", _NONE, tip, _values(entry))
    strength = max(entry.strength.get(entry.label, 0.0), 0.0)  # None if the text cannot show it
    tint = label_tint(entry.label, strength)
    label = label_named(entry.label)
    values, score = _values(entry), short(entry.score)
    return Cell(strength, tint, score, label.short, tip, values, label=label.said, hue=label.colour)


def _values(entry: PatternScores) -> dict[str, float]:
    """Return the score of a head's label, and all its scores."""
    found = {"score": entry.score} | {_spoken(name): each for name, each in entry.scores.items()}
    return {name: each for name, each in found.items() if each is not None}


def _spoken(score_name: str) -> str:
    """Return the name of a score in words; of one on natural text ``induction, on text``."""
    own = score_name.removeprefix(ON_TEXT)
    return said_name(own).replace("_", " ") + ", on text" * (own != score_name)


def score_grid(report: PatternReport, name: str) -> HeadGrid:
    """Return the grid of heads with their score for the label ``name``, coloured by strength."""
    cells = []
    for entry in report.heads:
        value, strength = entry.scores.get(name), max(entry.strength.get(name, 0.0), 0.0)
        tint = None if value is None else label_tint(name, strength)
        said = "" if entry.label is None else label_named(entry.label).said
        tip, values = _tip(report, entry), _values(entry)
        cells.append(Cell(strength, tint, short(value), "", tip, values, label=said))
    label = label_named(name)
    title: Words = [(f"{label.said}: score of every head", True), (label.meaning, False)]
    return _grid(report, cells, title, (), _scale(name))


def _tip(report: PatternReport, entry: PatternScores) -> str:
    """Return a remark with every pattern score of a head and its base rate, shown on pointing."""
    said = "no label" if entry.label is None else label_named(entry.label).said
    lines = [f"{report.head_name((entry.layer, entry.head))}: {said}"]
    lines += [
        f"{name} {score(value)}, chance {score(entry.base_rate.get(name))}"
        for name, value in entry.scores.items()
        if value is not None
    ]
    return "\n".join(lines)
