"""The whole answer of ``attnviz train``, put together from its views."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.learning import TrainedModel
from attnviz.render.blocks import Block, stack
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme

__all__ = ["train_screen"]


def train_screen(
    result: TrainedModel, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [
        paragraph(
            f"Loss: {result.valid_loss:.3f} nats per token, {result.valid_bits_per_byte:.3f} bits "
            "per byte of the validation text",
            room,
            theme,
        )
    ]
    if hints:
        parts.append(Block(tuple(wrapped([(hint, False) for hint in hints], room, theme)), room))
    return stack(parts)
