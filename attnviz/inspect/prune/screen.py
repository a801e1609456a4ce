"""The document of ``attnviz prune``."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.provenance import model_words
from attnviz.inspect.prune.report import PruneReport

_METHODS = {"exact": "Δ loss when ablated alone", "gradient": "gradient, a first-order estimate"}
_ROWS = 12
_CURVE_ROWS, _CURVE_COLUMNS = 8, 25
_AROUND_CURVE = 9
"""Lines of a first screen around the curve: title, axis, legend, and what stands below."""
_GRID_ONLY, _WIDE, _WIDEST = 60, 110, 165
"""Columns from which on the grid stands next to the curve, the steps below the grid, and the curve
has all the room that it needs."""


def document(report: PruneReport) -> doc.Document:
    """Return the document: the held-out loss after each removal, the removed heads, the result."""
    model, halves = report.model, _halves(report)
    parts: list[doc.Part] = []
    if report.steps:
        parts = [_curve(report), _grid(report), _steps(report)]
    said = [*_losses(report), *_result(report)] if report.steps else []
    random = [("random weights", False)] if model.weights == "random" else []
    return doc.Document(
        f"pruned heads of {model.name}",
        f"{model.name} without {counted(len(report.steps), 'head')}: held-out loss",
        [
            doc.Group(_about(report)),
            doc.Group([doc.Note(note) for note in (*model.notes, *report.notes)]),
            *(doc.Group([part]) for part in parts),
            doc.Group([doc.Say(text) for text in said]),
        ],
        doc.Explanation("prune", f"{halves}, seed {report.seed}."),
        doc.next_steps(_hints(report)),
        heading=[model_words(model)[0], *random, model_words(model)[-1], (halves, False)],
        quoted=report.text if report.texts == 1 else "",
        finding=_finding(report),
        first=partial(_first, report),
    )


def _hints(report: PruneReport) -> list[str]:
    """Return the options to try next on the command line."""
    hints, request = [], report.request
    if report.steps and request.out is None:
        hints.append("--out DIR: write the pruned model")
    masked = report.pruned.form == "masked" and report.pruned.shrinks
    if masked and not request.uniform and not request.heads:
        hints.append("--uniform: equally many from every layer, to be cut")
    if not request.rerank:
        hints.append("--rerank: rank again after each removal")
    if report.texts == 1:
        hints.append("--texts FILE: your texts")
    return hints


def _halves(report: PruneReport) -> str:
    tokens = counted(report.held_out.tokens, "token")
    if report.texts == 1:
        return f"ranked on the first half, held out the second ({tokens})"
    ranked = counted(report.ranking.texts, "text")
    return f"ranked on {ranked}, held out {report.held_out.texts} ({tokens})"


def _finding(report: PruneReport) -> str:
    """Return the finding: the rise of the held-out loss, compared with random orders."""
    if not report.steps:
        return f"No head removed: {report.notes[-1]}." if report.notes else "No head removed."
    gone, last = len(report.steps), report.steps[-1].loss
    before, heads = report.baseline, f"{gone} of {counted(report.total, 'head')}"
    found = (
        f"Without {heads} the held-out {report.loss_name} {_moves(report, last)} "
        f"({before:.3f} → {last:.3f})"
    )
    stopped = "" if report.limit is None else " Stopped on this same loss (optimistic)."
    stopped += " One text." if report.texts == 1 else ""
    chance = report.random_of(report.steps[-1])
    if chance is None:
        return f"{found}.{stopped}"
    found += f"; without as many random heads it {_moves(report, chance.mean)}"
    if report.request.draws == 1:
        return f"{found} (1 draw).{stopped}"
    low, high = (_change(report, end, sign=True) for end in (chance.low, chance.high))
    found += f" ({low} to {high}, {report.request.draws} draws)."
    as_well = sum(loss <= last for loss in chance.losses)
    does = f"do{'es' * (as_well == 1)}"
    told = f" {as_well} of {len(chance.losses)} random orders {does} as well."
    return found + told * bool(as_well) + stopped


def _moves(report: PruneReport, loss: float) -> str:
    """Return a verb and by how many percent a loss differs from that of the whole model."""
    ratio = report.ratio(loss)
    if not math.isfinite(ratio):
        return "is not finite"
    if round(1000 * ratio) == 1000:
        return "stays the same"
    return f"{'rises' if ratio > 1 else 'falls'} by {_change(report, loss)}"


def _change(report: PruneReport, loss: float, sign: bool = False) -> str:
    """Return a change of the loss in percent, such as ``4.9%``. sign: True writes + or -."""
    ratio = report.ratio(loss)
    if not math.isfinite(ratio):
        return "not finite"
    return f"{100 * (ratio - 1):+.1f}%" if sign else f"{100 * abs(ratio - 1):.1f}%"


def _about(report: PruneReport) -> list[doc.Part]:
    size = counted(report.tokens, "token")
    if report.texts > 1:
        size = f"{counted(report.texts, 'text')}, {size}"
    seed = [(f"seed {report.seed}", False)] if report.random else []
    rules = [
        report.request.goal,
        _halves(report),
        f"ranked by {_METHODS[report.request.method]}",
        *["again after each removal"] * report.request.rerank,
        *["equally many from every layer"] * report.request.uniform,
        *(["stopped by the held-out loss"] if report.limit is not None else []),
        "a layer may lose all" if report.request.empty_layers else "each layer keeps a head",
    ]
    return [
        doc.Facts([*model_words(report.model), (size, False), *seed]),
        *([doc.Quote("text", report.text)] if report.texts == 1 else []),
        *([doc.Facts([(f"from {report.source}", False)])] if report.source else []),
        doc.Facts([(rule, False) for rule in rules]),
    ]


# The first screen ----------------------------------------------------------------------------


def _first(report: PruneReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: the loss curve, the grid and, if they fit, the removals."""
    if not report.steps:
        return [doc.Group([doc.Note(note) for note in report.model.notes], yields=1)]
    result = doc.Group([doc.Say(text) for text in _result(report)], yields=2)
    wide = columns >= _WIDE
    rows = max(lines - _AROUND_CURVE, 3)
    curve = _curve(report, min(rows, lines // 2 if wide else _CURVE_ROWS))
    grid = _grid(report, lines - 4, columns - _CURVE_COLUMNS - 3)
    if columns < _GRID_ONLY:
        return [doc.Group([curve]), doc.Group([grid], yields=3), result]
    steps = [_steps(report, brief=True)] if wide else []
    right = doc.Group([grid, *steps], spaced=True)
    beside = doc.Beside(0) if columns >= _WIDEST else doc.Beside(_CURVE_COLUMNS, yields=True)
    return [doc.Group([curve, right], beside=beside), result]


# Parts ---------------------------------------------------------------------------------------


def _curve(report: PruneReport, rows: int = 12) -> doc.Plot:
    total = report.total
    start = (float(total), report.baseline)
    order = [start, *((float(step.heads_left), step.loss) for step in report.steps)]
    chance = [start, *((float(point.heads_left), point.mean) for point in report.random)]
    again = ", ranked again each time" if report.request.rerank else ""
    curves = [doc.Curve(f"least important first{again}", _finite(order, total))]
    if report.random:
        drawn = f"mean of {report.request.draws}" if report.request.draws > 1 else "1"
        curves.append(doc.Curve(f"random order ({drawn})", _finite(chance, total), marked=True))
    limit = report.limit
    levels = [doc.Level(limit, f"limit {limit:.4f}")] if limit is not None else []
    return doc.Plot(
        [(f"Held-out {report.loss_name}", True), ("nats per token, against heads left", False)],
        curves,
        "heads left",
        ends=(float(total), min(left for left, _ in (*order, *chance))),
        levels=levels,
        rows=rows,
    )


def _finite(points: list[tuple[float, float]], total: int) -> list[tuple[float, float]]:
    """Return the points with a finite loss; in half precision a loss may overflow.

    points: (heads left, loss) of a curve. total: how many heads the whole model has; if no loss is
    finite, the result is the single point (total, 0).
    """
    return [(left, loss) for left, loss in points if math.isfinite(loss)] or [(float(total), 0.0)]


_REMOVED = doc.Tint(150)
_TEN = 10


def _grid(report: PruneReport, lines: int = 0, columns: int = 0) -> doc.HeadGrid:
    """Return a grid of heads with the number of the removal in each cell, or a dot."""
    turns = {head: turn for turn, head in enumerate(report.removed, start=1)}
    heads = range(report.model.heads)
    digits = len(str(len(report.steps)))
    across = 4 + len(heads) * (max(digits, len(str(len(heads)))) + 2)
    if lines and (len(report.layers) > lines or across > columns):
        return _layer_grid(report)
    cells = {}
    for place in product(report.layers, heads):
        turn, name = turns.get(place), report.head_name(place)
        if turn is None:
            cells[place] = doc.Cell(0.0, letter=".", tip=f"{name} stays")
        else:
            tip = f"{name} removed at step {turn}"
            cells[place] = doc.Cell(1.0, _REMOVED, letter=str(turn), tip=tip)
    title = [("Removed heads", True), ("by step", False)]
    return doc.head_grid(cells, report.index_base, title=title)


def _layer_grid(report: PruneReport) -> doc.HeadGrid:
    """Return a grid with a cell for each layer, ten in a row: how many heads were removed."""
    gone = [sum(layer == at for at, _ in report.removed) for layer in report.layers]
    cells = {}
    for place, (layer, count) in enumerate(zip(report.layers, gone, strict=True)):
        share = count / report.model.heads
        tip = f"L{layer + report.index_base}: {count} of {report.model.heads} removed"
        tint = doc.Tint(round(60 + 170 * share)) if count else None
        cells[divmod(place, _TEN)] = doc.Cell(share, tint, letter=str(count), tip=tip)
    starts = range(0, len(gone), _TEN)
    return doc.HeadGrid(
        [f"L{report.layers[start] + report.index_base}" for start in starts],
        [f"+{place}" for place in range(min(_TEN, len(gone)))],
        cells,
        [("Removed heads", True), (f"of {report.model.heads} in each layer", False)],
    )


def _steps(report: PruneReport, brief: bool = False) -> doc.Table:
    """Return a table of the removals in order; if there are many, only some of them."""
    places = _spread(report)
    digits = len(str(len(report.steps)))
    exact = report.request.method == "exact"

    def random(place: int) -> str:
        chance = report.random_of(report.steps[place])
        return f"{report.ratio(chance.mean):.3f}" if chance else ""

    ratios = "ratio" if brief else "ratio, random"
    meaning = [(f"{ratios}: to the full model", False)]
    if exact and not brief:
        meaning.append(("Δ alone: when ablated alone, on the ranking half", False))
    skipped = len(report.steps) - len(places)
    steps = report.steps
    columns: list[doc.ColumnOf[int]] = [
        doc.ColumnOf(
            "step",
            lambda at: f"{at + 1:>{digits}} {report.head_name((steps[at].layer, steps[at].head))}",
            right=False,
            tone="strong",
        ),
        doc.ColumnOf(f"held-out {report.loss_name}", lambda at: f"{steps[at].loss:.4f}"),
        doc.ColumnOf("ratio", lambda at: f"{report.ratio(steps[at].loss):.3f}"),
        doc.ColumnOf("random", random),
        doc.ColumnOf(
            "Δ alone" if exact else "gradient",
            lambda at: NumberScale(1.0).text(steps[at].score, 4),
            keep=5,
        ),
        doc.ColumnOf("left", lambda at: str(steps[at].heads_left), keep=4),
    ]
    return doc.table(
        places,
        *columns,
        title=[("Step by step", True), *meaning],
        more=f"{skipped} steps between are in --json" if skipped else "",
        least=3 if brief else 0,
    )


def _spread(report: PruneReport) -> list[int]:
    """Return the indices of the removals to list: all, or those with a random order to compare."""
    places = range(len(report.steps))
    if len(places) <= _ROWS:
        return list(places)
    found = [place for place in places if report.random_of(report.steps[place])]
    return found or sorted({round(at * places[-1] / (_ROWS - 1)) for at in range(_ROWS)})


# Sentences -----------------------------------------------------------------------------------


def _losses(report: PruneReport) -> list[str]:
    last, half = report.steps[-1], report.ranking
    ratio = report.ratio(last.loss)
    times = f"×{ratio:.2f}" if math.isfinite(ratio) else "not finite"
    line = (
        f"Held-out {report.loss_name}: {report.baseline:.4f} to {last.loss:.4f} nats per token "
        f"({times}); on the half that ranked {half.baseline:.4f} to "
        f"{last.ranking_loss:.4f} (×{last.ranking_loss / half.baseline:.2f})"
    )
    chance = report.random_of(last)
    if chance is not None:
        line += f"; in random order {chance.mean:.4f}"
        if report.request.draws > 1:
            line += f" ({chance.low:.4f} to {chance.high:.4f} in {report.request.draws} orders)"
    return [line]


def _result(report: PruneReport) -> list[str]:
    model, before = report.pruned, report.parameters_before
    share = (before - model.parameters) / before
    if model.form == "cut":
        verb = "cut" if model.path is not None else "can be cut"
        whole = report.model
        kept = f"{model.heads} of {whole.heads} heads"
        if whole.kv_heads != whole.heads:
            kept += f" and {model.kv_heads} of {whole.kv_heads} key/value heads"
        lines = [
            f"Parameters: {before:,} to {model.parameters:,} (-{share:.1%}); every layer {verb} to "
            f"{kept}"
        ]
        if model.zeroed:
            stay = "removed head stays" if len(model.zeroed) == 1 else "removed heads stay"
            lines[0] += f", {len(model.zeroed)} {stay} as zeros"
    else:
        lines = [f"Parameters: {before:,}, none saved: {model.note}"]
    if model.form == "cut" and model.note:
        lines.append(f"Note: {model.note}")
    if model.path is not None:
        kind = "cut" if model.form == "cut" else "masked, with zeroed output rows"
        lines.append(
            f"Written: {model.path} ({kind}; {model.architecture}); its outputs equal those of "
            f"the full model with these heads ablated (max difference {model.difference:.1g} in "
            f"{report.model.dtype})"
        )
    return lines
