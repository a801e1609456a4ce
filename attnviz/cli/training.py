"""The commands that train small models: ``attnviz sweep`` and ``attnviz train``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnviz.cli.groups import OptionsOnce, command
from attnviz.cli.options import Device, Output
from attnviz.cli.outlet import Outlet
from attnviz.learn.sweep.request import SweepRequest
from attnviz.learn.train.request import TrainRequest

SWEEP = """
attnviz sweep
attnviz sweep --heads 1,4 --seeds 1 --explain
attnviz sweep --task copy --steps 300
attnviz sweep --text story.txt --heads 1,2,4,8,16 --d-model 64 --save sweep.json
"""


_LONG = 5.0
"""Seconds from which the time of a sweep is reported."""


@command(SWEEP, "--heads --task --steps --seeds --text")
def sweep(request: SweepRequest, device: Device, output: Output) -> None:
    """Train the same small decoder with 1, 2, 4 and 8 heads, and compare what it learns."""
    from attnviz.cli.terminal import messages
    from attnviz.draw.numbers import spoken_time
    from attnviz.learn.sweep import sweep as question
    from attnviz.models.threads import ask_for

    ask_for(device.threads)
    outlet = Outlet.open(output)
    with outlet.advancing("training models") as advance:
        report = question.sweep(request, device=device.device, advance=advance)
    if report.models:
        outlet.show(report)
        if report.seconds > _LONG:
            outlet.notices.print(f"the sweep took {spoken_time(report.seconds)}")
    if not report.complete:
        messages(output.quiet).print(f"stopped: {report.trained_words}", soft_wrap=True)
        raise KeyboardInterrupt


class ListOptions(OptionsOnce):
    """A Typer command that accepts several values after one option.

    It reads ``--valid a b c`` as ``--valid a --valid b --valid c``; otherwise all files of a
    pattern but the first would silently become texts to train on.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_lists(args))


def spread_lists(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the option ``--valid`` repeated before each value that follows it.

    Its values end at the next argument that begins with ``-``.
    """
    spread: list[str] = []
    option = ""
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*spread, argument, *rest]
        if argument.startswith("-"):
            name, equals, value = argument.partition("=")
            option = name if name == "--valid" else ""
            spread += [name, value] if option and equals else [argument]
            if option and not equals and rest and not rest[0].startswith("-"):
                spread.append(rest.pop(0))
        else:
            spread += [option, argument] if option else [argument]
    return spread


TRAIN = """
attnviz train story.txt --out my-model
attnviz train books/ --valid held-out/*.txt --minutes 30 --out my-model
attnviz train books/ --valid held-out/ --config configs/tiny.toml --out tiny
attnviz train books/ --valid held-out/ --config configs/tiny.toml --out tiny --resume
attnviz heads --model my-model "The cat sat on the mat because the cat was tired."
"""


@command(TRAIN, "--out --valid --config --minutes --resume", ListOptions)
def train(request: TrainRequest, device: Device, output: Output) -> None:
    """Train a small language model on your texts, using the library's own attention."""
    from attnviz.cli.terminal import messages
    from attnviz.draw.labels import visible
    from attnviz.learn.train import train as question
    from attnviz.models.threads import ask_for

    ask_for(device.threads)
    outlet = Outlet.open(output)
    request.check_kept(output.save)
    try:
        with outlet.advancing(f"training {visible(str(request.out))}") as advance:
            report = question.train(request, device=device.device, advance=advance)
    except question.Stopped as stopped:
        messages(output.quiet).print(str(stopped), soft_wrap=True)
        raise KeyboardInterrupt from stopped
    outlet.show(report)
