"""The whole answer of ``attnviz heads``, put together from its views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, stack
from attnviz.draw.heatmap import values_fit
from attnviz.draw.labels import visible
from attnviz.draw.legend import legend
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import head_title, provenance
from attnviz.draw.theme import Theme
from attnviz.heads.explain import explain
from attnviz.heads.full_maps import Panel, full_maps, record_axes
from attnviz.heads.overview import overview
from attnviz.heads.token_view import Word, token_view
from attnviz.heads.top_pairs import top_pairs
from attnviz.records import HeadsReport

__all__ = ["View", "few_heads", "heads_screen", "hint_lines"]

_CHROME = 7  # lines above and below the maps: provenance, what a cell is, traits, blanks
_LEAST_HEIGHT = 45
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
    elif report.selected or few_heads(report):
        parts.append(
            _full_maps(report, [(e.layer, e.head) for e in report.heads], view, theme, width)
        )
    else:
        parts.append(overview(report, theme, width, max(height, _LEAST_HEIGHT) - _CHROME))
        title = wrapped([(_telling_title(report), True)], width, theme)
        maps = _full_maps(report, report.telling, view, theme, width)
        parts.append(stack([Block(tuple(title), width), maps]))
    axes = record_axes(report.record, theme)
    if view.top is None:
        parts.append(legend(theme, width, view.values and values_fit(axes, width)))
    if view.explain:
        parts.append(explain(report, theme, width))
    if view.hints:
        parts.append(hint_lines(view.hints, width, theme))
    return stack(parts)


def _telling_title(report: HeadsReport) -> str:
    if report.sorted_by is None:
        return "The most telling heads"
    return f"The first {len(report.telling)} by {report.sorted_by.replace('_', ' ')}"


def few_heads(report: HeadsReport) -> bool:
    """Whether all heads can be shown in full at once, as a textbook's figure does."""
    return len(report.heads) <= _FEW_HEADS and len(report.record.queries) <= _FEW_QUERIES


def _full_maps(
    report: HeadsReport,
    heads: Sequence[tuple[int, int]],
    view: View,
    theme: Theme,
    width: int,
) -> Block:
    """Full heatmaps of the heads (layer, head)."""
    axes = record_axes(report.record, theme)

    def panel(layer: int, head: int) -> Panel:
        scores = report.scores(layer, head)
        title = partial(head_title, report, scores, theme=theme)
        return Panel(report.weights(layer, head), axes, title)

    return full_maps([panel(*head) for head in heads], theme, width, view.values)


def hint_lines(hints: Sequence[str], width: int, theme: Theme) -> Block:
    """Advice in one faint line, broken where it is full."""
    lines = wrapped([(hint, False) for hint in hints], width, theme)
    return Block(tuple([Segment(part.text, DIM) for part in line] for line in lines), width)
