"""The document of ``attnviz diff``: the grid of changes, the heads that changed, two maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.palette import STEPS
from attnviz.draw.provenance import notes_group
from attnviz.draw.scale import signed_limit
from attnviz.draw.signed import signed_scale
from attnviz.inspect.diff.records import ChangedMaps, DiffReport, HeadChange
from attnviz.inspect.diff.words import (
    EXACT,
    about,
    amount,
    did_and_does,
    earliest,
    effect_words,
    explanation,
    finding,
    heading,
    move_words,
    nats,
    pair_words,
    prediction_words,
    tested,
)
from attnviz.records import Tokens

if TYPE_CHECKING:
    from attnviz.draw.page.data import Page

_GAP = 3
_CELL = 6
"""Columns of a cell with a number."""

_LEAD = 7
_BARS = "the larger"
"""What the bars show: the larger of JS, as a share of ln 2, and output; it ranks the heads."""

_LEAST_ROWS = 3
_AROUND = 11
"""Lines of titles, keys and blanks around the table and the maps."""

_LEAST_MAP, _MOST_CELLS, _NAMES = 12, 40, 14
"""Lines of a map on a first screen, columns of its cells, and columns for its tokens."""


def diff_document(report: DiffReport) -> doc.Document:
    """Return the document of a comparison."""
    facts: list[doc.Part] = [
        doc.Facts([(words, False)], name, _LEAD) for name, words in about(report)
    ]
    tokens = report.example.queries if report.example else Tokens((), (), ())
    every = [head_table(report, report.changes, [("Every head", True)])] if report.changes else []
    cause = earliest(report)
    return doc.Document(
        name=f"heads of {report.a.name} and {report.b.name}",
        title=f"{report.a.name} and {report.b.name}",
        groups=[
            doc.Group(facts),
            notes_group(report.notes, tokens),
            doc.Group([*_predicted(report), *([doc.Note(cause)] if cause else [])]),
            doc.Group(_grids(report), beside=doc.Beside(0, _GAP)),
            doc.Group(_ranked(report)),
            doc.Group(example_maps(report, report.example) if report.example else []),
            doc.Group(every, full=True),
        ],
        explain=explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=heading(report),
        quoted="",
        finding=finding(report),
        first=partial(_first, report),
        page=partial(_page, report, report.example) if report.example else None,
    )


def _page(report: DiffReport, example: ChangedMaps) -> Page:
    from attnviz.inspect.diff.page import diff_page  # few reports are saved as a page

    return diff_page(report, example)


def _hints(report: DiffReport) -> list[str]:
    """Return the options to try next on the command line."""
    hints = []
    if not report.importance and report.predictions is not None:
        hints.append("--importance: do the changes matter?")
    if report.source.endswith("built-in texts"):
        hints.append("--texts FILE your data")
    if not report.matched and not report.saved and report.unmatched_a:
        hints.append("--match")
    return [*hints, "--explain"]


def _predicted(report: DiffReport) -> list[doc.Part]:
    """Return the comparison of the models' predictions; empty if there is none."""
    words = prediction_words(report)
    return [doc.Facts([(text, False) for text in words])] if words else []


# The grids -----------------------------------------------------------------------------------


def _grids(report: DiffReport) -> list[doc.HeadGrid]:
    return [grid for grid in (js_grid(report), output_grid(report)) if grid is not None]


def js_grid(report: DiffReport) -> doc.HeadGrid | None:
    """Return a grid of A's heads with the divergence of each from its partner in B.

    For a saved result it is the change of the head's score. Changed heads are shaded; None for
    fewer than two heads.
    """
    what, shaded = "JS divergence, nats", tested(report, output=False)
    values = {change.place: change.js * math.log(2) for change in report.changes}
    if report.saved:
        what = "Δ loss increase" if report.importance else "Δ score"
        values = {change.place: change.size for change in report.changes}
    clear = {change.place for change in report.changes if change.changed}
    return _grid(report, values, clear, what, shaded)


def output_grid(report: DiffReport) -> doc.HeadGrid | None:
    """Return a grid of how far each head's output changed; None if outputs were not compared."""
    values = {change.place: change.output for change in report.changes}
    clear = {change.place for change in report.changes if change.output_changed}
    known = all(map(math.isfinite, values.values()))
    shaded = tested(report, output=True)
    return _grid(report, values, clear, "Output, cosine distance", shaded) if known else None


def _grid(
    report: DiffReport,
    values: dict[tuple[int, int], float],
    clear: set[tuple[int, int]],
    title: str,
    shaded: str,
) -> doc.HeadGrid | None:
    if len(values) < 2:
        return None
    scale = NumberScale.over((each for each in values.values() if each > EXACT), signed=False)
    layers = sorted({layer for layer, _ in values})
    heads = sorted({head for _, head in values})
    room = next((room for room in (4, 5, 6) if scale.fitted(scale.limit, room)), 6)
    cells = {}
    for (layer, head), value in values.items():
        shown = math.isfinite(value)
        root = math.sqrt(value / scale.limit) if shown and scale.limit > 0 else 0.0
        coloured = (layer, head) in clear
        tint = doc.Tint(round(root * (STEPS - 1)), "") if coloured else None
        text = (scale.fitted(value, room) or "") if shown else "n/m"
        tip = f"{report.head_name((layer, head))}: {value:.4g}"
        place = layers.index(layer), heads.index(head)
        cells[place] = doc.Cell(
            root if coloured else 0.0, tint, text, tip=tip, values={"change": value}
        )
    base = report.index_base
    return doc.HeadGrid(
        [f"L{layer + base}" for layer in layers],
        [f"H{head + base}" for head in heads],
        cells,
        [(title + scale.times, True), (shaded, False)],
    )


