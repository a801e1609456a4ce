"""``attnviz sweep``: one small decoder trained with several numbers of heads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.cli.groups import command
from attnviz.cli.options import Device, Output
from attnviz.errors import UsageError
from attnviz.options import Options, option

if TYPE_CHECKING:  # brings NumPy
    from attnviz.learn.sweep.tasks import Task

_NUMBER = re.compile(r"0*[1-9][0-9]{0,17}")

EXAMPLES = """
[bold]Examples[/bold]

attnviz sweep

attnviz sweep --heads 1,4 --seeds 1 --explain

attnviz sweep --task copy --steps 300

attnviz sweep --text story.txt --heads 1,2,4,8,16 --d-model 64 --save sweep.json
"""


@dataclass(frozen=True)
class Heads(Options):
    """What is compared."""

    heads: str = option("LIST", "Numbers of heads to compare.", "1,2,4,8")

    @property
    def numbers(self) -> tuple[int, ...]:
        """Rising. Raises UsageError for what is no positive whole number, or comes twice."""
        found = []
        for part in self.heads.split(","):
            number = part.strip()
            if not _NUMBER.fullmatch(number):
                raise UsageError(
                    f"--heads {self.heads!r}: {number!r} is no number of heads; expected a list of "
                    "different ones such as 1,2,4,8"
                )
            found.append(int(number))
        twice = next((heads for heads in found if found.count(heads) > 1), None)
        if twice is not None:
            raise UsageError(f"--heads {self.heads!r} names {twice} twice: name each number once")
        return tuple(sorted(found))


@dataclass(frozen=True)
class Learned(Options, panel="What is learned"):
    """What is learned, and how often; None where the task decides."""

    task: str | None = option(
        "TASK",
        "induction (repeat what followed this letter before; default), copy or majority.",
    )
    text: Path | None = option(
        "FILE", "Learn to predict the next character of this UTF-8 text instead."
    )
    steps: int = option("N", "Training steps of each model.", 500, min=1)
    seeds: int = option(
        "N", "Models of each number of heads; significance needs two.", 3, min=1, max=1000
    )
    seed: int = option("N", "First random seed (weights, batches, held-out sequences).", 0, min=0)

    def __post_init__(self) -> None:
        if self.task is not None and self.text is not None:
            raise UsageError("--task and --text both say what is learned: give one of them")

    def subject(self) -> Task:
        """What is learned. Raises UsageError for an unknown task or a text that is too short,
        LoadError for one that cannot be read."""
        from attnviz.learn.sweep.characters import Characters
        from attnviz.learn.sweep.tasks import named_task

        if self.text is not None:
            return Characters(self.text)
        return named_task(self.task or "induction")


@dataclass(frozen=True)
class Shape(Options, panel="Model"):
    """The shape that all models share."""

    layers: int = option("N", "Layers of each model.", 2, min=1)
    d_model: int = option("D", "Width of each model; a head is D / heads wide.", 32, min=2)


@command(EXAMPLES)
def sweep(heads: Heads, learned: Learned, shape: Shape, device: Device, output: Output) -> None:
    """Train the same small decoder with 1, 2, 4, 8 heads, and compare what they learn."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.learn.sweep.run import train_and_compare
    from attnviz.learn.sweep.training import SweepPlan
    from attnviz.models.placement import find_device

    outlet = open_outlet(output)
    plan = SweepPlan(
        task=learned.subject(),
        heads=heads.numbers,
        seeds=tuple(range(learned.seed, learned.seed + learned.seeds)),
        **vars(shape),
        steps=learned.steps,
    )
    train_and_compare(plan, find_device(device.device), outlet)
