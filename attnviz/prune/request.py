"""What a person asked to remove, checked: before a model is loaded, and against its shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from attnviz.cli.options import read_bytes
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.prune.order import Bounds, Goal, Importance
from attnviz.records import ModelInfo

__all__ = ["PruneWish", "goal_of"]


@dataclass(frozen=True)
class PruneWish:
    """The options of the same names.

    Raises UsageError for what no model could heed.
    """

    fraction: float | None = None
    heads: tuple[str, ...] = ()
    until_loss: float | None = None
    uniform: bool = False
    empty_layers: bool = False
    method: Importance = "exact"
    rerank: bool = False
    draws: int = 5
    seed: int = 0
    index_base: int = 0
    truncate: bool = False
    max_memory: str | None = None
    out: Path | None = None
    explain: bool = False

    def __post_init__(self) -> None:
        given = {
            "--fraction": self.fraction is not None,
            "--heads": bool(self.heads),
            "--until-loss": self.until_loss is not None,
        }
        named = [option for option, there in given.items() if there]
        if len(named) > 1:
            raise UsageError(f"expected one of {', '.join(given)}, got {' and '.join(named)}")
        if not named and self.out is not None:
            raise UsageError(f"--out writes what is left: say what goes, with {' or '.join(given)}")
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise UsageError(
                f"--fraction {self.fraction:g} is no share of the heads: expected a number between "
                "0 and 1, such as 0.3"
            )
        if self.until_loss is not None and not 1 < self.until_loss < math.inf:
            raise UsageError(
                f"--until-loss {self.until_loss:g} allows no removal: expected a multiple of the "
                "whole model's loss above 1, such as 1.05"
            )
        if self.uniform and self.heads:
            raise UsageError(
                "--uniform takes equally many from every layer, --heads names them: give one"
            )

    @property
    def memory(self) -> int | None:
        """Bytes that measuring may take; None for a share of what is free."""
        return None if self.max_memory is None else read_bytes(self.max_memory)

    @property
    def words(self) -> str:
        """The wish as it stands on the command line."""
        if self.fraction is not None:
            return f"--fraction {self.fraction:g}"
        if self.until_loss is not None:
            return f"--until-loss {self.until_loss:g}"
        if self.heads:
            counted = f" --index-base {self.index_base}" if self.index_base else ""
            return f"--heads {' '.join(self.heads)}{counted}"
        return "as many as can go"


def goal_of(wish: PruneWish, bounds: Bounds, info: ModelInfo, baseline: float) -> Goal:
    """When to stop.

    Raises UsageError where the model does not have the heads, or would lose too many.
    """
    if wish.heads:
        return _chosen(wish, bounds, info)
    if wish.until_loss is not None:
        return Goal(bounds.most, wish.until_loss * baseline)
    if wish.fraction is None:
        return Goal(bounds.most)
    count = math.floor(wish.fraction * bounds.total + 0.5)
    if wish.uniform:
        count = math.floor(wish.fraction * bounds.total / bounds.round + 1e-9) * bounds.round
    if count < 1:
        least = bounds.round / bounds.total
        one = f"--uniform takes {bounds.round} at a time" if wish.uniform else "one is the least"
        raise UsageError(
            f"--fraction {wish.fraction:g} of {bounds.total} heads is none, {one}: "
            f"expected at least {least:.3g}"
        )
    if count > bounds.most:
        advice = "" if wish.empty_layers else ", or add --allow-empty-layers"
        raise UsageError(
            f"--fraction {wish.fraction:g} of {bounds.total} heads is {count}, only {bounds.most} "
            f"can go while each layer keeps one: choose at most "
            f"{bounds.most / bounds.total:.3g}{advice}"
        )
    return Goal(count)


def _chosen(wish: PruneWish, bounds: Bounds, info: ModelInfo) -> Goal:
    chosen = choose_heads(None, wish.heads, info.layers, info.heads, wish.index_base) or {}
    base = wish.index_base
    for layer, heads in chosen.items():
        if layer not in bounds.layers:
            raise UsageError(f"layer {layer + base} of {info.name!r} has no attention heads")
        if len(heads) == bounds.heads and not bounds.empty_layers:
            raise UsageError(
                f"--heads would take all {bounds.heads} heads of layer {layer + base}: leave one, "
                "or add --allow-empty-layers"
            )
    among = frozenset((layer, head) for layer, heads in chosen.items() for head in heads)
    return Goal(len(among), among=among)