# The heads -----------------------------------------------------------------------------------


def _ranked(report: DiffReport) -> list[doc.Part]:
    """Return the table of the heads that changed most; empty if nothing changed."""
    if not report.changes or report.ranked[0].size <= EXACT:
        return []
    clear = any(change.differs for change in report.changes)
    most = "Heads that changed most: what they did and do now" if clear else "Largest differences"
    return [head_table(report, report.ranked[: report.top], [(most, True)])]


def head_table(
    report: DiffReport, changes: Sequence[HeadChange], title: doc.Words = ()
) -> doc.Table:
    """Return a table with a row for each head: divergence, interval, output, its two labels.

    changes: the heads to show, in this order. title: of the table.
    """
    maps = not report.saved
    outputs = any(math.isfinite(change.output) for change in report.changes)
    columns = [doc.Column("", right=False)]
    if maps:
        columns += [doc.Column("JS, nats")]
    effects = report.importance and maps
    columns += [doc.Column("loss increase")] if effects else []
    columns += [doc.Column("output")] if outputs and not effects else []
    tests = f" (*: FDR 5%, {counted(report.family, 'test')})" if report.family else ""
    columns += [doc.Column(f"label in A → in B{tests}", right=False)]
    columns += [doc.Column("output")] if outputs and effects else []
    if maps:
        columns += [doc.Column("95% interval of JS"), doc.Column("no sink")]
    limit = max((change.size for change in report.changes), default=0.0)
    if not any(change.differs for change in report.changes):
        limit = max(limit, 1.0)  # no bar is full where nothing changed
    rows = []
    for change in changes:
        cells = [report.pair_name(change), *[nats(change.js)] * maps]
        ends = "" if change.ends is None else f"[{', '.join(map(nats, change.ends))}]"
        cells += [effect_words(change)] if effects else []
        cells += [amount(change.output)] if outputs and not effects else []
        moves = move_words(change) if change.a.label != change.b.label else ""
        cells += [did_and_does(change) + (f" ({moves})" if moves else "")]
        cells += [amount(change.output)] if outputs and effects else []
        cells += [ends, nats(change.no_sink)] if maps else []
        tone: doc.Tone = "plain" if change.differs else "faint"
        rows.append(doc.Row(cells, (change.size, limit), tone=tone))
    return doc.Table(columns, rows, title, ranked=True, bars=_BARS if outputs and maps else "")


# Maps ----------------------------------------------------------------------------------------


def example_maps(report: DiffReport, example: ChangedMaps, lines: int = 0) -> list[doc.Part]:
    """Return three maps of one head over the same text: in A, in B, and B minus A.

    example: the maps of that head. lines: the most lines of a map; 0 for the default of
        ``doc.Maps``.
    """
    change = example.change
    named, other = report.head_name(change.place), report.head_name(change.other)
    apart = example.b - example.a
    limit = signed_limit(apart)
    shown = [
        doc.Map(f"{named} in A", example.a, example.queries, example.keys, causal=report.causal),
        doc.Map(f"{other} in B", example.b, example.queries, example.keys, causal=report.causal),
    ]
    pair = report.pair_name(change)
    turned = doc.Map(
        f"{pair}, B - A", apart, example.queries, example.keys, causal=report.causal, limit=limit
    )
    title: doc.Words = [(f"{pair} over text {example.text + 1}, where it changed most", True)]
    return [
        doc.Maps(shown, title, lines=lines, across=2),
        doc.Maps(
            [turned],
            [("The difference", True)],
            lines=lines,
            scale=signed_scale(NumberScale(limit), "B - A", "B - A"),
        ),
    ]


# The first screen ----------------------------------------------------------------------------


def _first(report: DiffReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: predictions, grids, heads, and maps if they fit."""
    told = [*pair_words(report), earliest(report)]
    top = [*_predicted(report), *(doc.Note(note) for note in told if 0 < len(note) <= columns)]
    grids = _grids(report)
    if len(grids) == 2 and sum(map(_grid_width, grids)) + _GAP > columns:
        grids[1] = grids[1]._replace(title=grids[1].title[:1])
    if len(grids) == 2 and sum(map(_grid_width, grids)) + _GAP > columns:
        grids.pop()
    shown = [change for change in report.ranked if change.differs] or report.ranked[: report.top]
    hidden = len(report.changes) - len(shown)
    table = head_table(report, shown)._replace(least=_LEAST_ROWS, hidden=hidden)
    tables = [table] if shown and shown[0].size > EXACT else []
    groups = [doc.Group(top), doc.Group(grids, beside=doc.Beside(0, _GAP)), doc.Group(tables)]
    tall = len(grids[0].rows) + 2 if grids else 0
    maps = _maps(report, columns, lines - len(top) - tall - _LEAST_ROWS - _AROUND)
    return [*groups, *([maps] if maps is not None else [])]


def _grid_width(grid: doc.HeadGrid) -> int:
    title = sum(len(text) for text, *_ in grid.title) + 3 * (len(grid.title) - 1)
    return max(_CELL * len(grid.columns) + 3, title)


def _maps(report: DiffReport, columns: int, lines: int) -> doc.Group | None:
    """Return the maps of the head that changed most; None if they do not fit."""
    example = report.example
    if example is None:
        return None
    count = min(columns // (min(len(example.queries), _MOST_CELLS) + _NAMES), 3)
    if lines < _LEAST_MAP or count < 2:
        return None
    parts = example_maps(report, example, lines)
    return doc.Group(parts[: count - 1], beside=doc.Beside(0, _GAP), yields=1)
