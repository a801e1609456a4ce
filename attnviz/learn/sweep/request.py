"""The options of ``attnviz sweep``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from attnviz.errors import UsageError
from attnviz.options import Options, option

_NUMBER = re.compile(r"0*[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class _Heads(Options):
    heads: str = option("LIST", "Head counts to compare.", "1,2,4,8")

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of heads, ascending; UsageError for a wrong or a repeated one."""
        parts = [part.strip() for part in self.heads.split(",")]
        if wrong := [part for part in parts if not _NUMBER.fullmatch(part)]:
            raise UsageError(
                f"--heads {self.heads!r}: {wrong[0]!r} is not a number of heads; expected a list "
                "of different ones such as 1,2,4,8"
            )
        numbers = sorted(map(int, parts))
        if twice := [heads for heads in numbers if numbers.count(heads) > 1]:
            raise UsageError(
                f"--heads {self.heads!r} names {twice[0]} twice: name each number once"
            )
        return tuple(numbers)


@dataclass(frozen=True)
class _Learned(Options, panel="What to learn"):
    """The options on the task, and on how often it is learned; None if the task decides."""

    task: str | None = option(
        "TASK",
        "induction (predict what followed the current letter last time; default), copy or "
        "majority.",
        brief="induction (default), copy or majority.",
    )
    text: Path | None = option(
        "FILE", "Train on next-character prediction of this UTF-8 text instead."
    )
    steps: int = option("N", "Training steps per model.", 500, min=1)
    seeds: int = option(
        "N", "Seeds per head count; a significance test needs at least two.", 3, min=1, max=1000
    )
    seed: int = option("N", "First random seed (weights, batches, held-out sequences).", 0, min=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None and self.text is not None:
            raise UsageError("--task and --text both say what is learned: give one of them")


@dataclass(frozen=True)
class _Shape(Options, panel="Model"):
    layers: int = option("N", "Layers per model.", 2, min=1)
    d_model: int = option("D", "Width of each model; the head dimension is D / heads.", 32, min=2)


@dataclass(frozen=True)
class SweepRequest(_Heads, _Learned, _Shape):
    """All options of ``attnviz sweep``."""
