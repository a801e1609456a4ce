"""The document of ``attnviz diff``: the grid of changes, the heads that changed, two maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.labels import short_name
from attnviz.draw.maps import signed_limit
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.palette import STEPS
from attnviz.draw.provenance import notes_group, shape_words, share
from attnviz.draw.signed import signed_scale
from attnviz.inspect.diff.report import (
    UNMEASURED,
    ChangedMaps,
    DiffReport,
    HeadChange,
    HeadState,
    Move,
)
from attnviz.inspect.picture.on_picture import SCALE, on_picture
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.measures.divergence import js_divergence
from attnviz.measures.registry import label_named
from attnviz.records import Floats, ModelInfo, Tokens

_MARK = "*"  # the mark after a number that went up or down significantly
_EXACT = 1e-12  # bits below which a divergence is only the rounding error of its formula
_LEAST_SCORE = 0.005  # the least change that is seen when rounded
_NAMED = 4  # how many heads of a layer are named
_GAP, _LEAD = 3, 7
_CELL = 6  # columns of a cell with a number
_LEAST_ROWS = 3
_AROUND = 11  # lines of titles, keys and blanks around the table and the maps
_BESIDE = 150  # columns from which on three maps with their scales stand beside each other
_LEAST_MAP, _MOST_CELLS, _NAMES = 12, 40, 14  # a map's lines, columns of cells and of tokens


def document(report: DiffReport) -> doc.Document:
    """Return the document of a comparison."""
    example, cause = report.example, _earliest(report)
    size = f"{counted(report.texts, report.unit)}, {report.tokens:,} tokens"
    measured = f"measured with both models on the same {report.unit}s: {size}."
    if report.saved:
        measured = "scores that A saved are compared with those of B, of today."
    clear = any(change.differs for change in report.changes)
    most = "Heads that changed most: what they did and do now" if clear else "Largest differences"
    ranked = [head_table(report, report.ranked[: report.top], [(most, True)])]
    every = [head_table(report, report.changes, [("Every head", True)])]
    return doc.Document(
        name=f"heads of {report.a.name} and {report.b.name}",
        title=f"{report.a.name} and {report.b.name}",
        groups=[
            doc.Group([doc.Facts([(words, False)], name, _LEAD) for name, words in _about(report)]),
            notes_group(report.notes, example.queries if example else Tokens((), (), ())),
            doc.Group([*_predicted(report), *([doc.Note(cause)] if cause else [])]),
            doc.Group(_grids(report), beside=doc.Beside(0, _GAP)),
            doc.Group(ranked if report.changes and report.ranked[0].size > _EXACT else []),
            doc.Group(_example_maps(report, example) if example else []),
            doc.Group(every if report.changes else [], full=True),
        ],
        explain=doc.Explanation("diff", measured),
        hints=doc.next_steps(_hints(report)),
        heading=_heading(report),
        finding=finding(report),
        first=partial(_first, report),
    )


def _hints(report: DiffReport) -> list[str]:
    hints = []
    if report.source.endswith("built-in texts"):
        hints.append("--texts FILE: your data")
    if not report.matched and not report.saved and report.unmatched_a:
        hints.append("--match")
    return [*hints, "--explain"]


def _heading(report: DiffReport) -> list[tuple[str, bool]]:
    a, b = short_name(report.a.name), short_name(report.b.name)
    shape = shape_words(report.a)
    if (report.a.layers, report.a.heads) != (report.b.layers, report.b.heads):
        shape += f" → {report.b.layers} × {report.b.heads}"
    facts = [
        "random weights" if report.a.weights == report.b.weights == "random" else "",
        "" if report.kind == "self" else f"{report.kind} attention",
        shape,
        counted(report.texts, report.unit) if report.texts else "",
        f"{report.tokens:,} tokens" if report.tokens else "",
    ]
    both = f"{a}: {report.condition}" if report.condition else f"{a} → {b}"
    return [(both, True), *((fact, False) for fact in facts if fact)]


def _about(report: DiffReport) -> Iterator[tuple[str, str]]:
    yield "A", _model(report.a)
    yield "B", _model(report.b) + (f" ({report.condition})" if report.condition else "")
    if report.texts:
        source = f" ({report.source})" if report.source else ""
        stride = f", one query in {report.stride}" if report.stride > 1 else ""
        size = f"{counted(report.texts, report.unit)}, {report.tokens:,} tokens"
        yield "over", f"{size}{source}{stride}"
    if report.noise is not None:
        how = f": twice the largest change rounding causes in any head ({report.noise.words})"
        if report.noise.words == "given":
            how = f" (given as {amount(report.noise.floor.js)} bits); outputs are not tested"
        yield "floor", f"noise floor {_floor(report)}{how}"
        interval = f"the 95% bootstrap interval over {report.unit}s"
        yield "rule", f"changed: {interval} lies above the floor"
        if any(math.isfinite(change.output) for change in report.changes):
            js = "JS divergence, as a fraction of its maximum, ln 2 nats,"
            yield "ranked", f"by the larger of {js} and cosine distance of the output"
    elif report.saved:
        yield "rule", "changed: 95% CIs of a saved score and the new one do not meet"
    if report.family:
        how = f"sign flips over {report.unit}s, Benjamini-Hochberg, 5%"
        yield "signs", f"{_MARK} is significant among {counted(report.family, 'test')} ({how})"
    if pairs := _pairs(report):
        yield "pairs", pairs


def _model(info: ModelInfo) -> str:
    revision = f", revision {info.revision[:12]}" if info.revision else ""
    return f"{info.name}{revision}, {info.weights} weights, {info.dtype}, {shape_words(info)}"


def _floor(report: DiffReport) -> str:
    """Return the floor, such as ``1.9e-05 nats``."""
    return f"{nats(math.nan if report.noise is None else report.noise.floor.js)} nats"


def _pairs(report: DiffReport) -> str:
    """Return a sentence on how heads were paired; empty if one to one by index."""
    left = [
        f"{len(heads)} of {side} without a partner"
        for side, heads in (("A", report.unmatched_a), ("B", report.unmatched_b))
        if heads
    ]
    if report.matched:
        crossed = sum(change.head != change.other for change in report.changes)
        return "; ".join([f"matched by least divergence: {crossed} at another place", *left])
    return "heads paired by index; " + "; ".join(left) if left else ""


def _predicted(report: DiffReport) -> list[doc.Part]:
    apart, alone = report.predictions, report.noise and report.noise.predictions
    if apart is None:
        return []
    shared = "" if apart.outside is None else " over the shared vocabulary"
    facts = [
        f"KL {amount(apart.kl)} ± {amount(apart.kl_error)} nats{shared}",
        f"same prediction {100 * apart.same_top:.1f}% ± {100 * apart.same_top_error:.1f}%",
    ]
    if alone is not None:
        facts.append(f"rounding alone: {amount(alone.kl)}, {100 * alone.same_top:.1f}%")
    return [doc.Facts([(fact, False) for fact in facts])]


# The finding ---------------------------------------------------------------------------------


def finding(report: DiffReport) -> str:
    """Return the finding: in one sentence how many heads changed, and which one most."""
    if report.same:
        return f"{UNMEASURED}."
    total, best = counted(len(report.changes), "head"), report.ranked[0]
    count = sum(change.differs for change in report.changes)
    some = f"All {total}" if count == len(report.changes) > 1 else f"{count} of {total}"
    if report.saved:
        if not count:
            return f"None of the {total} changed: the 95% CIs then and now meet."
        return (
            f"{some} changed (95% CIs do not meet), {report.pair_name(best)} most: "
            f"{did_and_does(best)}."
        )
    if best.size <= _EXACT:
        return f"Nothing changed: all {total} have the same attention and output."
    if report.texts < LEAST_TEXTS:
        few = f"{counted(report.texts, report.unit)}, too few to test a head"
        return f"Largest difference: {_described(report, best)}. {few}."
    if not count:
        return f"None of the {total} changed more than rounding alone would ({_floor(report)})."
    return f"{some} changed by more than rounding, most of all {_described(report, best)}."


def _described(report: DiffReport, change: HeadChange) -> str:
    parts = []
    if change.changed or not change.output > change.js:
        parts.append(f"attention {nats(change.js)} nats apart")
    if change.output > change.js:
        parts.append(f"output {amount(change.output)} by cosine distance")
    if change.output_changed and not change.changed:
        parts.append("attends as before")
    did, _, now = did_and_does(change).partition(" → ")
    does = f": {did} → {now}" if now and not did.endswith(f" {now}") else ""
    return f"{report.pair_name(change)}{does} ({', '.join(parts)})"


def _earliest(report: DiffReport) -> str:
    """Return a sentence on the first layer with changed heads, which later layers depend on."""
    changed = [change for change in report.ranked if change.differs]
    if report.saved or not changed:
        return ""
    layer = min(change.head[0] for change in changed)
    first = [change for change in changed if change.head[0] == layer]
    if len(first) == len(changed) or len(changed) == len(report.changes):
        return ""
    if layer and len(first) == sum(change.head[0] == layer for change in report.changes):
        name = layer + report.index_base
        return f"earliest: all heads of L{name}: theirs, or MLP or output projection of L{name - 1}"
    names = ", ".join(report.pair_name(change) for change in first[:_NAMED])
    more = f" and {len(first) - _NAMED} more" if len(first) > _NAMED else ""
    return f"earliest: {names}{more}; heads of later layers read what it wrote"


# What a head did and does --------------------------------------------------------------------


def did_and_does(change: HeadChange) -> str:
    """Return a head's label in A and in B with scores, such as ``induction .91 → no label``."""
    a, b = change.a, change.b
    if a.label is None and b.label is None:
        return "no label"
    if a.label == b.label and a.label is not None:
        seen = any(move.score == a.label for move in change.moves if _is_seen(move))
        return f"{_state(a)} → {share(b.score)}{_MARK * seen}"
    return f"{_state(a)} → {_state(b)}"


