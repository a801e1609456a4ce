"""The options of ``prune``, and which of them exclude each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.errors import UsageError
from attnviz.options import IndexBase, Options, Truncation, flag, option, read_size, spelled_heads

Importance = Literal["exact", "gradient"]
"""What heads are ranked by: loss increase when ablated alone, or size of the loss's derivative."""


@dataclass(frozen=True)
class _Removal(Options, panel="What to remove"):
    fraction: float | None = option("SHARE", "Remove this share of all heads, between 0 and 1.")
    heads: tuple[str, ...] = option(
        "HEADS",
        "Remove these heads: L2H5, 3 (in every layer), 2.5, 0-3.1,4, or a label such as induction; "
        "may be repeated.",
        (),
        name="--head",
        short="--heads -H",
        brief="Remove these heads: L2H5, 3 (in every layer), induction.",
    )
    until_loss: float | None = option(
        "RATIO",
        "Remove heads while held-out loss stays below RATIO × the full model's. The held-out texts "
        "also determine when to stop, so expect a higher ratio on other texts.",
        brief="Remove heads while loss stays below RATIO × the original.",
    )
    uniform: bool = flag(
        "Remove the same number of heads from each layer, so that weight matrices can be sliced."
    )
    empty_layers: bool = flag("Let a layer lose all its heads.", name="--allow-empty-layers")
    out: Path | None = option(
        "DIR", "Write the pruned model to DIR, which must not exist yet.", short="-o"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", spelled_heads(self.heads))
        super().__post_init__()
        goals = {
            "--fraction": self.fraction is not None,
            "--head": bool(self.heads),
            "--until-loss": self.until_loss is not None,
        }
        named = [option for option, given in goals.items() if given]
        if len(named) > 1:
            raise UsageError(f"expected one of {', '.join(goals)}, got {' and '.join(named)}")
        if not named and self.out is not None:
            raise UsageError(f"--out writes what is left: say what goes, with {' or '.join(goals)}")
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise UsageError(
                f"--fraction {self.fraction:g} is not a share of the heads: expected a number "
                "between 0 and 1, such as 0.3"
            )
        if self.until_loss is not None and not 1 < self.until_loss < math.inf:
            raise UsageError(
                f"--until-loss {self.until_loss:g} allows no removal: expected a multiple of the "
                "whole model's loss above 1, such as 1.05"
            )
        if self.uniform and self.heads:
            raise UsageError(
                "--uniform removes the same number from each layer, --head names them: give one"
            )


@dataclass(frozen=True)
class _Measure(Options, panel="What to measure"):
    method: Importance = option(
        "METHOD", "Rank by exact Δ loss or gradient (first-order estimate).", "exact"
    )
    rerank: bool = flag("Rank the remaining heads again after each removal.")
    draws: int = option("N", "Random orders to compare with; 0 for none.", 5, min=0, max=1000)
    max_memory: str | None = option("SIZE", "Limit the memory of the measurement, such as 2GB.")
    seed: int = option("N", "Random seed (orders, weights).", 0, min=0)

    @property
    def memory(self) -> int | None:
        """Return the most bytes that measuring may use; None for a share of the free memory."""
        return None if self.max_memory is None else read_size(self.max_memory)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.memory  # a size that cannot be read is refused now
        if self.rerank and self.method == "gradient":
            raise UsageError("--rerank ranks by exact Δ loss: leave out --method gradient")


@dataclass(frozen=True)
class PruneRequest(Truncation, _Removal, _Measure, IndexBase):
    """All options of ``prune``."""

    @property
    def goal(self) -> str:
        """Return the option that says how much is removed, as it is typed on the command line."""
        if self.fraction is not None:
            return f"--fraction {self.fraction:g}"
        if self.until_loss is not None:
            return f"--until-loss {self.until_loss:g}"
        if self.heads:
            counted = f" --index-base {self.index_base}" if self.index_base else ""
            return f"--head {' '.join(self.heads)}{counted}"
        return "all prunable heads"
