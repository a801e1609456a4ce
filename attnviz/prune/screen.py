"""The whole answer of ``attnviz prune``, put together from its views."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment

from attnviz.ablate.provenance import count
from attnviz.draw.blocks import DIM, Block, Line, stack
from attnviz.draw.labels import visible
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import model_parts, quoted_line
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.prune.curve import loss_curve
from attnviz.prune.records import PruneReport, PruneStep

__all__ = ["heads_left", "prune_screen"]

_KEPT_STEP = 110


def heads_left(report: PruneReport, theme: Theme, room: int) -> Block:
    """A row a layer, a cell a head: a block where it stays, its turn where it went."""
    order = {head: turn for turn, head in enumerate(report.removed, start=1)}
    names = [f"L{layer + report.index_base}" for layer in report.layers]
    gutter = max(map(len, names)) + 1
    digits = len(str(len(order)))
    numbered = (digits + 1) * report.model.heads <= room - gutter
    cell = digits + 1 if numbered else 1
    if numbered and 3 * report.model.heads <= room - gutter:
        cell = max(cell, 3)
    across = max(min((room - gutter) // cell, report.model.heads), 1)
    kept = "#" if theme.ascii else "█"
    gone = "." if theme.ascii else "·"
    lines: list[Line] = []
    for first in range(0, report.model.heads, across):
        heads = range(first, min(first + across, report.model.heads))
        lines.append([Segment(_ruler(heads, report.index_base, cell, gutter), DIM)])
        for name, layer in zip(names, report.layers, strict=True):
            line: Line = [Segment(name.ljust(gutter), DIM)]
            for head in heads:
                turn = order.get((layer, head))
                if turn is None:
                    line += _kept(kept, cell, theme)
                else:
                    line.append(Segment((str(turn) if numbered else gone).rjust(cell)))
            lines.append(line)
    meaning = "the number says when a head went" if numbered else f"{gone} went"
    title = wrapped([("Heads left", True), (meaning, False)], room, theme)
    legend: Line = [*_kept(kept, 1, theme), Segment(" stays")]
    return Block((*title, *lines, legend), room)


def _kept(glyph: str, cell: int, theme: Theme) -> Line:
    """A filled cell, with a blank before it where there is room."""
    filled = max(cell - 1, 1)
    mark = theme.cells(_KEPT_STEP, filled) if theme.colour else Segment(glyph * filled)
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


_ROWS = 12


def prune_screen(
    report: PruneReport, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [_provenance(report, theme, room)]
    notes = [
        paragraph(visible(note, theme.encoding), room, theme, DIM)
        for note in (*report.model.notes, *report.notes)
    ]
    parts.append(stack(notes, gap=0))
    if report.steps:
        parts += [loss_curve(report, theme, room), heads_left(report, theme, room)]
        parts.append(_table(report, theme, room))
    said = [*_price(report), *_result(report)]
    parts.append(stack([paragraph(_safe(line, theme), room, theme) for line in said], gap=0))
    if explain:
        parts.append(stack([paragraph(line, room, theme) for line in _EXPLANATION], gap=0))
    if hints:
        lines = wrapped([(hint, False) for hint in hints], room, theme)
        parts.append(Block(tuple(lines), room))
    return stack(part for part in parts if part.lines)


_EXPLANATION = (
    "How to read this: heads are taken out for good, one after another, and the loss (how badly "
    "the text is predicted, in nats per token) is measured after each.",
    "The curve: where it stays low, the heads that went were not needed for this text. The random "
    "order beside it says how much of that is due to the choice.",
    "Cut or masked: an architecture has one head count for all layers. Where every layer can "
    "spare equally many heads, they are cut out of the tensors; else zeros switch them off.",
)


def _safe(text: str, theme: Theme) -> str:
    arrows = text.replace("×", "x").replace("−", "-") if theme.ascii else text
    return visible(arrows, theme.encoding)


def _provenance(report: PruneReport, theme: Theme, room: int) -> Block:
    size = count(report.tokens, "token")
    if report.texts != 1:
        size = f"{count(report.texts, 'text')}, {size}"
    parts = [*model_parts(report.model, theme), (size, False), (f"seed {report.seed}", False)]
    lines = wrapped(parts, room, theme)
    many = report.texts != 1
    content = f"the first: {report.text}" if many else report.text
    lines.append(quoted_line("texts" if many else "text", content, room, theme))
    if report.source:
        words = visible(report.source, theme.encoding)
        words = f"{count(report.texts, 'text')} from {words}" if many else words
        lines += wrapped([(f"       {words}", False)], room, theme)
    rules = [report.wish, f"order by {_METHODS[report.method]}"]
    if report.rerank:
        rules.append("ranked again after each removal")
    if report.uniform:
        rules.append("equally many from every layer")
    rules.append("a layer may lose all" if report.empty_layers else "each layer keeps a head")
    lines += wrapped([(rule, False) for rule in rules], room, theme)
    return Block(tuple(lines), room)


_METHODS = {"exact": "exact loss", "gradient": "gradient, a first-order hint"}


def _table(report: PruneReport, theme: Theme, room: int) -> Block:
    """The removals in order, the middle ones left out where there are many."""
    rows = _spread(report)
    rises = [
        step.loss - report.baseline if math.isfinite(step.loss) else 0.0 for step in report.steps
    ]
    if not theme.colour:  # which alone tells a bar of a fall from one of a rise
        rises = [max(rise, 0.0) for rise in rises]
    limit = max(map(abs, rises))
    chosen = [report.steps[row] for row in rows]
    importance = "gradient" if report.method == "gradient" else "its delta"
    times = "x whole" if theme.ascii else "× whole"
    columns = [
        Column("loss", [f"{step.loss:.4f}" for step in chosen]),
        Column(times, [f"{step.loss / report.baseline:.3f}" for step in chosen]),
        Column("left", [str(step.heads_left) for step in chosen]),
        Column(importance, [f"{step.score:+.4f}" for step in chosen]),
        Column("random", [_random_at(report, step) for step in chosen]),
    ]
    width = len(str(len(report.steps)))
    names = [
        f"{row + 1:>{width}} {report.name(step.layer, step.head)}"
        for row, step in zip(rows, chosen, strict=True)
    ]
    skipped = len(report.steps) - len(rows)
    title = [("Step by step", True)]
    if skipped:
        title.append((f"{skipped} steps between are in --json", False))
    drawn = table(names, [rises[row] for row in rows], limit, columns, theme, room)
    return Block((*wrapped(title, room, theme), *drawn.lines), room)


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