def _state(state: HeadState) -> str:
    if state.label is None:
        return "no label"
    return f"{label_named(state.label).said} {share(state.score)}"


def _labels(change: HeadChange) -> str:
    told = ", ".join(
        f"{label_named(move.score).said} {move.change:+.2f}{_MARK}".replace("0.", ".")
        for move in change.moves
        if _is_seen(move)
    )
    differ = told and change.a.label != change.b.label
    return did_and_does(change) + (f" ({told})" if differ else "")


def _is_seen(move: Move) -> bool:
    """Return whether a change is significant and large enough to be seen when rounded."""
    return move.significant and abs(move.change) >= _LEAST_SCORE


def nats(js: float) -> str:
    """Return a Jensen–Shannon divergence, which is measured in bits, as text in nats."""
    return amount(js * math.log(2))


def amount(value: float) -> str:
    """Return a number ≥ 0 as text: ``.213``, or ``1.9e-05`` if that would round to zero."""
    if math.isnan(value):
        return "n/m"
    if value < _EXACT:
        return "0"
    if value >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.1e}" if value < 0.00095 else f"{value:.{4 if value < 0.0995 else 3}f}"[1:]


def _grids(report: DiffReport) -> list[doc.HeadGrid]:
    """Return grids of how far each head in A is from that in B, the changed ones shaded."""
    if len(report.changes) < 2:
        return []
    changed = [change.changed for change in report.changes]
    if report.saved:
        sizes = [change.size for change in report.changes]
        return [_grid(report, sizes, changed, "Δ score", "shaded: intervals do not meet")]
    js, output = (math.nan, math.nan) if report.noise is None else report.noise.floor
    apart = [change.js * math.log(2) for change in report.changes]
    grids = [_grid(report, apart, changed, "JS divergence, nats", _tested(report, js, nats))]
    outputs = [change.output for change in report.changes]
    if all(map(math.isfinite, outputs)):
        changed = [change.output_changed for change in report.changes]
        tested = _tested(report, output, amount)
        grids.append(_grid(report, outputs, changed, "Output, cosine distance", tested))
    return grids


