"""``attnviz sweep``: one small decoder trained with several numbers of heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli.groups import Options, command, option
from attnviz.cli.options import Device, Output

__all__ = ["EXAMPLES", "Heads", "Learned", "Shape", "sweep"]

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


@dataclass(frozen=True)
class Learned(Options, panel="What is learned"):
    """What is learned, and how often; None where the task decides."""

    task: str | None = option(
        "TASK",
        "induction (repeat what followed this letter before; default), copy or majority.",
    )
    text: Path | None = option(
        "FILE", "In place of a task: guess the next character of this UTF-8 text."
    )
    steps: int = option("N", "Steps that each model learns.", 500, min=1)
    seeds: int = option(
        "N", "Models of each number of heads, to see what chance does.", 3, min=1, max=1000
    )
    seed: int = option(
        "N", "The first of them: of first weights, batches and held-out sequences.", 0, min=0
    )


@dataclass(frozen=True)
class Shape(Options, panel="Model"):
    """The shape that all models share."""

    layers: int = option("N", "Layers.", 2, min=1)
    d_model: int = option("D", "Width, the same for all: a head is D / heads wide.", 32, min=2)


@command(EXAMPLES)
def sweep(heads: Heads, learned: Learned, shape: Shape, device: Device, output: Output) -> None:
    """Train the same small decoder with 1, 2, 4, 8 heads, and compare what they learn."""
    from attnviz.sweep.request import SweepWish
    from attnviz.sweep.run import show_sweep

    wish = SweepWish(
        **vars(heads), **vars(learned), **vars(shape), **vars(device), explain=output.explain
    )
    show_sweep(wish, output)
