"""The document of ``attnviz scaling``: each case's histograms and measures, and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, percent
from attnviz.draw.provenance import model_words
from attnviz.learn.scaling.records import (
    BIN_EDGES,
    LABELS,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
)
from attnviz.learn.scaling.words import (
    bars_legend,
    both_ways,
    explanation,
    finding,
    measured,
    seen,
    whole,
)

_LONGEST = 100
_MOST_IN_FULL = 4
_SIDE_BY_SIDE = doc.Beside(78, most=2)
_EXTREMES = "In full: where the scale gives back the most entropy, and where the least"
_OVERVIEW = "Without → with the scale; gain of normalised entropy"


def scaling_document(report: ScalingReport) -> doc.Document:
    """Return the document that shows each case without and with the scale 1/√d_k.

    If a model has many layers or heads, only the two with the largest and the smallest effect of
    the scale are shown in full; HTML pages show the others as well.
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
        explanation(report),
        doc.next_steps(_hints(report)),
        heading=_heading(report),
        quoted=report.text,
        finding=finding(report),
        first=partial(_first_groups, report),
    )


def _hints(report: ScalingReport) -> list[str]:
    hints = ["--explain: how to read this"]
    if report.model is None:
        return ["--from-model: a trained model's own", *hints]
    return hints if report.cases[0].head is not None else ["--head L0H0: one head", *hints]


def _in_full(report: ScalingReport) -> Sequence[ScalingCase]:
    """Return the cases shown in every output: all, or the two extremes if there are many."""
    cases = report.cases
    if report.model is None or len(cases) <= _MOST_IN_FULL:
        return cases
    ranked = sorted(cases, key=entropy_gain)
    return (ranked[-1], ranked[0])


def entropy_gain(case: ScalingCase) -> float:
    """Return the mean normalised entropy with the scale minus that without it; in [−1, 1]."""
    name = "normalised_entropy"
    return case.scaled.measures[name].value - case.plain.measures[name].value


def _heading(report: ScalingReport) -> doc.Words:
    """Return the heading in one line: the model, or the sizes of random queries and keys."""
    if report.model is None:
        sizes = ", ".join(str(case.d_k) for case in report.cases)
        words = [
            f"d_k {sizes}",
            f"{counted(report.samples, 'sample')} of {report.keys:,} × {report.keys:,}",
            f"seed {report.seed}",
        ]
        return [("random queries and keys", True), *((word, False) for word in words)]
    model = report.model
    shape = f"{counted(model.layers, 'layer')} × {counted(model.heads, 'head')}"
    return [(model.name, True), (shape, False), (f"{report.keys:,} tokens", False)]


def _provenance(report: ScalingReport) -> list[doc.Part]:
    """Return the facts that a reader needs to repeat the run."""
    if report.model is None:
        words = [*_heading(report), ("entries independent, N(0, 1)", False), ("float64", False)]
        return [doc.Facts(words)]
    seed = report.model.seed
    words = [
        *model_words(report.model),
        (f"{report.keys:,} tokens", False),
        *([] if seed is None else [(f"seed {seed}", False)]),
        ("scores and weights made in float64", False),
    ]
    source = [doc.Facts([(f"       {report.source}", False)])] if report.source else []
    return [doc.Facts(words), doc.Quote("text", report.text), *source]


# The first screen ------------------------------------------------------------------------------

_LEAST_BARS = 3
_COLUMNS_A_CASE, _LEAST_COLUMNS = 18, 26
_TALL = 50
"""The lines from which a first screen has every measure, and what they show in words."""
_TOLD = (
    "score_variance",
    "normalised_entropy",
    "jacobian_norm",
    "queries_above",
    "queries_vanished",
)


