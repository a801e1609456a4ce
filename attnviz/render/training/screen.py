"""The whole answer of ``attnviz train``, put together from its views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from attnviz.learning import CurvePoint, TrainedModel
from attnviz.render.blocks import DIM, Block, stack, text_line
from attnviz.render.labels import visible, width
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme
from attnviz.render.training.curve import Curve, Mark, curve_plot
from attnviz.render.training.explain import EXPLANATION
from attnviz.render.training.facts import provenance, result_rows
from attnviz.render.training.heads import best_heads

__all__ = ["train_screen"]


def train_screen(
    result: TrainedModel, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [
        provenance(result, theme, room),
        _curve(result, theme, room),
        _rows(result_rows(result, theme), theme, room),
        best_heads(result, theme, room),
    ]
    if explain:
        parts.append(stack([paragraph(line, room, theme) for line in EXPLANATION], gap=0))
    if hints:
        safe = [visible(hint, theme.encoding) for hint in hints]
        parts.append(stack([paragraph(hint, room, theme, DIM) for hint in safe], gap=0))
    return stack(parts)


def _curve(result: TrainedModel, theme: Theme, room: int) -> Block:
    points = result.points
    measured = [(one.tokens, one.valid_loss) for one in points if one.valid_loss is not None]
    curves = [
        Curve("training loss, mean of the batches", [(one.tokens, one.loss) for one in points]),
        Curve(
            f"validation loss, part of the text in windows of {result.curve_windows:,} tokens",
            measured,
            marked=True,
        ),
    ]
    return curve_plot(curves, theme, room, across="tokens read", marks=_phases(points))


def _phases(points: Sequence[CurvePoint]) -> list[Mark]:
    """Where each phase but the first begins."""
    return [
        Mark(before.tokens, f"phase {after.phase}")
        for before, after in pairwise(points)
        if before.phase != after.phase
    ]


def _rows(rows: Sequence[tuple[str, Sequence[str]]], theme: Theme, room: int) -> Block:
    """Names at the left, what they stand for beside them, broken where a line is full."""
    lead = max(width(name) for name, _ in rows) + 2
    lines = []
    for name, words in rows:
        parts = [(part, False) for part in words]
        found = wrapped(parts, max(room - lead, 1), theme)
        for number, line in enumerate(found):
            lines.append([*text_line((("" if number else name).ljust(lead), DIM)), *line])
    return Block(tuple(lines), room)
