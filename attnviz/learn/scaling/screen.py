"""The screen of ``attnviz scaling``: each case's histograms and measures, and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import methodcaller

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, percent
from attnviz.draw.provenance import model_words
from attnviz.learn.scaling.report import (
    BIN_EDGES,
    LABELS,
    PERCENTS,
    Estimate,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
    plain,
    whole,
)

_LONGEST = 100
_MOST_IN_FULL = 4
_MOST_DECIMALS = 4
_SIDE_BY_SIDE = doc.Beside(78, most=2)

_TINTS = {"without": doc.Tint(216), "with": doc.Tint(112)}
_TICKS = {-8: "1e-8", -6: "1e-6", -4: "1e-4", -2: ".01", 0: "1"}
"""The powers of ten that are labelled on the axis."""

_LOWEST = min(_TICKS)
_BINS_A_DECADE = (len(BIN_EDGES) - 2) / -_LOWEST

_LEAST_BARS = 3
_COLUMNS_A_CASE, _LEAST_COLUMNS = 18, 26
_TALL = 50
"""The lines from which a first screen has every measure, and what they show in words."""

_BRIEF = (
    *("score_variance", "normalised_entropy", "jacobian_norm"),
    *("queries_above", "queries_vanished"),
)
_OVERVIEW = {
    "entropy": "normalised_entropy",
    "variance": "score_variance",
    "gradient": "jacobian_norm",
    "largest": "largest_weight",
    "vanishing": "queries_vanished",
}


def document(report: ScalingReport) -> doc.Document:
    """Return the document that shows each case without and with the scale 1/√d_k.

    If a model has many layers or heads, only the two with the largest and the smallest effect of
    the scale are shown in full; HTML pages show the others as well.
    """
    cases = drawn = report.cases
    if report.model is not None and len(cases) > _MOST_IN_FULL:
        ranked = sorted(cases, key=lambda case: case.gain)
        drawn = (ranked[-1], ranked[0])
    groups = [doc.Group(_provenance(report)), doc.Group([doc.Note(note) for note in report.notes])]
    if report.model is not None and len(cases) > 1:
        groups.append(doc.Group([_overview(report)]))
    if len(drawn) < len(cases):
        extremes = "In full: where the scale gives back the most entropy, and where the least"
        groups.append(doc.Group([doc.Facts([(extremes, False)])]))
    groups.append(doc.Group([_case(report, case) for case in drawn], beside=_SIDE_BY_SIDE))
    others = [_case(report, case) for case in cases if case not in drawn]
    groups.append(doc.Group(others, beside=_SIDE_BY_SIDE, full=True))
    groups.append(doc.Group([doc.Note(_legend(report), _LONGEST)]))
    groups.append(doc.Group([doc.Say(text, _LONGEST) for text in report.seen]))
    name = "random queries and keys" if report.model is None else report.model.name
    measured = (
        f"measured on random queries and keys, {counted(report.samples, 'sample')} of "
        f"{report.keys:,} keys, seed {report.seed}; entries are from N(0, 1)."
    )
    hints = ["--from-model: a trained model's own"]
    if report.model is not None:
        hints = [] if cases[0].head is not None else ["--head L0H0: one head"]
        measured = (
            "measured on a model's queries and keys over one text. They were made with the scale "
            "in place: without it training would have ended elsewhere."
        )
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


def _heading(report: ScalingReport) -> doc.Words:
    """Return the heading in one line: the model, or the sizes of random queries and keys."""
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


def _legend(report: ScalingReport) -> str:
    """Return one paragraph that explains the histograms and the table."""
    source = "± is one standard error over the samples. " if report.samples > 1 else ""
    if report.model is not None:
        source = "Queries that see a single key are left out. "
    return (
        "Bars: share of the attention weights that have this size, on a logarithmic axis, four "
        "bins to a power of ten; the first bar holds all below 1e-8 and may be cut at the top. "
        "Both charts of a pair have one vertical scale, and whatever is not empty is drawn. "
        f"{source}Normalised entropy is −Σ p ln p / ln n; the softmax gradient norm is "
        "‖diag(p) − p pᵀ‖ (Frobenius), mean over queries."
    )


def _first(report: ScalingReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: histograms without and with the scale, and a table.

    The table has one column per case. If a model has several layers or heads, the first screen is
    the overview and the case that the scale changes most.
    """
    if report.model is not None and len(report.cases) > 1:
        overview = _overview(report)._replace(least=3)
        case = max(report.cases, key=lambda case: case.gain)
        rows = max(lines - len(overview.rows) - 7, _LEAST_BARS)
        pair = _histograms(report, case, rows, brief=True)
        return [doc.Group([overview]), doc.Group([pair], yields=1)]
    cases = _spread(report.cases, max((columns - _LEAST_COLUMNS) // _COLUMNS_A_CASE, 2))
    tall = lines >= _TALL
    table = doc.table(
        LABELS if tall else _BRIEF,
        doc.ColumnOf("without → with", lambda name: LABELS[name], right=False),
        *(doc.ColumnOf(report.name(case), case.both_ways) for case in cases),
    )
    if len(cases) == 1:
        return [doc.Group([_histograms(report, cases[0], lines - 12)]), doc.Group([table])]
    rows = max((lines - len(table.rows) - 8) // 2, _LEAST_BARS)
    top = max(map(_top, cases))
    plots = []
    for word in _TINTS:
        named = [(f"{word}, {report.name(case)}", case.sides[word]) for case in cases]
        drawn = [_histogram(report, side, name, _TINTS[word], top, True) for name, side in named]
        plots.append(doc.Group([doc.Plot((), histograms=drawn, rows=rows)]))
    words = [doc.Group([doc.Say(text, _LONGEST) for text in report.seen])] if tall else []
    return [*plots, doc.Group([table]), *words]


def _spread(cases: Sequence[ScalingCase], most: int) -> Sequence[ScalingCase]:
    """Return at most ``most`` evenly spaced cases, the first and the last included."""
    last = len(cases) - 1
    chosen = {round(at * last / (most - 1)) for at in range(most)}
    return cases if len(cases) <= most else [cases[at] for at in sorted(chosen)]


def _overview(report: ScalingReport) -> doc.Table:
    """Return an overview of a model: a table with one row per layer or head."""
    return doc.table(
        report.cases,
        doc.ColumnOf("", report.name, right=False),
        *(
            doc.ColumnOf(title, methodcaller("both_ways", name))
            for title, name in _OVERVIEW.items()
        ),
        row=lambda case: {"bar": (max(case.gain, 0.0), 1.0)},
        title=[("Without → with the scale; gain of normalised entropy", True)],
        ranked=True,
        bars="gain",
    )


# One case ------------------------------------------------------------------------------------


def _case(report: ScalingReport, case: ScalingCase) -> doc.Group:
    """Return the group of one case: its measures, and histograms with and without the scale."""
    table = doc.table(
        LABELS,
        doc.ColumnOf("", lambda name: LABELS[name], right=False),
        doc.ColumnOf("without the scale", partial(_measured, case.plain), right=False),
        doc.ColumnOf("with the scale", partial(_measured, case.scaled), right=False),
    )
    expected = "theory: scale² · d_k" if report.model is None else "of random queries and keys"
    variances = (whole(side.expected_variance) for side in case.sides.values())
    theory = doc.Row((expected, *variances), tone="faint", depth=1)
    table = table._replace(rows=[table.rows[0], theory, *table.rows[1:]])
    return doc.Group([_histograms(report, case), table], spaced=True)


def _measured(side: ScaledSoftmax, name: str) -> str:
    return written(name, side.measures[name])


def written(name: str, estimate: Estimate) -> str:
    """Return a measure with its standard error, such as ``64.0 ± 0.2`` or ``16.2 ± 0.5%``.

    name: of the measure, which decides whether it is written in percent. An error has one digit,
    two if it begins with a 1, and at most four decimals.
    """
    factor, unit = (100, "%") if name in PERCENTS else (1, "")
    value = factor * estimate.value
    if estimate.error is None:
        return percent(estimate.value) if unit else plain(value)
    error = factor * estimate.error
    if error == 0:  # every sample has the same value
        return (f"{value:.0f}" if value in (0, 100) else plain(value)) + unit
    exponent = math.floor(math.log10(error))
    decimals = -exponent + (error / 10.0**exponent < 2)
    decimals = min(max(decimals, 0), _MOST_DECIMALS)
    return f"{value:.{decimals}f} ± {error:.{decimals}f}{unit}"


def _top(case: ScalingCase) -> float:
    """Return the share of weights that has the full bar in a case's histograms.

    The first bin is left out: it has no lower end, and without the scale it would dwarf all others.
    """
    return max([share for side in case.sides.values() for share in side.shares()[1:]]) or 1.0


def _histograms(
    report: ScalingReport, case: ScalingCase, rows: int = 12, brief: bool = False
) -> doc.Plot:
    """Return the histograms of a case under its name and its scale."""
    words = [] if report.model is None else [f"d_k {case.d_k}"]
    scale = case.scaled.scale
    usual = math.isclose(scale, 1 / math.sqrt(case.d_k))
    made = f"1/√{case.d_k} = {scale:.4g}" if usual else f"{scale:.4g}, the model's own"
    words.append(f"scale {made}")
    if case.layer is not None and case.head is None:
        words.append(f"mean of {counted(case.heads, 'head')}")
    drawn = [
        _histogram(report, side, f"{word} the scale", _TINTS[word], _top(case), brief)
        for word, side in case.sides.items()
    ]
    title = [(report.name(case), True), *((word, False) for word in words)]
    return doc.Plot(title, histograms=drawn, rows=rows)


def _histogram(
    report: ScalingReport,
    side: ScaledSoftmax,
    name: str,
    tint: doc.Tint,
    top: float,
    brief: bool,
) -> doc.Histogram:
    """Return the histogram of the weights of one case, with or without the scale.

    top: the share of a full bar. brief: True leaves out its remark and its mark.
    """
    shares = side.shares()
    ticks = [(_bin(power), text) for power, text in _TICKS.items()]
    drawn = doc.Histogram(name, shares, BIN_EDGES, top, tint, ticks)
    if brief:
        return drawn
    # In a model, queries see different numbers of keys.
    even = None if report.model is not None else report.keys
    return drawn._replace(
        words=f"{percent(shares[0]) if shares[0] else 'none'} below {_TICKS[_LOWEST]}",
        mark=None if even is None else (_bin(-math.log10(even)), f"uniform: 1/{even}"),
    )


def _bin(power: float) -> float:
    """Return the position, on the axis of bins, of the weight 10 to the ``power``.

    The first bin has no lower end.
    """
    return 1 + _BINS_A_DECADE * (max(power, _LOWEST) - _LOWEST)
