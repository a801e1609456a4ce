"""How many changes to a text fit into memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.models.memory import byte_text, free_memory

if TYPE_CHECKING:  # torch only where needed
    import torch

_SHARE = 0.5
"""Of the free memory that a scan takes when it is not told."""

_MARGIN = 1.25
"""For what kernels take inside, and what an allocator cannot use."""


@dataclass(frozen=True)
class Room:
    """What a scan may hold.

    limit: bytes; None where the system does not tell what is free.
    row: bytes of one row of the batch.
    fixed: bytes that a scan needs next to the rows.
    """

    limit: int | None
    row: int
    fixed: int

    @property
    def ablations(self) -> int | None:
        """Return how many ablations fit next to the clean row; None for any number."""
        return None if self.limit is None else (self.limit - self.fixed) // self.row - 1

    def needed(self, ablations: int) -> int:
        """Return the bytes of a pass with so many ablations."""
        return self.fixed + self.row * (1 + ablations)


def room_for(
    row: int, fixed: int, device: torch.device | None, max_memory: int | None, tokens: int
) -> Room:
    """Return the room of a scan, given the measured bytes of a row.

    fixed: bytes that are needed next to the rows. device: None for the host.
    tokens: of the text, to be named where it does not fit.
    Raises UsageError where not even one ablation fits.
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
