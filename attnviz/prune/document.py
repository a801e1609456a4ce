"""What ``attnviz prune`` has to say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment

from attnviz.draw import document as doc
from attnviz.draw.blocks import DIM, Block, Line
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import counted, model_words
from attnviz.draw.theme import Theme
from attnviz.prune.records import PruneReport, PruneStep

_METHODS = {"exact": "exact loss", "gradient": "gradient, a first-order hint"}
_ROWS = 12

_EXPLANATION = (
    "How to read this: heads are taken out for good, one after another, and the loss (how badly "
    "the text is predicted, in nats per token) is measured after each.",
    "The curve: where it stays low, the heads that went were not needed for this text. The random "
    "order beside it says how much of that is due to the choice.",
    "Cut or masked: an architecture has one head count for all layers. Where every layer can "
    "spare equally many heads, they are cut out of the tensors; else zeros switch them off.",
)


def prune_document(
    report: PruneReport, hints: Sequence[str] = (), explain: bool = False
) -> doc.Document:
    """The losses as heads went, which ones, step by step, and what that comes to."""
    about, title = _about(report), f"{report.model.name} without {len(report.steps)} heads"
    groups = [
        doc.Group(about),
        doc.Group([doc.Note(note) for note in (*report.model.notes, *report.notes)]),
    ]
    if report.steps:
        groups += [
            doc.Group([part]) for part in (_curve(report), _heads_left(report), _steps(report))
        ]
    groups.append(doc.Group([doc.Say(text) for text in (*_price(report), *_result(report))]))
    return doc.Document(
        f"pruned heads of {report.model.name}",
        title.removesuffix("s") if len(report.steps) == 1 else title,
        groups,
        [doc.Say(text) for text in _EXPLANATION] if explain else (),
        [doc.Facts([(hint, False) for hint in hints])] if hints else (),
    )


def _about(report: PruneReport) -> list[doc.Part]:
    """What a reader needs to repeat the run."""
    many = report.texts != 1
    size = counted(report.tokens, "token")
    size = f"{counted(report.texts, 'text')}, {size}" if many else size
    parts: list[doc.Part] = [
        doc.Facts([*model_words(report.model), (size, False), (f"seed {report.seed}", False)]),
        doc.Quote(
            "texts" if many else "text", f"the first: {report.text}" if many else report.text
        ),
    ]
    if report.source:
        lead = f"{counted(report.texts, 'text')} from " if many else ""
        parts.append(doc.Facts([(lead + report.source, False)], lead=7))
    rules = [
        report.asked,
        f"order by {_METHODS[report.method]}",
        *["ranked again after each removal"] * report.rerank,
        *["equally many from every layer"] * report.uniform,
        "a layer may lose all" if report.empty_layers else "each layer keeps a head",
    ]
    return [*parts, doc.Facts([(rule, False) for rule in rules])]


def _curve(report: PruneReport) -> doc.Plot:
    """The loss after each removal beside that of random orders."""
    total = report.total
    start = (float(total), report.baseline)
    order = [start, *((float(step.heads_left), step.loss) for step in report.steps)]
    chance = [start, *((float(point.heads_left), point.mean) for point in report.random)]
    how = "gradient" if report.method == "gradient" else "exact loss"
    again = "again after each removal" if report.rerank else "once"
    curves = [doc.Curve(f"least important first, ranked {again} by {how}", _finite(order, total))]
    if report.random:
        drawn = f"mean of {report.draws} draws" if report.draws > 1 else "one draw"
        words = f"random order, {drawn}, seed {report.seed}"
        curves.append(doc.Curve(words, _finite(chance, total), marked=True))
    limit = report.limit
    levels = [doc.Level(limit, f"limit {limit:.4f}")] if limit is not None else []
    return doc.Plot(
        [
            (f"{report.loss_name.capitalize()} against heads left", True),
            ("nats per token", False),
            (f"{total} heads at the left, fewer to the right", False),
        ],
        curves,
        "heads left",
        ends=(float(total), min(left for left, _ in (*order, *chance))),
        levels=levels,
    )


def _finite(points: list[tuple[float, float]], total: int) -> list[tuple[float, float]]:
    """The points that have a height; half precision may overflow."""
    return [(left, loss) for left, loss in points if math.isfinite(loss)] or [(float(total), 0.0)]


# Heads left ----------------------------------------------------------------------------------

_KEPT = doc.Tint(110)
_TURN = "the number says when a head went"


def _heads_left(report: PruneReport) -> doc.HeadGrid:
    """A row a layer, a cell a head: coloured where it stays, its turn where it went."""
    turns = {head: turn for turn, head in enumerate(report.removed, start=1)}
    base, heads = report.index_base, range(report.model.heads)
    cells = {}
    for row, layer in enumerate(report.layers):
        for head in heads:
            turn, name = turns.get((layer, head)), report.name(layer, head)
            if turn is None:
                cells[row, head] = doc.Cell(1.0, _KEPT, tip=f"{name} stays")
            else:
                cells[row, head] = doc.Cell(
                    0.0, text=str(turn), tip=f"{name} went as number {turn}"
                )
    return doc.HeadGrid(
        [f"L{layer + base}" for layer in report.layers],
        [f"H{head + base}" for head in heads],
        cells,
        [("Heads left", True), (_TURN, False)],
        [doc.Key(_KEPT, "stays")],
        screen=lambda theme, room: _left_block(report, turns, theme, room),
    )


def _left_block(
    report: PruneReport, turns: dict[tuple[int, int], int], theme: Theme, room: int
) -> Block:
    """Cells as narrow as the numbers are; a glyph in place of a number where there is no room."""
    names = [f"L{layer + report.index_base}" for layer in report.layers]
    gutter = max(map(len, names)) + 1
    digits = len(str(len(turns)))
    numbered = (digits + 1) * report.model.heads <= room - gutter
    cell = digits + 1 if numbered else 1
    if numbered and 3 * report.model.heads <= room - gutter:
        cell = max(cell, 3)
    across = max(min((room - gutter) // cell, report.model.heads), 1)
    gone = "." if theme.ascii else "·"
    lines: list[Line] = []
    for first in range(0, report.model.heads, across):
        heads = range(first, min(first + across, report.model.heads))
        lines.append([Segment(_ruler(heads, report.index_base, cell, gutter), DIM)])
        for name, layer in zip(names, report.layers, strict=True):
            line: Line = [Segment(name.ljust(gutter), DIM)]
            for head in heads:
                turn = turns.get((layer, head))
                if turn is None:
                    line += _kept(cell, theme)
                else:
                    line.append(Segment((str(turn) if numbered else gone).rjust(cell)))
            lines.append(line)
    meaning = _TURN if numbered else f"{gone} went"
    title = wrapped([("Heads left", True), (meaning, False)], room, theme)
    return Block((*title, *lines, [*_kept(1, theme), Segment(" stays")]), room)


def _kept(cell: int, theme: Theme) -> Line:
    """A filled cell, with a blank before it where there is room."""
    filled = max(cell - 1, 1)
    glyph = "#" if theme.ascii else "█"
    mark = theme.cells(_KEPT.step, filled) if theme.colour else Segment(glyph * filled)
    return [mark] if cell == 1 else [Segment(" "), mark]


def _ruler(heads: range, base: int, cell: int, gutter: int) -> str:
    """Head numbers above the columns, as many as do not touch."""
    text = [" "] * (gutter + cell * len(heads))
    free = 0
    for place, head in enumerate(heads):
        label = str(head + base)
        start = gutter + (place + 1) * cell - len(label)
        if start >= max(free, gutter - 1):
            text[start : start + len(label)] = label
            free = start + len(label) + 1
    return "".join(text).rstrip()


# Steps and sentences -------------------------------------------------------------------------


def _steps(report: PruneReport) -> doc.Table:
    """The removals in order, the middle ones left out where there are many."""
    places = _spread(report)
    rises = [
        step.loss - report.baseline if math.isfinite(step.loss) else 0.0 for step in report.steps
    ]
    limit = max(map(abs, rises))
    digits = len(str(len(report.steps)))
    rows = []
    for place in places:
        step = report.steps[place]
        cells = (
            f"{place + 1:>{digits}} {report.name(step.layer, step.head)}",
            f"{step.loss:.4f}",
            f"{step.loss / report.baseline:.3f}",
            str(step.heads_left),
            f"{step.score:+.4f}",
            _random_at(report, step),
        )
        rows.append(doc.Row(cells, (rises[place], limit)))
    importance = "gradient" if report.method == "gradient" else "its delta"
    titles = ("loss", "× whole", "left", importance, "random")
    skipped = len(report.steps) - len(places)
    more = [(f"{skipped} steps between are in --json", False)] if skipped else []
    columns = [doc.Column("", right=False), *map(doc.Column, titles)]
    return doc.Table(columns, rows, [("Step by step", True), *more], ranked=True, rising=True)


def _spread(report: PruneReport) -> list[int]:
    """All steps where they are few, else those with a random order to stand beside."""
    places = range(len(report.steps))
    if len(places) <= _ROWS:
        return list(places)
    beside = {point.heads_left for point in report.random}
    found = [place for place in places if report.steps[place].heads_left in beside]
    return found or sorted({round(at * places[-1] / (_ROWS - 1)) for at in range(_ROWS)})


def _random_at(report: PruneReport, step: PruneStep) -> str:
    found = [point.mean for point in report.random if point.heads_left == step.heads_left]
    return f"{found[0]:.4f}" if found else ""


def _price(report: PruneReport) -> list[str]:
    """What the removals cost, beside as many at random."""
    if not report.steps:
        return ["Nothing removed: " + report.notes[-1] if report.notes else "Nothing removed"]
    last, total = report.steps[-1], report.total
    gone = len(report.steps)
    line = (
        f"Cost: without {gone} of {total} heads ({gone / total:.0%}) the {report.loss_name} goes "
        f"from {report.baseline:.4f} to {last.loss:.4f} nats per token "
        f"(×{last.loss / report.baseline:.3f})"
    )
    point = next((p for p in report.random if p.heads_left == last.heads_left), None)
    if point is not None:
        line += f"; in random order to {point.mean:.4f}"
        if report.draws > 1:
            line += f" ({point.low:.4f} to {point.high:.4f} in {report.draws} draws)"
    return [line]


def _result(report: PruneReport) -> list[str]:
    """How much smaller the model is, where it went, and why not more."""
    if not report.steps:
        return []
    model, before = report.pruned, report.parameters_before
    share = (before - model.parameters) / before
    if model.form == "cut":
        verb = "cut" if model.path is not None else "can be cut"
        whole = report.model
        kept = f"{model.heads} of {whole.heads} heads"
        if whole.kv_heads != whole.heads:
            kept += f" and {model.kv_heads} of {whole.kv_heads} key/value heads"
        lines = [
            f"Parameters: {before:,} to {model.parameters:,} (−{share:.1%}); every layer {verb} to "
            f"{kept}"
        ]
        if model.zeroed:
            stay = "removed head stays" if len(model.zeroed) == 1 else "removed heads stay"
            lines[0] += f", {len(model.zeroed)} {stay} as zeros"
    else:
        lines = [f"Parameters: {before:,}, nothing got smaller: {model.note}"]
    if model.form == "cut" and model.note:
        lines.append(f"Note: {model.note}")
    if model.path is not None:
        kind = "cut" if model.form == "cut" else "masked, with zeroed output rows"
        lines.append(
            f"Written: {model.path} ({kind}; {model.architecture}); its outputs equal those of "
            f"the whole model with these heads off (largest difference {model.difference:.1g} in "
            f"{report.model.dtype})"
        )
    return lines
