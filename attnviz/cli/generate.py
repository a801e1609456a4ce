"""The command ``attnviz generate``: the model continues a text while its heads are observed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.draw.report import EVERY
from attnviz.inspect.generate.request import GenerateRequest

if TYPE_CHECKING:
    from attnviz.engine.head_run import Head
    from attnviz.inspect.generate.generate import Advance

EXAMPLES = """
attnviz generate "The cat sat on the mat because"
attnviz generate "Nancy met John, and then Nancy" --head L1H2 --tokens 12
attnviz generate "Once upon a time" --temperature 0.8 --top-p 0.9 --seed 3 --save run.jsonl
attnviz generate "The cat sat." --ablate L1H0,L1H2
"""


@dataclass(frozen=True)
class _Output(shared.Output):
    """The output options of every command, with a file to replay from."""

    save: tuple[Path, ...] = shared.saved(f"{EVERY} .jsonl")


@command(EXAMPLES, "--tokens --temperature --seed --head --ablate", draws="weights, sampling")
def generate(
    prompt: shared.PromptText, request: GenerateRequest, model: shared.DrawnModel, output: _Output
) -> None:
    """Let the model continue a text, and see where its heads look."""
    # Options are checked before a model is loaded. Ctrl-C shows the text so far.
    from attnviz.inspect.generate import generate as question
    from attnviz.interrupts import between_steps
    from attnviz.regions import given_text

    outlet = Outlet.open(output, model)
    text = given_text(request, prompt.text, prompt.file, "generate")
    loaded = outlet.load_model(question.work(text, request))
    with between_steps() as asked:
        job = question.WritingJob.prepare(loaded, text, request, cancelled=asked)
        with _watched(outlet, job.heads[0]) as advance:
            report, early = job.write(asked, advance)
    if report is not None:
        outlet.show(report)
    if early is not None:
        raise early


@contextmanager
def _watched(outlet: Outlet, head: Head) -> Iterator[Advance]:
    """Show the growing text in a terminal, or the progress elsewhere, during generation.

    outlet: where it is shown. head: the (layer, head) whose attention weights colour the text.
        Yields the function to call after each step.
    """
    console, output = outlet.console, outlet.output
    if console is None or not console.is_interactive or output.for_programs or output.quiet:
        with outlet.advancing("writing") as advance:
            yield lambda share, run: advance(share)
        return
    from attnviz.draw.theme import Theme
    from attnviz.inspect.generate.live import shown_live

    with shown_live(console, Theme.of(console, output.colours, output.ascii), head) as draw:
        yield draw
