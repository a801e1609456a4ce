"""What a scan is asked for, beside the texts and the removals."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.engine.effects import Mode, Positions
from attnviz.errors import UsageError

__all__ = ["ScanOptions"]


@dataclass(frozen=True)
class ScanOptions:
    """The choices that decide the numbers.

    mode: what stands in for a removed head.
    positions: which predictions count. ``last``: of what follows the text; and the loss of its
        last token.
    pair: token ids of answer and foil for ``logit_diff``, or None.
    per_position: with ``mean``, a mean for each position apart instead of one over all.
    draws: with ``resample``, how many other texts stand in for each text.
    seed: of draws and of the control's directions.
    control: instead of each removal, take off a random direction of equal norm.
    token_losses: whether the loss of each token is kept.
    max_memory: bytes that a scan may hold; None for a share of what is free.
    Raises UsageError for numbers that make no sense.
    """

    mode: Mode = "zero"
    positions: Positions = "all"
    pair: tuple[int, int] | None = None
    per_position: bool = False
    draws: int = 1
    seed: int = 0
    control: bool = False
    token_losses: bool = False
    max_memory: int | None = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UsageError(f"expected at least 1 draw, got {self.draws}")
        if self.seed < 0:
            raise UsageError(f"the seed must be 0 or more, got {self.seed}")
        if self.max_memory is not None and self.max_memory < 1:
            raise UsageError(f"expected memory for the scan, got {self.max_memory} bytes")
