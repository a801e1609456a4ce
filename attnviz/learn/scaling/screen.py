"""The screen of ``attnviz scaling``: histograms of the weights, and a table of all cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from attnviz.attention.functional import NEARLY_ZERO
from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, listed, percent
from attnviz.draw.palette import series_tint
from attnviz.draw.provenance import model_words
from attnviz.learn.scaling.report import BIN_EDGES, ActivationCurve, ScalingCase, ScalingReport

_LONGEST = 100
_MOST_DRAWN = 4

_TINTS = {"without": series_tint(1), "with": series_tint(0)}
_TICKS = {-8: "1e-8", -6: "1e-6", -4: "1e-4", -2: ".01", 0: "1"}  # powers of ten on the axis
_LOWEST = min(_TICKS)
_BINS_A_DECADE = (len(BIN_EDGES) - 2) / -_LOWEST

_LEAST_BARS = 3
_COLUMNS_A_CASE = 22

_TITLES = {
    "normalised_entropy": "entropy",
    "score_variance": "variance",
    "jacobian_norm": "gradient",
    "queries_vanished": "vanishing",
    "largest_weight": "largest",
    "queries_above": "queries > .9",
    "weights_above": "weights > .9",
}
_PERCENTS = ("queries_vanished", "queries_above", "weights_above")


def document(report: ScalingReport) -> doc.Document:
    """Return the document; of many cases, histograms of the largest and the least effect."""
    if report.activations:
        return _activations(report)
    cases, model = report.cases, report.model
    measured = (
        f"measured on random queries and keys, {counted(report.samples, 'sample')} of "
        f"{report.keys:,} keys, seed {report.seed}; entries are from N(0, 1)."
    )
    hints, name, drawn = ["--from-model: a trained model's own"], "random queries and keys", cases
    facts = [*_heading(report), ("entries independent, N(0, 1)", False), ("float64", False)]
    about: list[doc.Part] = []
    if model is not None:
        name, hints = model.name, [] if cases[0].head is not None else ["--head L0H0: one head"]
        measured = (
            "measured on a model's queries and keys over one text. They were made with the scale "
            "in place: without it training would have ended elsewhere."
        )
        facts = [*model_words(model), *_heading(report)[2:]]
        facts += [] if model.seed is None else [(f"seed {model.seed}", False)]
        facts.append(("scores and weights made in float64", False))
        about = [doc.Quote("text", report.text)]
        if report.source:
            about.append(doc.Facts([(f"       {report.source}", False)]))
        about.append(doc.Note("queries that see a single key are left out"))
        if len(cases) > _MOST_DRAWN:
            ranked = sorted(cases, key=lambda case: case.gain)
            drawn = (ranked[-1], ranked[0])
    plots = [_histograms(report, case, 12) for case in drawn]
    groups = [
        doc.Group([doc.Facts(facts), *about]),
        doc.Group([doc.Note(note) for note in report.notes]),
        doc.Group([_table(report)]),
        doc.Group(plots, beside=doc.Beside(78, most=2)),
        doc.Group([doc.Say(text, _LONGEST) for text in report.seen]),
    ]
    return doc.Document(
        f"scaling of {name}",
        f"What the scale 1/√d_k does to attention: {name}",
        groups,
        doc.Explanation("scaling", measured),
        doc.next_steps([*hints, "--explain: how to read this"]),
        heading=_heading(report),
        quoted=report.text,
        finding=_finding(report),
        first=partial(_first, report),
    )


def _activations(report: ScalingReport) -> doc.Document:
    """Return the document of activation functions: their curves, a gate's, and a table."""
    alone = [curve for curve in report.activations if curve.up is None]
    gates = [curve for curve in report.activations if curve.up is not None]
    heading: doc.Words = [("activation functions", True), ("feed-forward blocks", False)]
    drawn: list[tuple[doc.Words, Sequence[ActivationCurve]]] = [
        ([("Activation functions", True)], alone),
        ([(f"A gate: {gates[0].formula}", True), ("x is the gate's input", False)], gates),
    ]

    def plots(rows: int) -> doc.Group:
        parts = [
            doc.Plot(
                words,
                [doc.Curve(curve.name, curve.points) for curve in some],
                across="x",
                ends=(some[0].points[0][0], some[0].points[-1][0]),
                rows=rows,
            )
            for words, some in drawn
        ]
        return doc.Group(parts, beside=doc.Beside(38, most=2))

    table = doc.table(
        alone,
        doc.ColumnOf("", lambda curve: curve.name, right=False),
        doc.ColumnOf("f(x)", lambda curve: curve.formula, right=False),
        doc.ColumnOf(
            "lowest",
            lambda curve: "{1:.3f} at {0:.2f}".format(*curve.lowest) if curve.lowest else "0",
        ),
        doc.ColumnOf("exactly 0", lambda curve: percent(curve.zero or 0.0)),
        doc.ColumnOf(f"|f| < {NEARLY_ZERO:g}", lambda curve: percent(curve.nearly or 0.0)),
        title=[("Of inputs from N(0, 1)", True)],
    )
    return doc.Document(
        "activation functions",
        "Activation functions of feed-forward blocks",
        [doc.Group([doc.Facts(heading)]), plots(12), doc.Group([table])],
        doc.Explanation("scaling", "computed, not measured: each function over its input."),
        doc.next_steps(["attnviz why --ffn L0: a model's own neurons"]),
        heading=heading,
        finding=_activation_words(report),
        first=lambda columns, lines: [plots(max(min(lines - 11, 18), 6)), doc.Group([table])],
    )


