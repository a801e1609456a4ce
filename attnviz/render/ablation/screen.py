"""The whole answer of ``attnviz ablate``, put together from its views."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.ablation import AblationReport
from attnviz.render.ablation.explain import explain_scan
from attnviz.render.ablation.facts import doubts, scan_provenance
from attnviz.render.ablation.overview import map_and_ranking
from attnviz.render.ablation.patterns import patterns
from attnviz.render.ablation.ranking import together
from attnviz.render.ablation.view import AblationView
from attnviz.render.ablation.where import where_it_hurts
from attnviz.render.blocks import DIM, Block, Line, stack, without_trailing_blanks
from attnviz.render.labels import visible
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme

__all__ = ["ablation_screen"]


def ablation_screen(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [scan_provenance(report, view, room, theme)]
    notes = [
        paragraph(visible(note, theme.encoding), room, theme, DIM)
        for note in (*report.model.notes, *report.notes)
    ]
    if notes:
        parts.append(stack(notes, gap=0))
    parts.append(map_and_ranking(report, view, theme, room))
    parts.append(together(report, view, theme, room))
    parts.append(patterns(report, view, theme, room))
    if view.by_token:
        parts.append(where_it_hurts(report, view, theme, room))
    said = [paragraph(text, room, theme) for text in doubts(report, view)]
    parts.append(stack(said, gap=0))
    if view.explain:
        parts.append(explain_scan(report, view, theme, room))
    if view.hints:
        lines = wrapped([(hint, False) for hint in view.hints], room, theme)
        parts.append(Block(tuple(lines), room))
    whole = stack(part for part in parts if part.lines)
    return Block(tuple(map(_trimmed, whole.lines)), room)


def _trimmed(line: Line) -> Line:
    """The line without blanks at its end, also those that end a text."""
    line = without_trailing_blanks(line)
    if line and (line[-1].style is None or line[-1].style.bgcolor is None):
        line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
    return line
