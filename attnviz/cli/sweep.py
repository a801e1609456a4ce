"""The command ``attnviz sweep``: one small decoder trained with several numbers of heads."""

from __future__ import annotations

from attnviz.cli.groups import command
from attnviz.cli.options import Device, Output
from attnviz.cli.outlet import Outlet
from attnviz.learn.sweep.request import SweepRequest

EXAMPLES = """
attnviz sweep
attnviz sweep --heads 1,4 --seeds 1 --explain
attnviz sweep --task copy --steps 300
attnviz sweep --text story.txt --heads 1,2,4,8,16 --d-model 64 --save sweep.json
"""


_LONG = 5.0
"""Seconds from which the time of a sweep is reported."""


@command(EXAMPLES, "--heads --task --steps --seeds --text")
def sweep(request: SweepRequest, device: Device, output: Output) -> None:
    """Train the same small decoder with 1, 2, 4, 8 heads, and compare what they learn."""
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
