"""The whole answer of ``attnviz scaling``, put together from its views."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.render.blocks import DIM, Block, flow, stack, trimmed
from attnviz.render.labels import visible
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.scaling.case import case_block
from attnviz.render.scaling.explain import explanation
from attnviz.render.scaling.facts import bars_legend, scaling_provenance
from attnviz.render.scaling.overview import entropy_gain, overview
from attnviz.render.scaling.seen import seen
from attnviz.render.theme import Theme
from attnviz.scaling import ScalingCase, ScalingReport

__all__ = ["scaling_screen"]

_GAP = 3
_BESIDE = 78
"""Columns that a case needs to be beside another one."""

_LONGEST = 100
_MOST_IN_FULL = 4
_EXTREMES = "In full: where the scale gives back the most entropy, and where the least"


def scaling_screen(
    report: ScalingReport, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns.

    Of a model with many layers or heads only the two between which the scale's effect is most
    different are drawn in full.
    """
    parts = [scaling_provenance(report, theme, room)]
    notes = [paragraph(visible(note, theme.encoding), room, theme, DIM) for note in report.notes]
    parts.append(stack(notes, gap=0))
    if report.model is not None and len(report.cases) > 1:
        parts.append(overview(report, theme, room))
    drawn = _in_full(report)
    if len(drawn) < len(report.cases):
        parts.append(Block(tuple(wrapped([(_EXTREMES, False)], room, theme)), room))
    parts.append(_cases(report, drawn, theme, room))
    words = min(room, _LONGEST)
    parts.append(paragraph(bars_legend(report, theme), words, theme, DIM))
    parts.append(_paragraphs(seen(report), theme, words))
    if explain:
        parts.append(_paragraphs(explanation(report), theme, words))
    if hints:
        parts.append(Block(tuple(wrapped([(hint, False) for hint in hints], room, theme)), room))
    return trimmed(stack(part for part in parts if part.lines))


def _cases(report: ScalingReport, drawn: Sequence[ScalingCase], theme: Theme, room: int) -> Block:
    beside = 2 if room >= 2 * _BESIDE + _GAP else 1
    width = (room + _GAP) // beside - _GAP
    blocks = [case_block(report, case, theme, width) for case in drawn]
    return flow(blocks, room, _GAP)


def _in_full(report: ScalingReport) -> Sequence[ScalingCase]:
    """The cases that are drawn: all, or of many the two extremes."""
    cases = report.cases
    if report.model is None or len(cases) <= _MOST_IN_FULL:
        return cases
    ranked = sorted(cases, key=entropy_gain)
    return (ranked[-1], ranked[0])


def _paragraphs(texts: Sequence[str], theme: Theme, room: int) -> Block:
    return stack([paragraph(_safe(text, theme), room, theme) for text in texts], gap=0)


def _safe(text: str, theme: Theme) -> str:
    if theme.ascii:
        text = text.replace("×", "x").replace("√d_k", "sqrt(d_k)")
    return visible(text, theme.encoding)
