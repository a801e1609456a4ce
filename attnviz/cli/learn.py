"""The commands to learn with: ``verify`` and ``scaling`` compute, ``sweep`` and ``train`` train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnviz.cli import options as shared
from attnviz.cli.groups import OptionsOnce, command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.learn.scaling.request import OF_MODEL, ScalingRequest
from attnviz.learn.sweep.request import SweepRequest
from attnviz.learn.train.request import TrainRequest
from attnviz.learn.verify.request import VerifyRequest
from attnviz.options import Options, argument, flag, option

VERIFY = """
attnviz verify
attnviz verify --steps
attnviz verify --d-model 96 --heads 6 --kv-heads 3 --seq 11 --dtype float64
attnviz verify --model tiny
attnviz verify "Your own text." --model ./my-checkpoint --json
"""


@dataclass(frozen=True)
class _VerifyText(shared.Text):
    text: str | None = argument(
        "TEXT",
        "With --model: the text, in quotes; use - for standard input (default: a built-in one).",
        brief="With --model: the text, in quotes.",
    )


@dataclass(frozen=True)
class _Examined(Options, panel="Model"):
    model: str | None = option(
        "NAME",
        "Check this model: tiny (bundled), a directory, a Hugging Face id, or a preset such as "
        "configs/gpt2 (random weights).",
        short="-m",
        autocompletion=shared.complete_model,
        brief="Check this model: tiny, a directory or a Hugging Face id.",
    )
    seed: int = option("N", "Random seed (weights, inputs).", 0, min=0)


@command(VERIFY, "--steps --d-model --heads --dtype")
def verify(
    text: _VerifyText,
    request: VerifyRequest,
    model: _Examined,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Check attention against reference implementations."""
    name = model.model
    if name is None:
        if text.is_given:
            raise UsageError(
                "a text is for a model to read: add --model tiny, or leave the text out"
            )
        # The dtype and the threads also apply to the library's own attention.
        for option_name in replace(loading, dtype="auto", threads=None).given():
            raise UsageError(f"{option_name} is for a model: add --model NAME, or leave it out")
        request.refuse_model_options()
        outlet = Outlet.open(output)
        with outlet.advancing("comparing") as advance:
            from attnviz.learn.verify import verify as question  # imports torch
            from attnviz.models.threads import ask_for

            ask_for(loading.threads)
            report = question.verify_own(request, loading.dtype, advance=advance)
    else:
        request.refuse_own_options(name)
        options = shared.load_options(name, loading, model.seed)
        outlet = Outlet.open(output)
        read = text.read("verify")
        with outlet.opened(name, replace(options, backend="torch")) as loaded:
            from attnviz.learn.verify.loaded import verify_model  # imports torch

            report = verify_model(loaded, read, request, name=name, options=options)
    outlet.show(report)
    report.require_passed()


SCALING = """
attnviz scaling
attnviz scaling --d-k 1,16,256 --seq 128 --samples 50 --explain
attnviz scaling --from-model
attnviz scaling "Your own text." --from-model --head L1H0
attnviz scaling --from-model --model mha --d-model 512 --heads 1 --save scaling.svg
"""


@dataclass(frozen=True)
class _ScalingText(shared.Text):
    text: str | None = argument(
        "TEXT",
        "With --from-model: the text, in quotes; use - for standard input.",
        brief="With --from-model: the text, in quotes.",
    )


@dataclass(frozen=True)
class _FromModel(shared.ModelName, panel="A model's queries and keys"):
    from_model: bool = flag(
        "Use a model's queries and keys on a text instead of random ones.",
        brief="Use a model's queries and keys on a text.",
    )


@command(SCALING, "--d-k --seq --samples --from-model --head")
def scaling(
    text: _ScalingText,
    request: ScalingRequest,
    source: _FromModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Compare the softmax with and without scaling by 1/√d_k."""
    from attnviz.learn.scaling import scaling as question
    from attnviz.texts import read_texts

    if not source.from_model:
        for group in (text, source, own, loading):
            for name in group.given():
                raise UsageError(f"{name} {OF_MODEL}")
    request.check_source(source.from_model)
    model, read = None, question.BUILT_IN
    outlet = Outlet.open(output)
    if source.from_model:
        options = shared.load_options(source.model, loading, request.seed, own)
        if text.is_given:
            read = read_texts(text.text, text.file, None)
        model = outlet.load(source.model, replace(options, work=question.work(read, request)))
    outlet.run("softmax of the scores", question.scaling, model, read, request, long=False)


SWEEP = """
attnviz sweep
attnviz sweep --heads 1,4 --seeds 1 --explain
attnviz sweep --task copy --steps 300
attnviz sweep --text story.txt --heads 1,2,4,8,16 --d-model 64 --save sweep.json
"""


_LONG = 5.0  # seconds from which the time of a sweep is reported


@command(SWEEP, "--heads --task --steps --seeds --text")
def sweep(request: SweepRequest, device: shared.Device, output: shared.Output) -> None:
    """Train the same small decoder with 1, 2, 4 and 8 heads, and compare what each learns."""
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
    """Return the arguments with ``--valid`` repeated before each value up to the next option."""
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
def train(request: TrainRequest, device: shared.Device, output: shared.Output) -> None:
    """Train a small language model on your texts, using attnviz's own attention."""
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
