"""The answer of ``attnviz rollout``: attention through all layers beside that of the last one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import DIM, Block, flow, stack, trimmed
from attnviz.draw.heatmap import heatmap
from attnviz.draw.labels import token_labels, visible
from attnviz.draw.legend import legend
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import model_parts, quoted_line
from attnviz.draw.theme import Theme
from attnviz.measures.records import Rollout

__all__ = ["ROLLOUT_EXPLAINED", "rollout_screen", "rollout_titles"]

_GAP = 3
_LEAST_CELL = 3
_LONGEST = 100

ROLLOUT_EXPLAINED = (
    "How to read this: a row is an output token, a column an input token, and the cell is the "
    "share of the output that comes from there; a row sums to one.",
    "rollout: in each layer half of a token is taken to come from where its heads look on "
    "average, and half from itself, past them (the residual stream). The layers are multiplied, "
    "so that what a token has from others counts on through all of them (Abnar & Zuidema 2020).",
    "last layer: the same rows of the last layer alone, without what was mixed before: its keys "
    "are places, no longer words, because every layer below has already moved words around.",
    "limits: rollout knows where heads look, not what they move; it takes all heads for equal and "
    "forgets the feed-forward layers. It is a picture of flow, not a proof of influence.",
)
"""A reading for newcomers."""


def rollout_titles(rollout: Rollout) -> tuple[str, str]:
    """What the two maps are."""
    layers = f"{rollout.layers} layer{'s' * (rollout.layers != 1)}"
    return f"rollout through {layers}", "last layer, mean of its heads"


def rollout_screen(
    rollout: Rollout,
    text: str,
    theme: Theme,
    room: int,
    values: bool = False,
    explained: bool = False,
    target: str | None = None,
) -> Block:
    """Both maps, side by side where they can be read so, in ``room`` columns.

    values: write the shares in the cells. explained: add a reading for newcomers.
    target: what the decoder read where it was followed.
    """
    parts = [_provenance(rollout, text, target, room, theme)]
    notes = [
        paragraph(visible(note, theme.encoding), room, theme, DIM) for note in rollout.model.notes
    ]
    labels = token_labels(rollout.tokens, theme.encoding)
    axes = Axes(labels, labels, rollout.causal)
    width = _map_room(axes, room, values)
    maps = [
        heatmap(matrix, axes, theme, wrapped([(title, True)], width, theme), width, values)
        for title, matrix in zip(rollout_titles(rollout), _matrices(rollout), strict=True)
    ]
    parts += [stack(notes, gap=0), flow(maps, room, _GAP), legend(theme, room, values)]
    if explained:
        said = [paragraph(line, min(room, _LONGEST), theme) for line in ROLLOUT_EXPLAINED]
        parts.append(stack(said, gap=0))
    return trimmed(stack(part for part in parts if part.lines))


def _matrices(rollout: Rollout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return rollout.matrix, rollout.raw


def _map_room(axes: Axes, room: int, values: bool) -> int:
    """Half of the room where cells stay wide enough or are too many anyway, else all of it."""
    half = (room - _GAP) // 2
    if axes.cell_width(half, values) >= _LEAST_CELL or axes.cell_width(room, values) < 2:
        return half
    return room


def _provenance(rollout: Rollout, text: str, target: str | None, room: int, theme: Theme) -> Block:
    kind = [] if rollout.kind == "self" else [(f"{rollout.kind} attention", False)]
    seed = rollout.model.seed
    said = [] if seed is None else [(f"seed {seed}", False)]
    size = (f"{len(rollout.tokens)} tokens", False)
    lines = wrapped([*model_parts(rollout.model, theme), *kind, size, *said], room, theme)
    lines.append(quoted_line("text", text, room, theme))
    if target is not None:
        lines.append(quoted_line("target", target, room, theme))
    return Block(tuple(lines), room)
