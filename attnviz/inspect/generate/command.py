"""``attnviz generate``: the model writes on, and where its heads look meanwhile is seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.options import Options, argument, option

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.cli.outlet import Outlet
    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer
    from attnviz.engine.generation import Sampling
    from attnviz.engine.head_run import Head
    from attnviz.inspect.generate.document import Shown
    from attnviz.inspect.generate.job import Advance

EXAMPLES = """
[bold]Examples[/bold]

attnviz generate "The cat sat on the mat because"

attnviz generate "When Nancy met John, nobody knew why Nancy met" --head L1H2 --tokens 12

attnviz generate "Once upon a time" --temperature 0.8 --top-p 0.9 --seed 3 --save run.jsonl

attnviz generate "The cat sat." --ablate L1H0,L1H2
"""


@dataclass(frozen=True)
class Prompt(shared.Text):
    """What the model goes on from."""

    text: str | None = argument("PROMPT", "The prompt, in quotes; - reads standard input.")


@dataclass(frozen=True)
class Written(Options, panel="What is written"):
    """How much is written, and how tokens are chosen."""

    tokens: int = option("N", "Write at most so many tokens.", 40, min=1)
    temperature: float = option(
        "T", "Divide the logits by T before the softmax; 0 takes the likeliest token (greedy).", 0.0
    )
    top_k: int | None = option("K", "Draw among the K likeliest tokens only (Fan et al. 2018).")
    top_p: float | None = option(
        "P", "Draw among the fewest tokens that together have probability P (Holtzman et al. 2020)."
    )
    ablate: tuple[str, ...] = option(
        "HEADS", "Zero-ablate these heads at every token, as --head names them.", ()
    )

    def sampling(self, seed: int) -> Sampling:
        """UsageError for what is out of range."""
        from attnviz.engine.generation import Sampling

        return Sampling(self.tokens, self.temperature, self.top_k, self.top_p, seed)


@dataclass(frozen=True)
class Kind(Options):
    """Which attention of a decoder that attends to an encoder as well."""

    kind: Literal["decoder", "cross"] | None = option(
        "KIND", "Of an encoder–decoder: the heads of decoder (default) or cross attention."
    )


@dataclass(frozen=True)
class WritingModel(shared.ModelName):
    """The model that writes."""

    seed: int = option("N", "Random seed (weights, sampling).", 0, min=0)


@dataclass(frozen=True)
class RunOutput(shared.Output):
    """As everywhere, and a file that is replayed from."""

    save: tuple[Path, ...] = shared.saved(f"{shared.EVERY} .jsonl")


@command(EXAMPLES)
def generate(
    prompt: Prompt,
    written: Written,
    heads: options.HeadChoice,
    kind: Kind,
    counted: options.IndexBase,
    model: WritingModel,
    loading: shared.Loading,
    output: RunOutput,
) -> None:
    """Let the model write on, and see where its heads look."""
    # What can be refused is refused before a model is loaded. Ctrl-C shows what is written.
    from attnviz.cli.outlet import open_outlet
    from attnviz.cli.progress import loading as opening
    from attnviz.inspect.generate.job import Job
    from attnviz.interrupts import between_steps
    from attnviz.models.resolve import load, reckoned_tokens
    from attnviz.texts import read_text

    options = shared.load_options(model.model, loading, model.seed)
    sampling = written.sampling(model.seed)
    outlet = open_outlet(output)
    text = read_text(prompt.text, prompt.file, "generate")
    tokens = reckoned_tokens(text) + written.tokens
    with opening(model.model, outlet.notices) as progress:
        loaded = load(model.model, replace(options, tokens=tokens, progress=progress))
    base = counted.index_base
    with between_steps() as asked:
        job = Job.prepare(loaded, text, sampling, kind.kind, heads, written.ablate, base, asked)
        with _watched(outlet, job.heads[0]) as advance:
            shown = job.write(asked, advance)
    if shown is not None:
        outlet.show(_Written(shown, output.explain, not output.quiet))
    if shown is None or shown.run.ending == "interrupted":
        raise KeyboardInterrupt


@contextmanager
def _watched(outlet: Outlet, head: Head) -> Iterator[Advance]:
    """What a person sees while the model writes: the text in a terminal, else what is done."""
    console, output = outlet.console, outlet.output
    drawn = console is not None and console.is_terminal and not console.is_dumb_terminal
    if console is None or not drawn or output.json or output.quiet:
        from attnviz.cli.progress import scanning

        with scanning("writing", outlet.notices) as advance:
            yield lambda share, run: advance(share)
        return
    from attnviz.draw.theme import Theme
    from attnviz.inspect.generate.live import shown_live

    with shown_live(console, Theme.of(console, output.palette, output.ascii), head) as draw:
        yield draw


class _Written(NamedTuple):
    """A run for every outlet. explain: add a reading for newcomers. hints: what to try."""

    shown: Shown
    explain: bool
    hints: bool

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.inspect.generate.data import write_run_json

        shown = self.shown
        write_run_json(shown.run, shown.found, shown.heads, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.generate.data import run_rows

        return run_rows(self.shown.run, self.shown.heads)

    def document(self) -> Document:
        from attnviz.inspect.generate.document import run_document

        return run_document(self.shown, explain=self.explain, hints=self.hints)

    def arrays(self) -> Mapping[str, Writer]:
        from attnviz.draw.files import text_file
        from attnviz.inspect.generate.data import write_run_lines

        return {".jsonl": text_file(lambda stream: write_run_lines(self.shown.run, stream))}
