"""Scored heads in short numbers, in grids and in tables.

A number that was not measured is shown as such, never as 0. A label has its own colour and short
form; the stronger the label, the brighter the colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, whole_percent
from attnviz.draw.palette import STEPS, shades
from attnviz.inspect.patterns.probes import ON_TEXT
from attnviz.inspect.patterns.report import PatternReport, PatternScores
from attnviz.measures.registry import MEASURES, STATISTICS, label_named, said_name
from attnviz.records import SINKS

NOT_MEASURED = "n/m"
"""Shown in place of a missing number."""

LEAST_ROWS = 4


def name_of(report: PatternReport, entry: PatternScores) -> str:
    return report.head_name(entry.place)


def said_label(entry: PatternScores, absent: str = "–") -> str:
    """Return the head's label in words. absent: the text for a head without a label."""
    return absent if entry.label is None else label_named(entry.label).said


# Numbers -------------------------------------------------------------------------------------


def score(value: float | None, form: str = ".3f") -> str:
    """Return a score as a string without the zero before its point, such as ``.982``.

    A zero has no sign: ``-0.000`` is ``.000``. form: ``+.3f`` for a difference, such as ``+.862``.
    """
    if value is None:
        return NOT_MEASURED
    text = f"{value:{form}}"
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def short(value: float | None) -> str:
    """Return a score in three characters, four if negative: ``.98``, ``1.0``, ``-.12``."""
    return "1.0" if value is not None and value >= 0.995 else score(value, ".2f")


def interval(entry: PatternScores, name: str) -> str:
    """Return the 95% confidence interval of a head's score as a string, such as ``.79–.90``.

    name: of the score. Empty if it has none.
    """
    return "–".join(map(short, entry.intervals.get(name, ())))


def behind(entry: PatternScores, name: str) -> str:
    """Return the sample size of a head's score ``name`` as a string, such as ``81 pairs``."""
    if entry.events is not None and name == entry.label:
        return counted(entry.events, "place")
    relation = label_named(name).family == "relation"
    return counted(entry.measured.get(name, 0), "pair" if relation else "text")


# Grids and maps ------------------------------------------------------------------------------

_NONE = "·"
_TICKS = [(0.0, "0"), (0.25, ".25"), (0.5, ".50"), (0.75, ".75"), (1.0, "1")]


def label_tint(name: str, strength: float) -> doc.Tint:
    """Return a label's colour, from dark but visible at strength 0 to full at 1.

    name: of the label.
    """
    step = round(min(max(strength, 0.0), 1.0) * (STEPS - 1))
    return doc.Tint(step, shades(label_named(name).colour))


def label_grid(report: PatternReport) -> doc.HeadGrid:
    """Return the grid of heads with their labels, and the number of heads for each label."""
    counts = {name: len(report.labelled(name)) for name in report.labels}
    total, resting = len(report.heads), sum(counts.get(name, 0) for name in SINKS)
    labelled = sum(counts.values())
    title = f"What each head does: {labelled - resting} of {counted(total, 'head')} labelled"
    title += f", {counted(resting, 'more sink')}" if resting else ""
    key = [
        doc.Key(label_tint(name, 1.0), f"{label.said} in {counts[name]}", label.short)
        for name, label in zip(counts, map(label_named, counts), strict=True)
        if counts[name]
    ]
    without = f"no label{', no sink' * bool(resting)} in {total - labelled}"
    key.append(doc.Key(None, without, _NONE))
    absent = ", ".join(label_named(name).said for name in counts if not counts[name])
    key += [doc.Key(None, f"in none: {absent}")] if absent else []

    def cell(entry: PatternScores) -> doc.Cell:
        if entry.label is None:
            return doc.Cell(0.0, letter=_NONE)
        strength = max(entry.strength.get(entry.label, 0.0), 0.0)  # None if the text cannot show it
        label, tint = label_named(entry.label), label_tint(entry.label, strength)
        return doc.Cell(strength, tint, short(entry.score), label.short, hue=label.colour)

    return _grid(report, cell, "previous", title=[(title, True)], key=key)


def score_grid(report: PatternReport, name: str) -> doc.HeadGrid:
    """Return the grid of heads with their score for the label ``name``, coloured by strength."""

    def cell(entry: PatternScores) -> doc.Cell:
        value, strength = entry.scores.get(name), max(entry.strength.get(name, 0.0), 0.0)
        tint = None if value is None else label_tint(name, strength)
        return doc.Cell(strength, tint, short(value))

    label = label_named(name)
    title: doc.Words = [(f"{label.said}: score of every head", True), (label.meaning, False)]
    return _grid(report, cell, name, title=title)


def _grid(
    report: PatternReport, cell: Callable[[PatternScores], doc.Cell], name: str, **fields: Any
) -> doc.HeadGrid:
    """Return a grid of the heads; their cells also get what is known of them.

    name: of the label whose colours the scale has. fields: those of the grid.
    """
    scale = doc.Scale(_TICKS, "strength", palette=shades(label_named(name).colour))
    cells = {
        entry.place: cell(entry)._replace(
            tip=_tip(report, entry), values=_values(entry), label=said_label(entry, "")
        )
        for entry in report.heads
    }
    return doc.head_grid(cells, report.index_base, scale=scale, **fields)


