"""What ``attnviz scaling`` has to say: each case's histograms and measures, what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment

from attnviz.draw import document as doc
from attnviz.draw.blocks import BOLD, Block, Line
from attnviz.draw.labels import at_blanks, width
from attnviz.draw.provenance import counted, model_words
from attnviz.draw.theme import Theme
from attnviz.draw.ticks import percent
from attnviz.scaling.records import (
    BIN_EDGES,
    MEASURES,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
)
from attnviz.scaling.words import LABELS, bars_legend, explanation, measured, plain, seen, whole

_LONGEST = 100
_MOST_IN_FULL = 4
_SIDE_BY_SIDE = doc.Beside(78, most=2)
_EXTREMES = "In full: where the scale gives back the most entropy, and where the least"
_OVERVIEW = "What the scale changes (without → with); the bar is the entropy that it gives back"


def scaling_document(
    report: ScalingReport, hints: Sequence[str] = (), explain: bool = False
) -> doc.Document:
    """Each case without and with the scale.

    Of a model with many layers or heads only the two between which the scale's effect is most
    different are there in full; pages have the others as well.
    """
    drawn = _in_full(report)
    groups = [doc.Group(_provenance(report)), doc.Group([doc.Note(note) for note in report.notes])]
    if report.model is not None and len(report.cases) > 1:
        groups.append(doc.Group([_overview(report)]))
    if len(drawn) < len(report.cases):
        groups.append(doc.Group([doc.Facts([(_EXTREMES, False)])]))
    groups.append(doc.Group([_case(report, case) for case in drawn], beside=_SIDE_BY_SIDE))
    others = [_case(report, case) for case in report.cases if case not in drawn]
    groups.append(doc.Group(others, beside=_SIDE_BY_SIDE, full=True))
    groups.append(doc.Group([doc.Note(bars_legend(report), _LONGEST)]))
    groups.append(doc.Group([doc.Say(text, _LONGEST) for text in seen(report)]))
    name = "random queries and keys" if report.model is None else report.model.name
    return doc.Document(
        f"scaling of {name}",
        f"What the scale 1/√d_k does to attention: {name}",
        groups,
        [doc.Say(text, _LONGEST) for text in explanation(report)] if explain else (),
        [doc.Facts([(hint, False) for hint in hints])] if hints else (),
    )


def _in_full(report: ScalingReport) -> Sequence[ScalingCase]:
    """The cases that every outlet has: all, or of many the two extremes."""
    cases = report.cases
    if report.model is None or len(cases) <= _MOST_IN_FULL:
        return cases
    ranked = sorted(cases, key=entropy_gain)
    return (ranked[-1], ranked[0])


def entropy_gain(case: ScalingCase) -> float:
    """The mean normalised entropy with the scale less that without it; in [−1, 1]."""
    name = "normalised_entropy"
    return case.scaled.measures[name].value - case.plain.measures[name].value


def _provenance(report: ScalingReport) -> list[doc.Part]:
    """Whose queries and keys: what a reader needs to repeat the run."""
    if report.model is None:
        samples = counted(report.samples, "sample")
        words = [
            "entries independent, mean 0, variance 1 (normal)",
            f"{samples} of {report.keys:,} queries and {report.keys:,} keys",
            "float64",
            f"seed {report.seed}",
        ]
        return [doc.Facts([("random queries and keys", True), *((word, False) for word in words)])]
    seed = report.model.seed
    words = [
        f"{report.keys:,} tokens",
        *([] if seed is None else [f"seed {seed}"]),
        "scores and weights made in float64",
    ]
    source = [doc.Facts([(f"       {report.source}", False)])] if report.source else []
    facts = doc.Facts([*model_words(report.model), *((word, False) for word in words)])
    return [facts, doc.Quote("text", report.text), *source]


def _overview(report: ScalingReport) -> doc.Table:
    """A row a case."""
    measures = {
        "entropy": "normalised_entropy",
        "variance": "score_variance",
        "Jacobian": "jacobian_norm",
        "largest": "largest_weight",
        "below 0.01": "queries_vanished",
    }
    rows = []
    for case in report.cases:
        cells = [report.name(case)]
        for name in measures.values():
            show = percent if name == "queries_vanished" else plain
            before, after = (show(side.measures[name].value) for side in (case.plain, case.scaled))
            cells.append(f"{before} → {after}")
        rows.append(doc.Row(cells, (max(entropy_gain(case), 0.0), 1.0)))
    columns = [doc.Column("", right=False), *map(doc.Column, measures)]
    return doc.Table(columns, rows, [(_OVERVIEW, True)], ranked=True)


# One case ------------------------------------------------------------------------------------

_TITLES = ("without the scale", "with the scale")
_TINTS = (doc.Tint(216), doc.Tint(112))
_TICKS = {-8: "1e-8", -6: "1e-6", -4: "1e-4", -2: ".01", 0: "1"}
"""The powers of ten that the axis names."""

_LOWEST = min(_TICKS)
_BINS_A_DECADE = (len(BIN_EDGES) - 2) / -_LOWEST


def _case(report: ScalingReport, case: ScalingCase) -> doc.Group:
    """Both histograms over one vertical scale, and the measures, theory beside measurement."""
    rows = []
    for name in MEASURES:
        texts = [measured(name, side.measures[name]) for side in (case.plain, case.scaled)]
        if name == "score_variance":
            expected = "theory" if report.model is None else "random"
            sides = zip(texts, (case.plain, case.scaled), strict=True)
            texts = [f"{text}, {expected} {whole(side.expected_variance)}" for text, side in sides]
        rows.append((LABELS[name], *texts))
    table = doc.Table(
        [doc.Column(title, right=False) for title in ("", *_TITLES)],
        [doc.Row(row) for row in rows],
        screen=lambda theme, room: _table_block(rows, theme, room),
    )
    return doc.Group([_histograms(report, case), table], spaced=True)


def _histograms(report: ScalingReport, case: ScalingCase) -> doc.Plot:
    # The first bin has no lower end: without the scale it would hide all others.
    top = max([*case.plain.shares()[1:], *case.scaled.shares()[1:]]) or 1.0
    even = report.keys if report.model is None else None  # else queries see different numbers
    mark = None if even is None else (_bin(-math.log10(even)), f"uniform: 1/{even}")
    ticks = [(_bin(power), name) for power, name in _TICKS.items()]

    def histogram(side: ScaledSoftmax, name: str, tint: doc.Tint) -> doc.Histogram:
        shares = side.shares()
        words = f"{percent(shares[0]) if shares[0] else 'none'} below {_TICKS[_LOWEST]}"
        return doc.Histogram(name, shares, BIN_EDGES, top, tint, ticks, words, mark)

    sides = zip((case.plain, case.scaled), _TITLES, _TINTS, strict=True)
    return doc.Plot(_title(report, case), histograms=[histogram(*side) for side in sides])


def _bin(power: float) -> float:
    """The place of a power of ten among the bins, of which the first has no lower end."""
    return 1 + _BINS_A_DECADE * (max(power, _LOWEST) - _LOWEST)


def _title(report: ScalingReport, case: ScalingCase) -> doc.Words:
    """Which case, and its scale."""
    words = [] if report.model is None else [f"d_k {case.d_k}"]
    scale = case.scaled.scale
    if math.isclose(scale, 1 / math.sqrt(case.d_k)):
        words.append(f"scale 1/√{case.d_k} = {scale:.4g}")
    else:
        words.append(f"scale {scale:.4g}, the model's own")
    if case.layer is not None and case.head is None:
        words.append(f"mean of {counted(case.heads, 'head')}")
    return [(report.name(case), True), *((word, False) for word in words)]


_GAP = 2
_COLUMN = 23


def _table_block(rows: Sequence[tuple[str, ...]], theme: Theme, room: int) -> Block:
    """Titles in the colours of their histograms; where columns have no room all below another."""
    cells = [tuple(map(theme.spell, row)) for row in rows]
    columns = [*zip(("", *_TITLES), *cells, strict=True)]
    widths = [max(map(width, column)) for column in columns]
    if widths[0] + 2 * (_COLUMN + _GAP) <= room:  # the tables of a run then stand in line
        widths[1:] = [max(wide, _COLUMN) for wide in widths[1:]]
    if sum(widths) + 2 * _GAP > room:
        return _stacked(cells, theme, room)
    styles = [None, *map(theme.ink, _TINTS)]
    lines: list[Line] = []
    for row in (("", *_TITLES), *cells):
        padded = [
            text + " " * (wide - width(text) + _GAP) for text, wide in zip(row, widths, strict=True)
        ]
        shades = [None] * 3 if lines else styles
        lines.append([Segment(*pair) for pair in zip(padded, shades, strict=True)])
    return Block(tuple(lines), room)


def _stacked(rows: Sequence[tuple[str, ...]], theme: Theme, room: int) -> Block:
    lines: list[Line] = []
    for name, *sides in rows:
        lines += [[Segment(piece, BOLD)] for piece in at_blanks(name, room, "  ", theme.ellipsis)]
        for word, text in zip(("without", "with"), sides, strict=True):
            pieces = at_blanks(f"{word}: {text}", max(room - 2, 1), "  ", theme.ellipsis)
            lines += [[Segment(f"  {piece}")] for piece in pieces]
    return Block(tuple(lines), room)
