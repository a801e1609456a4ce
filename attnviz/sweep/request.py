"""What a person asks of ``attnviz sweep``, checked before anything is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.errors import UsageError

if TYPE_CHECKING:  # brings torch
    from attnviz.sweep.training import SweepPlan

__all__ = ["SweepWish", "read_heads", "sweep_plan"]

_NUMBER = re.compile(r"0*[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class SweepWish:
    """The options of the same names; None where the task decides."""

    heads: str = "1,2,4,8"
    task: str | None = None
    text: Path | None = None
    layers: int = 2
    d_model: int = 32
    seeds: int = 3
    steps: int = 500
    seed: int = 0
    device: str = "cpu"
    explain: bool = False


def read_heads(wanted: str) -> tuple[int, ...]:
    """Numbers of heads, rising, from a list such as ``1,2,4,8``.

    Raises UsageError for what is no positive whole number, and for one that comes twice.
    """
    found = []
    for part in wanted.split(","):
        number = part.strip()
        if not _NUMBER.fullmatch(number):
            raise UsageError(
                f"--heads {wanted!r}: {number!r} is no number of heads; expected a list of "
                "different ones such as 1,2,4,8"
            )
        found.append(int(number))
    twice = next((heads for heads in found if found.count(heads) > 1), None)
    if twice is not None:
        raise UsageError(f"--heads {wanted!r} names {twice} twice: name each number once")
    return tuple(sorted(found))


def sweep_plan(wish: SweepWish) -> SweepPlan:
    """What is trained.

    Raises UsageError for sizes that do not fit together, an unknown task or a text that is too
    short; LoadError for a text that cannot be read.
    """
    heads = read_heads(wish.heads)
    if wish.task is not None and wish.text is not None:
        raise UsageError("--task and --text both say what is learned: give one of them")
    from attnviz.sweep.tasks.characters import Characters
    from attnviz.sweep.tasks.choose import named_task
    from attnviz.sweep.training import SweepPlan

    task = Characters(wish.text) if wish.text is not None else named_task(wish.task or "induction")
    seeds = tuple(range(wish.seed, wish.seed + wish.seeds))
    return SweepPlan(task, heads, seeds, wish.layers, wish.d_model, wish.steps)
