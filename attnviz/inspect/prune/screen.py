"""The document of ``attnviz prune``: curves of the held-out loss, the removed heads, the result."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.provenance import model_words
from attnviz.inspect.prune.report import PruneReport

_METHODS = {"exact": "Δ loss when ablated alone", "gradient": "gradient, a first-order estimate"}
_CURVE_ROWS = 8
_WIDE, _NARROW = 45, 25
"""The columns that the curves have at least beside the table, and beside the grid alone."""

_AROUND_CURVE = 9
"""Lines of a first screen around the curves: title, axis, legend, and what stands below."""


def document(report: PruneReport) -> doc.Document:
    """Return the document: the held-out loss after each removal, the removed heads, the result."""
    model, halves = report.model, _halves(report)
    shown: list[list[doc.Part]] = []
    if report.steps:
        shown = [[_curves(report)], [_grid(report)], [_steps(report)]]
        shown.append([doc.Say(text) for text in (_losses(report), *_result(report))])
    random = [("random weights", False)] if model.weights == "random" else []
    return doc.Document(
        f"pruned heads of {model.name}",
        f"{model.name} without {counted(len(report.steps), 'head')}: held-out loss",
        [
            doc.Group(_about(report)),
            doc.Group([doc.Note(note) for note in (*model.notes, *report.notes)]),
            *map(doc.Group, shown),
        ],
        doc.Explanation("prune", f"{halves}, seed {report.seed}."),
        doc.next_steps(_hints(report)),
        heading=[model_words(model)[0], *random, model_words(model)[-1], (halves, False)],
        quoted=report.text if report.texts == 1 else "",
        finding=_finding(report),
        first=partial(_first, report),
    )


def _hints(report: PruneReport) -> list[str]:
    request, pruned = report.request, report.pruned
    kept_whole = pruned.form == "masked" and pruned.shrinks
    hints = {
        "--out DIR: write the pruned model": bool(report.steps) and request.out is None,
        "--uniform: equally many from every layer, to be cut": kept_whole
        and not (request.uniform or request.heads),
        "--rerank: rank again after each removal": not request.rerank,
        "--texts FILE: your texts": report.texts == 1,
    }
    return [hint for hint, fits in hints.items() if fits]


def _halves(report: PruneReport) -> str:
    tokens = counted(report.held_out.tokens, "token")
    if report.texts == 1:
        return f"ranked on the first half, held out the second ({tokens})"
    ranked = counted(report.ranking.texts, "text")
    return f"ranked on {ranked}, held out {report.held_out.texts} ({tokens})"


def _about(report: PruneReport) -> list[doc.Part]:
    request, size = report.request, counted(report.tokens, "token")
    if report.texts > 1:
        size = f"{counted(report.texts, 'text')}, {size}"
    facts = [size, *[f"seed {report.seed}"] * bool(report.random)]
    rules = [
        request.goal,
        _halves(report),
        f"ranked by {_METHODS[request.method]}",
        *["again after each removal"] * request.rerank,
        *["equally many from every layer"] * request.uniform,
        *["stopped by the held-out loss"] * (report.limit is not None),
        "a layer may lose all" if request.empty_layers else "each layer keeps a head",
    ]
    return [
        doc.Facts([*model_words(report.model), *((fact, False) for fact in facts)]),
        *[doc.Quote("text", report.text)] * (report.texts == 1),
        *[doc.Facts([(f"from {report.source}", False)])] * bool(report.source),
        doc.Facts([(rule, False) for rule in rules]),
    ]


def _first(report: PruneReport, columns: int, lines: int) -> doc.Ways:
    if not report.steps:
        return doc.Ways([[doc.Group([doc.Note(note) for note in report.model.notes], yields=1)]])
    result = doc.Group([doc.Say(text) for text in _result(report)], yields=2)
    high, low = (
        _curves(report, min(max(lines - _AROUND_CURVE, 3), rows))
        for rows in (lines // 2, _CURVE_ROWS)
    )
    grid, steps = _grid(report), _steps(report, brief=True)
    wide, narrow = (doc.Beside(columns, yields=True) for columns in (_WIDE, _NARROW))
    return doc.Ways([
        [doc.Group([high, doc.Group([grid, steps], spaced=True)], beside=wide), result],
        [doc.Group([low, grid], beside=narrow), result],
        [doc.Group([low]), doc.Group([steps], yields=1), result],
    ])  # fmt: skip


def _finding(report: PruneReport) -> str:
    if not report.steps:
        return f"No head removed: {report.notes[-1]}." if report.notes else "No head removed."
    last, before = report.steps[-1].loss, report.baseline
    heads = f"{len(report.steps)} of {counted(report.total, 'head')}"
    words = (
        f"Without {heads} the held-out {report.loss_name} {_moves(report, last)} "
        f"({before:.3f} → {last:.3f})"
    )
    end = "" if report.limit is None else " Stopped on this same loss (optimistic)."
    end += " Based on one text." if report.texts == 1 else ""
    random = report.random_of(report.steps[-1])
    if random is None:
        return f"{words}.{end}"
    words += f"; with as many random heads removed it {_moves(report, random.mean)}"
    if report.request.draws == 1:
        return f"{words} (1 draw).{end}"
    low, high = (_change(report, loss, sign=True) for loss in random.ends)
    words += f" ({low} to {high}, {report.request.draws} draws)."
    if as_well := sum(loss <= last for loss in random.losses):
        does = "does" if as_well == 1 else "do"
        words += f" {as_well} of {len(random.losses)} random orders {does} as well."
    return words + end


def _moves(report: PruneReport, loss: float) -> str:
    ratio = report.ratio(loss)
    if not math.isfinite(ratio):
        return "is not finite"
    if round(1000 * ratio) == 1000:
        return "stays the same" if ratio == 1 else "changes by less than 0.1%"
    return f"{'rises' if ratio > 1 else 'falls'} by {_change(report, loss)}"


def _change(report: PruneReport, loss: float, sign: bool = False) -> str:
    change = 100 * (report.ratio(loss) - 1)
    if not math.isfinite(change):
        return "not finite"
    return f"{change:+.1f}%" if sign else f"{abs(change):.1f}%"


def _losses(report: PruneReport) -> str:
    last, before, ranked = report.steps[-1], report.baseline, report.ranking.baseline
    ratio = report.ratio(last.loss)
    times = f"×{ratio:.2f}" if math.isfinite(ratio) else "not finite"
    words = (
        f"Held-out {report.loss_name}: {before:.4f} to {last.loss:.4f} nats per token ({times}); "
        f"on the half that ranked {ranked:.4f} to {last.ranking_loss:.4f} "
        f"(×{last.ranking_loss / ranked:.2f})"
    )
    if (random := report.random_of(last)) is not None:
        words += f"; in random order {random.mean:.4f}"
        if report.request.draws > 1:
            low, high = random.ends
            words += f" ({low:.4f} to {high:.4f} in {report.request.draws} orders)"
    return words


def _result(report: PruneReport) -> list[str]:
    pruned, whole, before = report.pruned, report.model, report.parameters_before
    cut = pruned.form == "cut"
    if cut:
        kept = f"{pruned.heads} of {whole.heads} heads"
        if whole.kv_heads != whole.heads:
            kept += f" and {pruned.kv_heads} of {whole.kv_heads} key/value heads"
        if pruned.zeroed:
            stay = "removed head stays" if len(pruned.zeroed) == 1 else "removed heads stay"
            kept += f", {len(pruned.zeroed)} {stay} as zeros"
        sentences = [
            f"Parameters: {before:,} to {pruned.parameters:,} "
            f"(-{(before - pruned.parameters) / before:.1%}); every layer "
            f"{'can be cut' if pruned.path is None else 'cut'} to {kept}",
            *[f"Note: {pruned.note}"] * bool(pruned.note),
        ]
    else:
        sentences = [f"Parameters: {before:,}, none saved: {pruned.note}"]
    if pruned.path is not None:
        kind = "cut" if cut else "masked, with zeroed output rows"
        sentences.append(
            f"Written: {pruned.path} ({kind}; {pruned.architecture}); its outputs equal those of "
            f"the full model with these heads ablated (max difference {pruned.max_difference:.1g} "
            f"in {whole.dtype})"
        )
    return sentences


def _curves(report: PruneReport, rows: int = 12) -> doc.Plot:
    total, draws, limit = report.total, report.request.draws, report.limit
    start = (float(total), report.baseline)
    order = [start, *((float(step.heads_left), step.loss) for step in report.steps)]
    random = [start, *((float(point.heads_left), point.mean) for point in report.random)]
    names = ["least important first" + ", ranked again each time" * report.request.rerank]
    names += [f"random order ({f'mean of {draws}' if draws > 1 else '1'})"] * bool(report.random)
    curves = []
    for name, points in zip(names, (order, random), strict=False):
        finite = [(left, loss) for left, loss in points if math.isfinite(loss)]  # float16 overflows
        curves.append(doc.Curve(name, finite or [(float(total), 0.0)], marked=points is random))
    return doc.Plot(
        [(f"Held-out {report.loss_name}", True), ("nats per token, against heads left", False)],
        curves,
        "heads left",
        ends=(float(total), min(left for left, _ in (*order, *random))),
        levels=[] if limit is None else [doc.Level(limit, f"limit {limit:.4f}")],
        rows=rows,
    )


_REMOVED = doc.Tint(150)


def _grid(report: PruneReport) -> doc.HeadGrid:
    turns = {head: turn for turn, head in enumerate(report.removed, start=1)}
    cells = {}
    for head in product(report.layers, range(report.model.heads)):
        turn, name = turns.get(head), report.head_name(head)
        if turn is None:
            cells[head] = doc.Cell(0.0, letter=".", tip=f"{name} stays")
        else:
            tip = f"{name} removed at step {turn}"
            cells[head] = doc.Cell(1.0, _REMOVED, letter=str(turn), tip=tip)
    title = [("Removed heads", True), ("by step", False)]
    return doc.head_grid(cells, report.index_base, title=title)


def _steps(report: PruneReport, brief: bool = False) -> doc.Table:
    steps, digits = report.steps, len(str(len(report.steps)))
    exact = report.request.method == "exact"

    def random(at: int) -> str:
        point = report.random_of(steps[at])
        return f"{report.ratio(point.mean):.3f}" if point else ""

    title = [("Step by step", True), (f"ratio{', random' * (not brief)}: to the full model", False)]
    if exact and not brief:
        title.append(("Δ alone: when ablated alone, on the ranking half", False))
    columns: list[doc.ColumnOf[int]] = [
        doc.ColumnOf(
            "step",
            lambda at: f"{at + 1:>{digits}} {report.head_name(report.removed[at])}",
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
    return doc.table(range(len(steps)), *columns, title=title, least=3 if brief else 0)