def _activation_words(report: ScalingReport) -> str:
    """Return what tells activation functions apart: where they are zero, and how far below."""
    dips = {curve.name: curve.lowest[1] for curve in report.activations if curve.lowest}
    zero = next(curve for curve in report.activations if curve.zero)
    first, *others = [f"{name} falls to {dip:.3f}" for name, dip in dips.items()]
    lowest = listed([first, *(other.replace("falls ", "") for other in others)])
    return (
        f"{zero.name} puts out 0 for {percent(zero.zero or 0.0, whole=True)} of inputs from "
        f"N(0, 1), {lowest}: a SiLU gate below 0 passes at most "
        f"{percent(-dips['SiLU'], whole=True)} on, its sign turned."
    )


def _heading(report: ScalingReport) -> doc.Words:
    if report.model is None:
        words = [
            f"d_k {', '.join(str(case.d_k) for case in report.cases)}",
            f"{counted(report.samples, 'sample')} of {report.keys:,} × {report.keys:,}",
            f"seed {report.seed}",
        ]
        return [("random queries and keys", True), *((word, False) for word in words)]
    model = report.model
    shape = f"{counted(model.layers, 'layer')} × {counted(model.heads, 'head')}"
    return [(model.name, True), (shape, False), (f"{report.keys:,} tokens", False)]


def _finding(report: ScalingReport) -> str:
    """Return the finding: how many queries put nearly all weight on one key, both ways."""
    cases = report.cases if report.model is not None else report.cases[-1:]
    where = f"at d_k = {cases[-1].d_k}" if report.model is None else f"in {report.name(cases[0])}"
    if len(cases) > 1:
        kind = "layer" if cases[0].head is None else "head"
        where = f"on average over {counted(len(cases), kind)}"
    pairs = [case.both("queries_above") for case in cases]
    before, after = (sum(shares) / len(cases) for shares in zip(*pairs, strict=True))
    many = f"{percent(before, whole=True)} of queries put > .9 on one key {where}"
    return f"Without 1/√d_k, {many}; with it, {percent(after, whole=True) if after else 'none'}."


def _first(report: ScalingReport, columns: int, lines: int) -> list[doc.Group]:
    """Return histograms and the table; of a model's cases the one that the scale changes most."""
    table = _table(report)._replace(ranked=True)
    cases = report.cases[-max(columns // _COLUMNS_A_CASE, 2) :]
    if report.model is not None or len(cases) == 1:
        case = max(report.cases, key=lambda case: case.gain)
        rows = max(lines - len(table.rows) - 7, _LEAST_BARS)
        return [doc.Group([table]), doc.Group([_histograms(report, case, rows)], yields=1)]
    rows = max((lines - len(table.rows) - 8) // 2, _LEAST_BARS)
    top = max(map(_top, cases))
    plots = []
    for word in _TINTS:
        drawn = [_histogram(case, word, f"{word}, {report.name(case)}", top) for case in cases]
        plots.append(doc.Group([doc.Plot((), histograms=drawn, rows=rows)]))
    return [*plots, doc.Group([table])]


def _table(report: ScalingReport) -> doc.Table:
    def plain(value: float) -> str:  # four digits, at most three decimals
        return f"{value:,.{max(4 - len(f'{value:.0f}'), 0)}f}"

    def both(name: str, case: ScalingCase) -> str:
        return " → ".join(map(percent if name in _PERCENTS else plain, case.both(name)))

    return doc.table(
        report.cases,
        doc.ColumnOf("", report.name, right=False),
        *(doc.ColumnOf(title, partial(both, name)) for name, title in _TITLES.items()),
        row=lambda case: {"bar": (max(case.gain, 0.0), 1.0)},
        title=[("Without → with the scale; gain in normalised entropy", True)],
        bars="gain",
        least=3,
    )


def _top(case: ScalingCase) -> float:
    """Return the share with a full bar; the first bin, which has no lower end, is left out."""
    return max([share for side in case.sides.values() for share in side.shares()[1:]]) or 1.0


def _histograms(report: ScalingReport, case: ScalingCase, rows: int) -> doc.Plot:
    """Return the histograms of a case under its name and its scale."""
    words = [] if report.model is None else [f"d_k {case.d_k}"]
    scale = case.scaled.scale
    usual = math.isclose(scale, 1 / math.sqrt(case.d_k))
    made = f"1/√{case.d_k} = {scale:.4g}" if usual else f"{scale:.4g}, the model's own"
    words.append(f"scale {made}")
    if case.layer is not None and case.head is None:
        words.append(f"mean of {counted(case.heads, 'head')}")
    drawn = [_histogram(case, word, f"{word} the scale", _top(case)) for word in _TINTS]
    title = [(report.name(case), True), *((word, False) for word in words)]
    return doc.Plot(title, histograms=drawn, rows=rows)


def _histogram(case: ScalingCase, side: str, name: str, top: float) -> doc.Histogram:
    """Return a histogram of a case's weights ``with`` or ``without``. top: a full bar's share."""
    ticks = [(1 + _BINS_A_DECADE * (power - _LOWEST), text) for power, text in _TICKS.items()]
    return doc.Histogram(name, case.sides[side].shares(), BIN_EDGES, top, _TINTS[side], ticks)