def _tested(report: DiffReport, floor: float, write: Callable[[float], str]) -> str:
    """Return a remark on which heads of a grid are shaded. write: writes the floor."""
    tested = report.texts >= LEAST_TEXTS and not math.isnan(floor)
    return f"shaded above {write(floor)}" if tested else "not tested"


def _grid(
    report: DiffReport, values: Sequence[float], changed: Sequence[bool], title: str, shaded: str
) -> doc.HeadGrid:
    scale = NumberScale.over((value for value in values if value > _EXACT), signed=False)
    room = next((room for room in (4, 5, 6) if scale.fitted(scale.limit, room)), 6)
    cells = {}
    for change, value, coloured in zip(report.changes, values, changed, strict=True):
        shown = math.isfinite(value)
        root = math.sqrt(value / scale.limit) if shown and scale.limit > 0 else 0.0
        cells[change.head] = doc.Cell(
            root if coloured else 0.0,
            doc.Tint(round(root * (STEPS - 1)), "") if coloured else None,
            (scale.fitted(value, room) or "") if shown else "n/m",
            tip=f"{report.head_name(change.head)}: {value:.4g}",
            values={"change": value},
        )
    words = [(title + scale.times, True), (shaded, False)]
    return doc.head_grid(cells, report.index_base, title=words)


