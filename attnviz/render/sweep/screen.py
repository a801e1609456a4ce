"""The whole answer of ``attnviz sweep``, put together from its views."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.render.blocks import DIM, Block, stack, trimmed
from attnviz.render.labels import visible
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.sweep.curves import curves_by_heads, mean_curves
from attnviz.render.sweep.explain import explanation
from attnviz.render.sweep.facts import sweep_provenance
from attnviz.render.sweep.patterns import patterns_found
from attnviz.render.sweep.results import results
from attnviz.render.sweep.seen import seen
from attnviz.render.theme import Theme
from attnviz.sweeping import SweepReport

__all__ = ["sweep_screen"]

_LONGEST = 100


def sweep_screen(
    report: SweepReport, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns; at least one model is trained."""
    words = min(room, _LONGEST)
    notes = [paragraph(visible(note, theme.encoding), words, theme, DIM) for note in report.notes]
    parts = [
        sweep_provenance(report, theme, room),
        stack(notes, gap=0),
        mean_curves(curves_by_heads(report), theme, room),
        results(report, theme, room),
        patterns_found(report, theme, room),
        _paragraphs(seen(report), theme, words),
    ]
    if explain:
        parts.append(_paragraphs(explanation(report), theme, words))
    if hints:
        parts.append(Block(tuple(wrapped([(hint, False) for hint in hints], room, theme)), room))
    return trimmed(stack(part for part in parts if part.lines))


def _paragraphs(texts: Sequence[str], theme: Theme, room: int) -> Block:
    plain = [text.replace("±", "+-") if theme.ascii else text for text in texts]
    return stack([paragraph(visible(text, theme.encoding), room, theme) for text in plain], gap=0)
