"""Compute how many changes to a text fit into memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.models.memory import byte_text, free_memory

if TYPE_CHECKING:  # torch only where needed
    import torch

_SHARE = 0.5
"""The share of the free memory that a scan uses by default."""

_MARGIN = 1.25
"""The factor for memory that kernels use inside, and that an allocator cannot use."""


@dataclass(frozen=True)
class Room:
    """The memory that a scan needs and may use.

    limit: the most bytes; None if the free memory is not known. row: the bytes of one row of the
        batch. fixed: the bytes that a scan needs in addition to the rows.
    """

    limit: int | None
    row: int
    fixed: int

    @property
    def ablations(self) -> int | None:
        """Return how many ablations fit in memory beside the unchanged run; None for any number."""
        return None if self.limit is None else (self.limit - self.fixed) // self.row - 1

    def needed(self, ablations: int) -> int:
        """Return how many bytes a pass with this number of ablations needs."""
        return self.fixed + self.row * (1 + ablations)


def room_for(
    row: int, fixed: int, device: torch.device | None, max_memory: int | None, tokens: int
) -> Room:
    """Return the memory that a scan needs and may use.

    row: the measured bytes of a row. fixed: the bytes needed in addition to the rows.
    device: None for the CPU. tokens: of the text, for the message.
    max_memory: the limit in bytes; None uses a share of the free memory.
    Raises UsageError if not even one ablation fits.
    """
    free = free_memory(device)
    limit = max_memory if max_memory is not None else free and int(free * _SHARE)
    room = Room(limit, max(1, int(row * _MARGIN)), fixed)
    if room.ablations is not None and room.ablations < 1:
        where = "--max-memory allows" if max_memory is not None else f"{device or 'cpu'} can spare"
        raise UsageError(
            f"one more run over {tokens:,} tokens takes {byte_text(room.needed(1))}, "
            f"{where} {byte_text(limit or 0)}: shorten the text or allow more"
        )
    return room