def head_table(
    report: DiffReport, changes: Sequence[HeadChange], title: doc.Words = ()
) -> doc.Table:
    """Return a table with a row for each head: divergence, interval, output, its two labels."""

    def interval(change: HeadChange) -> str:
        return "" if change.ends is None else f"[{', '.join(map(nats, change.ends))}]"

    maps = not report.saved
    outputs = any(math.isfinite(change.output) for change in report.changes)
    output = [doc.ColumnOf[HeadChange]("output", lambda change: amount(change.output))] * outputs
    tests = f" (*: FDR 5%, {counted(report.family, 'test')})" if report.family else ""
    limit = max((change.size for change in report.changes), default=0.0)
    if not any(change.differs for change in report.changes):
        limit = max(limit, 1.0)  # no bar is full where nothing changed
    return doc.table(
        changes,
        doc.ColumnOf("", report.pair_name, right=False),
        *[doc.ColumnOf[HeadChange]("JS, nats", lambda change: nats(change.js))] * maps,
        *output,
        doc.ColumnOf(f"label in A → in B{tests}", _labels, right=False),
        *[doc.ColumnOf("95% CI of JS", interval)] * maps,
        *[doc.ColumnOf[HeadChange]("no sink", lambda change: nats(change.no_sink))] * maps,
        row=lambda change: {
            "bar": (change.size, limit),
            "tone": "plain" if change.differs else "faint",
        },
        title=title,
        ranked=True,
        # the larger of JS, as a fraction of ln 2, and output, which ranks the heads
        bars="ranked by" if outputs and maps else "",
    )


def _on_picture(report: DiffReport, example: ChangedMaps, lines: int = 0) -> doc.Pictures:
    """Return a picture with a head's maps in A and in B, from the query that changed most."""
    change, layout = report.changes[example.most], example.keys.layout
    assert layout is not None
    query = int(js_divergence(example.a, example.b).argmax())
    sides = ((change.head, "A", example.a), (change.other, "B", example.b))
    shown = [
        on_picture(layout, weights[query], f"{report.head_name(head)} in {side}", query=query)
        for head, side, weights in sides
    ]
    title = f"{report.pair_name(change)} on image {example.text + 1}"
    remark = f"from {example.queries.texts[query]}, which changed most"
    return doc.Pictures(shown, [(title, True), (remark, False)], scale=SCALE, lines=lines)


def _example_maps(report: DiffReport, example: ChangedMaps, lines: int = 0) -> list[doc.Part]:
    """Return three maps of a head over one text: in A, in B, and B minus A; two on a picture."""
    if report.of_pictures:
        return [_on_picture(report, example, lines)]
    change, a, b = report.changes[example.most], example.a, example.b
    pair, limit = report.pair_name(change), signed_limit(b - a)

    def drawn(name: str, weights: Floats, limit: float = 0.0) -> doc.Map:
        tokens = example.queries, example.keys
        return doc.Map(name, weights, *tokens, causal=report.causal, limit=limit)

    return [
        doc.Maps(
            [
                drawn(f"{report.head_name(change.head)} in A", a),
                drawn(f"{report.head_name(change.other)} in B", b),
            ],
            [(f"{pair} on text {example.text + 1}, where it changed most", True)],
            lines=lines,
            across=2,
        ),
        doc.Maps(
            [drawn(f"{pair}, B - A", b - a, limit)],
            [("The difference", True)],
            lines=lines,
            scale=signed_scale(NumberScale(limit), "B - A", "B - A"),
        ),
    ]


# The first screen ----------------------------------------------------------------------------


def _first(report: DiffReport, columns: int, lines: int) -> list[doc.Group]:
    told = [doc.Note(note) for note in (_pairs(report), _earliest(report))]
    top = [*_predicted(report), *(note for note in told if 0 < len(note.text) <= columns)]
    grids = _grids(report)
    if len(grids) == 2 and sum(map(_grid_width, grids)) + _GAP > columns:
        grids[1] = grids[1]._replace(title=grids[1].title[:1])
        if sum(map(_grid_width, grids)) + _GAP > columns:
            grids.pop()
    shown = [change for change in report.ranked if change.differs] or report.ranked[: report.top]
    hidden = len(report.changes) - len(shown)
    table = head_table(report, shown)._replace(least=_LEAST_ROWS, hidden=hidden)
    groups = [
        doc.Group(top),
        doc.Group(grids, beside=doc.Beside(0, _GAP)),
        doc.Group([table] if shown and shown[0].size > _EXACT else []),
    ]
    tall = len(grids[0].rows) + 2 if grids else 0
    left = lines - len(top) - tall - _LEAST_ROWS - _AROUND
    if report.example is None or left < _LEAST_MAP:
        return groups
    if report.of_pictures:
        return [*groups, doc.Group([_on_picture(report, report.example, left)], yields=1)]
    across = columns // (min(len(report.example.queries), _MOST_CELLS) + _NAMES)
    maps = _example_maps(report, report.example, left)[: max(min(across, 3) - 1, 0)]
    if columns >= _BESIDE and maps:
        return [*groups, doc.Group(maps, beside=doc.Beside(0, _GAP), yields=1)]
    return [*groups, *(doc.Group([part], yields=at) for at, part in enumerate(maps, start=1))]


def _grid_width(grid: doc.HeadGrid) -> int:
    title = sum(len(text) for text, *_ in grid.title) + 3 * (len(grid.title) - 1)
    return max(_CELL * len(grid.columns) + 3, title)
