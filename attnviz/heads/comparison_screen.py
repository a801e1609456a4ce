"""The screen of ``attnviz heads`` where one head is seen in several kinds of attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attnviz.draw.blocks import DIM, Block, Line, flow, stack, widest
from attnviz.draw.heatmap import values_fit
from attnviz.draw.kind_words import variant_names
from attnviz.draw.labels import visible
from attnviz.draw.legend import legend
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import (
    model_parts,
    name_parts,
    quoted_line,
    score_parts,
    share,
    size_words,
)
from attnviz.draw.theme import Theme
from attnviz.heads.explain import explain
from attnviz.heads.full_maps import Panel, full_maps, record_axes
from attnviz.heads.overview import overview
from attnviz.heads.screen import View, few_heads, hint_lines
from attnviz.heads.token_view import token_view
from attnviz.heads.top_pairs import top_pairs
from attnviz.records import HeadsComparison, HeadsReport

__all__ = ["compared_heads", "comparison_screen"]

_LEAST_CELL = {False: 2, True: 4}
"""The narrowest cells with which maps stay side by side: without and with values."""

_LINES = 40
_BETWEEN_HEADS = 8

_MOVED = (
    "moved: the share of its attention that a query has on other keys than in the first map, mean "
    "over queries (total variation distance)."
)


def comparison_screen(
    comparison: HeadsComparison, views: Sequence[View], theme: Theme, width: int
) -> Block:
    """Everything that the runs show, in ``width`` columns; ``views`` has one for each report.

    Each head's maps stand side by side. Tables, words and the small maps of all heads stand below
    each other, a part for each report.
    """
    view = views[0]
    _, names = variant_names([report.record for report in comparison.reports], theme.ascii)
    parts = [_provenance(comparison, views, names, theme, width)]
    notes = [
        paragraph(visible(note, theme.encoding), width, theme, DIM)
        for note in comparison.first.record.model.notes
    ]
    parts += [stack(notes, gap=0)] if notes else []
    if view.token is not None or view.top is not None:
        for report, seen, name in zip(comparison.reports, views, names, strict=True):
            parts.append(_headed(name, _listed(report, seen, theme, width), theme, width))
    else:
        if not _whole(comparison):
            for report, name in zip(comparison.reports, names, strict=True):
                maps = overview(report, theme, width, _LINES // len(names))
                parts.append(_headed(name, maps, theme, width))
        groups = [
            _side_by_side(comparison, place, names, view, theme, width)
            for place in compared_heads(comparison)
        ]
        parts.append(flow(groups, width, _BETWEEN_HEADS))
    axes = record_axes(comparison.first.record, theme)
    if view.top is None:
        parts.append(legend(theme, width, view.values and values_fit(axes, width)))
    if view.explain:
        first, *others = comparison.reports
        reading = [explain(first, theme, width, others)]
        if any(moved is not None for moved in comparison.moved):
            reading.append(paragraph(_MOVED, min(width, 100), theme))
        parts.append(stack(reading, gap=0))
    if view.hints:
        parts.append(hint_lines(view.hints, width, theme))
    return stack(parts)


def compared_heads(comparison: HeadsComparison) -> tuple[tuple[int, int], ...]:
    """The heads (layer, head) whose full maps are shown: all if chosen or few, else the telling.

    A head is telling where it is in any of the reports.
    """
    if _whole(comparison):
        return tuple((entry.layer, entry.head) for entry in comparison.first.heads)
    ranked = zip(*(report.telling for report in comparison.reports), strict=False)
    return tuple(dict.fromkeys(place for places in ranked for place in places))


def _whole(comparison: HeadsComparison) -> bool:
    return comparison.first.selected or all(map(few_heads, comparison.reports))


def _provenance(
    comparison: HeadsComparison,
    views: Sequence[View],
    names: Sequence[Sequence[str]],
    theme: Theme,
    width: int,
) -> Block:
    records = [report.record for report in comparison.reports]
    info = records[0].model
    shared, _ = variant_names(records, theme.ascii)
    sizes = dict.fromkeys(size_words(record) for record in records)
    parts = [
        *model_parts(info, theme),
        *((word, False) for word in (*shared, *(sizes if len(sizes) == 1 else ()))),
        ("no seed used" if info.seed is None else f"seed {info.seed}", False),
    ]
    lines = wrapped(parts, width, theme)
    lines.append(quoted_line("text", views[0].text, width, theme))
    targets = dict.fromkeys(view.target for view in views if view.target is not None)
    lines += [quoted_line("target", target, width, theme) for target in targets]
    beside = []
    for record, name in zip(records, names, strict=True):
        size = f" ({size_words(record)})" if len(sizes) > 1 else ""
        beside.append((" and ".join(name) + size, False))
    lines += wrapped([(f"side by side: {beside[0][0]}", False), *beside[1:]], width, theme)
    return Block(tuple(lines), width)


def _headed(name: Sequence[str], content: Block, theme: Theme, width: int) -> Block:
    title = wrapped([(word, True) for word in name], width, theme)
    return stack([Block(tuple(title), width), content])


def _listed(report: HeadsReport, view: View, theme: Theme, width: int) -> Block:
    if view.token is not None:
        return token_view(report, *view.token, theme, width, view.values)
    return top_pairs(report, view.top or 1, theme, width)


def _side_by_side(
    comparison: HeadsComparison,
    place: tuple[int, int],
    names: Sequence[Sequence[str]],
    view: View,
    theme: Theme,
    width: int,
) -> Block:
    """One head's maps under its name."""
    panels = []
    for index in comparison.kept_by(*place):
        report = comparison.reports[index]
        title = partial(_title, comparison, index, place, names[index], theme=theme)
        panels.append(Panel(report.weights(*place), record_axes(report.record, theme), title))
    named = name_parts(comparison.first, comparison.first.scores(*place))
    maps = full_maps(panels, theme, width, view.values, _LEAST_CELL[view.values])
    head = tuple(wrapped(named, width, theme))
    return stack([Block(head, widest(head)), maps], gap=0)


def _title(
    comparison: HeadsComparison,
    index: int,
    place: tuple[int, int],
    name: Sequence[str],
    room: int,
    theme: Theme,
) -> list[Line]:
    """What the map shows: the kind of attention, the scores, and what it moved."""
    report = comparison.reports[index]
    scores = score_parts(report, report.scores(*place))
    moved = comparison.moved[index]
    if moved is not None:
        scores.append((f"moved {share(moved[place])}", False))
    return [
        *wrapped([(word, True) for word in name], room, theme),
        *wrapped([(text, False) for text, _ in scores], room, theme),
    ]
