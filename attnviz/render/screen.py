"""The whole answer of ``attnviz heads``, put together from its views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment

from attnviz.records import HeadsReport
from attnviz.render.axes import Axes
from attnviz.render.blocks import DIM, Block, flow, stack
from attnviz.render.explain import explain
from attnviz.render.facts import head_title, provenance
from attnviz.render.heatmap import heatmap, heatmap_width
from attnviz.render.labels import token_labels, visible
from attnviz.render.legend import legend
from attnviz.render.overview import overview
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme
from attnviz.render.token_view import Word, token_view
from attnviz.render.top_pairs import top_pairs

__all__ = ["View", "heads_screen"]

_GAP = 3
_CHROME = 7  # lines above and below the maps: provenance, what a cell is, traits, blanks
_LEAST_HEIGHT = 45
_LEAST_TITLE = 30
_FEW_HEADS = 8
_FEW_QUERIES = 16


@dataclass(frozen=True)
class View:
    """What is to be shown of a report.

    text, target: as the user gave them.
    values: write the weights into the cells.
    top: strongest pairs of each head, or None.
    token: the chosen word among the queries and among the keys, or None.
    explain: add a reading for newcomers.
    hints: sentences of advice below everything.
    """

    text: str
    target: str | None = None
    values: bool = False
    top: int | None = None
    token: tuple[Word | None, Word | None] | None = None
    explain: bool = False
    hints: Sequence[str] = ()


def heads_screen(report: HeadsReport, view: View, theme: Theme, width: int, height: int) -> Block:
    """Everything that one run shows, in ``width`` columns.

    ``height`` is the terminal's; the overview fits it where it is at least 45 lines.
    """
    parts = [provenance(report, view.text, view.target, width, theme)]
    notes = [
        paragraph(visible(note, theme.encoding), width, theme, DIM)
        for note in report.record.model.notes
    ]
    if notes:
        parts.append(stack(notes, gap=0))
    if view.token is not None:
        parts.append(token_view(report, *view.token, theme, width, view.values))
    elif view.top is not None:
        parts.append(top_pairs(report, view.top, theme, width))
    elif report.selected or _few(report):
        parts.append(
            _full_maps(report, [(e.layer, e.head) for e in report.heads], view, theme, width)
        )
    else:
        parts.append(overview(report, theme, width, max(height, _LEAST_HEIGHT) - _CHROME))
        title = wrapped([(_telling_title(report), True)], width, theme)
        maps = _full_maps(report, report.telling, view, theme, width)
        parts.append(stack([Block(tuple(title), width), maps]))
    if view.top is None:
        parts.append(legend(theme, width, view.values))
    if view.explain:
        parts.append(explain(report, theme, width))
    if view.hints:
        parts.append(_hints(view.hints, width, theme))
    return stack(parts)


def _telling_title(report: HeadsReport) -> str:
    if report.sorted_by is None:
        return "The most telling heads"
    return f"The first {len(report.telling)} by {report.sorted_by.replace('_', ' ')}"


def _few(report: HeadsReport) -> bool:
    """Whether all heads can be shown in full at once, as a textbook's figure does."""
    return len(report.heads) <= _FEW_HEADS and len(report.record.queries) <= _FEW_QUERIES


def _full_maps(
    report: HeadsReport,
    heads: Sequence[tuple[int, int]],
    view: View,
    theme: Theme,
    width: int,
) -> Block:
    """Full heatmaps, side by side where they can be read so."""
    record = report.record
    axes = Axes(
        token_labels(record.queries, theme.encoding),
        token_labels(record.keys, theme.encoding),
        record.causal,
    )
    room = _comfortable_room(axes, width, len(heads), view.values)
    title_room = max(heatmap_width(axes, room, view.values), min(room, _LEAST_TITLE))
    titles = [head_title(report, report.scores(*head), title_room, theme) for head in heads]
    tallest = max(map(len, titles), default=0)
    maps = [
        heatmap(
            report.weights(*head),
            axes,
            theme,
            [*title, *([] for _ in range(tallest - len(title)))],
            room,
            view.values,
        )
        for head, title in zip(heads, titles, strict=True)
    ]
    return flow(maps, width, _GAP)


def _comfortable_room(axes: Axes, width: int, maps: int, values: bool) -> int:
    """The columns of one map: as many maps side by side as keep cells of four columns."""
    for beside in range(min(maps, 4), 1, -1):
        room = (width + _GAP) // beside - _GAP
        if axes.cell_width(room, values) >= 4:
            return room
    return width


def _hints(hints: Sequence[str], width: int, theme: Theme) -> Block:
    lines = wrapped([(hint, False) for hint in hints], width, theme)
    return Block(tuple([Segment(part.text, DIM) for part in line] for line in lines), width)