def _values(entry: PatternScores) -> dict[str, float]:
    """Return the score of a head's label, and all its scores, by their names in words.

    That of induction on natural text is ``induction, on text``.
    """
    values = {"score": entry.score}
    for name, value in entry.scores.items():
        own = name.removeprefix(ON_TEXT)
        values[said_name(own).replace("_", " ") + ", on text" * (own != name)] = value
    return {name: value for name, value in values.items() if value is not None}


def _tip(report: PatternReport, entry: PatternScores) -> str:
    """Return a remark with every pattern score of a head and its base rate, shown on pointing."""
    scores = (
        f"\n{name} {score(value)}, chance {score(entry.base_rate.get(name))}"
        for name, value in entry.scores.items()
        if value is not None
    )
    return f"{name_of(report, entry)}: {said_label(entry, 'no label')}{''.join(scores)}"


# Tables --------------------------------------------------------------------------------------


def found_labels(report: PatternReport) -> list[str]:
    """Return the labels that heads have, those of most heads first, attention sinks last."""
    labels = [name for name in report.labels if report.labelled(name)]
    return sorted(labels, key=lambda name: (name in SINKS, -len(report.labelled(name))))


HeadColumn: TypeAlias = doc.ColumnOf[PatternScores]
Leaders: TypeAlias = doc.ColumnOf[tuple[PatternScores, ...]]
_BESIDE = {"alignment": {"monotone": "monotone"}, "induction": {"prefix_matching": "prefix match"}}
"""For a label, related scores and the titles of their columns."""

_STATISTICS = {name: said_name(name) for name in STATISTICS if name != "normalised_entropy"}


def leaders_table(report: PatternReport) -> doc.Table:
    """Return a table with a row for each label: its best head, score, chance and sample size."""
    heads = [report.labelled(name) for name in found_labels(report)]
    columns: list[Leaders] = [
        Leaders("", lambda labelled: said_label(labelled[0]), right=False),
        Leaders("best", lambda labelled: name_of(report, labelled[0]), right=False),
        Leaders("score", lambda labelled: short(labelled[0].score)),
        Leaders("chance", lambda labelled: short(labelled[0].chance)),
        Leaders("95%", lambda labelled: interval(labelled[0], labelled[0].label or "")),
        Leaders("n", lambda labelled: behind(labelled[0], labelled[0].label or "")),
        Leaders("heads", lambda labelled: str(len(labelled))),
    ]
    if not any(entry.intervals for entry in report.heads):
        del columns[4]
    return doc.table(
        heads,
        *columns,
        row=lambda labelled: {
            "bar": (max(labelled[0].score or 0.0, 0.0), 1.0),
            "tint": label_tint(labelled[0].label or "", 1.0),
        },
        ranked=True,
        least=LEAST_ROWS,
    )


def score_table(
    report: PatternReport, name: str, heads: Sequence[PatternScores], everyone: bool
) -> doc.Table:
    """Return a table of one pattern score: a row for each head, with bar, base rate, statistics.

    name: of the score. heads: the rows.
    everyone: whether heads without the label are listed too; then each one's label is shown.
    """

    def margin(entry: PatternScores) -> str:
        value, base = entry.scores.get(name), entry.base_rate.get(name)
        return score(None if value is None or base is None else value - base, "+.3f")

    def agreement(entry: PatternScores) -> str:
        return NOT_MEASURED if entry.agreement is None else whole_percent(entry.agreement)

    def beside(other: str, entry: PatternScores) -> str:
        value = {**entry.scores, **entry.statistics}.get(other)
        if value is None or other not in STATISTICS or MEASURES[other].unit == "share":
            return score(value)
        return f"{value:.2f}" if abs(value) < 99.995 else f"{value:.1f}"  # nats or tokens

    known = [{**entry.scores, **entry.statistics} for entry in heads]
    columns: list[HeadColumn] = [
        HeadColumn("", partial(name_of, report), right=False),
        HeadColumn("score", lambda entry: score(entry.scores.get(name))),
        HeadColumn("chance", lambda entry: score(entry.base_rate.get(name))),
    ]
    if any(name in entry.intervals for entry in heads):
        columns.append(HeadColumn("95%", lambda entry: interval(entry, name)))
    columns.append(HeadColumn("n", lambda entry: behind(entry, name)))
    if report.control is not None:
        columns.append(HeadColumn("random", lambda entry: score(entry.control.get(name))))
    if everyone:
        columns.append(HeadColumn("label", said_label, right=False))
    elif any(entry.agreement is not None for entry in heads):  # a single text gives none
        columns.append(HeadColumn("in agreement", agreement))
    columns.append(HeadColumn("above chance", margin))
    columns += [
        HeadColumn(title, partial(beside, other))
        for other, title in (_BESIDE.get(name, {}) | _STATISTICS).items()
        if any(numbers.get(other) is not None for numbers in known)
    ]
    return doc.table(
        heads,
        *columns,
        row=lambda entry: {
            "bar": (max(entry.scores.get(name) or 0.0, 0.0), 1.0),
            "tint": label_tint(name, 1.0),
        },
        ranked=True,
    )