def _first_groups(report: ScalingReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: histograms without and with the scale, and a table.

    The table has one column per case. If a model has several layers or heads, the first screen is
    the overview and the case that the scale changes most.
    """
    if report.model is not None and len(report.cases) > 1:
        overview = _overview(report)._replace(least=3)
        case = max(report.cases, key=entropy_gain)
        rows = max(lines - len(overview.rows) - 7, _LEAST_BARS)
        pair = _histograms(report, case, rows, brief=True)
        return [doc.Group([overview]), doc.Group([pair], yields=1)]
    cases = _spread(report.cases, max((columns - _LEAST_COLUMNS) // _COLUMNS_A_CASE, 2))
    tall = lines >= _TALL
    table = _compared(report, cases, tuple(LABELS) if tall else _TOLD)
    if len(cases) == 1:
        return [doc.Group([_histograms(report, cases[0], lines - 12)]), doc.Group([table])]
    rows = max((lines - len(table.rows) - 8) // 2, _LEAST_BARS)
    top = max(map(_top, cases))
    plots = []
    for place, word in enumerate(("without", "with")):
        sides = [(case.plain, case.scaled)[place] for case in cases]
        drawn = [
            _histogram(report, side, f"{word}, {report.name(case)}", _TINTS[place], top, brief=True)
            for case, side in zip(cases, sides, strict=True)
        ]
        plots.append(doc.Group([doc.Plot((), histograms=drawn, rows=rows)]))
    words = [doc.Group([doc.Say(text, _LONGEST) for text in seen(report)])] if tall else []
    return [*plots, doc.Group([table]), *words]


def _spread(cases: Sequence[ScalingCase], most: int) -> Sequence[ScalingCase]:
    """Return at most ``most`` evenly spaced cases, the first and the last included."""
    last = len(cases) - 1
    places = {round(place * last / (most - 1)) for place in range(most)}
    return cases if len(cases) <= most else [cases[place] for place in sorted(places)]


def _compared(
    report: ScalingReport, cases: Sequence[ScalingCase], names: Sequence[str]
) -> doc.Table:
    """Return a table with a row per measure and a column per case: without → with the scale."""
    rows = [doc.Row([LABELS[name], *(both_ways(name, case) for case in cases)]) for name in names]
    columns = [doc.Column("without → with", right=False)]
    columns += [doc.Column(report.name(case)) for case in cases]
    return doc.Table(columns, rows)


def _overview(report: ScalingReport) -> doc.Table:
    """Return an overview of a model: a table with one row per layer or head."""
    measures = {
        "entropy": "normalised_entropy",
        "variance": "score_variance",
        "gradient": "jacobian_norm",
        "largest": "largest_weight",
        "vanishing": "queries_vanished",
    }
    rows = []
    for case in report.cases:
        cells = [report.name(case), *(both_ways(name, case) for name in measures.values())]
        rows.append(doc.Row(cells, (max(entropy_gain(case), 0.0), 1.0)))
    columns = [doc.Column("", right=False), *map(doc.Column, measures)]
    return doc.Table(columns, rows, [(_OVERVIEW, True)], ranked=True, bars="gain")


# One case ------------------------------------------------------------------------------------

_TITLES = ("without the scale", "with the scale")
_TINTS = (doc.Tint(216), doc.Tint(112))
_TICKS = {-8: "1e-8", -6: "1e-6", -4: "1e-4", -2: ".01", 0: "1"}
"""The powers of ten that are labelled on the axis."""

_LOWEST = min(_TICKS)
_BINS_A_DECADE = (len(BIN_EDGES) - 2) / -_LOWEST


def _case(report: ScalingReport, case: ScalingCase) -> doc.Group:
    """Return the group of one case: its measures, and histograms with and without the scale."""
    both = (case.plain, case.scaled)
    rows = [
        doc.Row((label, *(measured(name, side.measures[name]) for side in both)))
        for name, label in LABELS.items()
    ]
    expected = "theory: scale² · d_k" if report.model is None else "of random queries and keys"
    theory = (expected, *(whole(side.expected_variance) for side in both))
    rows.insert(1, doc.Row(theory, tone="faint", depth=1))
    columns = [doc.Column(title, right=False) for title in ("", *_TITLES)]
    return doc.Group([_histograms(report, case), doc.Table(columns, rows)], spaced=True)


def _top(case: ScalingCase) -> float:
    """Return the share of weights that has the full bar in a case's histograms.

    The first bin is left out: it has no lower end, and without the scale it would dwarf all others.
    """
    return max([*case.plain.shares()[1:], *case.scaled.shares()[1:]]) or 1.0


def _histograms(
    report: ScalingReport, case: ScalingCase, rows: int = 12, brief: bool = False
) -> doc.Plot:
    sides = zip((case.plain, case.scaled), _TITLES, _TINTS, strict=True)
    drawn = [_histogram(report, *side, _top(case), brief) for side in sides]
    return doc.Plot(_title(report, case), histograms=drawn, rows=rows)


def _histogram(
    report: ScalingReport,
    side: ScaledSoftmax,
    name: str,
    tint: doc.Tint,
    top: float,
    brief: bool = False,
) -> doc.Histogram:
    """Return the histogram of the weights of one case, with or without the scale.

    side: these weights. name: the title above it. tint: the colour of the bars. top: the share of a
        full bar. brief: True leaves out its remark and its mark.
    """
    even = (
        report.keys if report.model is None else None
    )  # in a model, queries see different numbers
    mark = None if even is None else (_bin(-math.log10(even)), f"uniform: 1/{even}")
    ticks = [(_bin(power), text) for power, text in _TICKS.items()]
    shares = side.shares()
    if brief:
        return doc.Histogram(name, shares, BIN_EDGES, top, tint, ticks)
    words = f"{percent(shares[0]) if shares[0] else 'none'} below {_TICKS[_LOWEST]}"
    return doc.Histogram(
        name=name,
        shares=shares,
        edges=BIN_EDGES,
        top=top,
        tint=tint,
        ticks=ticks,
        words=words,
        mark=mark,
    )


def _bin(power: float) -> float:
    """Return the position, on the axis of bins, of the weight 10 to the ``power``.

    The first bin has no lower end.
    """
    return 1 + _BINS_A_DECADE * (max(power, _LOWEST) - _LOWEST)


def _title(report: ScalingReport, case: ScalingCase) -> doc.Words:
    """Return the title of a case: its name and its scale."""
    words = [] if report.model is None else [f"d_k {case.d_k}"]
    scale = case.scaled.scale
    usual = math.isclose(scale, 1 / math.sqrt(case.d_k))
    made = f"1/√{case.d_k} = {scale:.4g}" if usual else f"{scale:.4g}, the model's own"
    words.append(f"scale {made}")
    if case.layer is not None and case.head is None:
        words.append(f"mean of {counted(case.heads, 'head')}")
    return [(report.name(case), True), *((word, False) for word in words)]
