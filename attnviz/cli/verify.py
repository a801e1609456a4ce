"""The commands about the arithmetic of attention: ``attnviz verify`` and ``attnviz scaling``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.learn.scaling.request import OF_MODEL, ScalingRequest
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
        "With --model: the text, in quotes; - reads standard input (default: a sentence).",
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
        "With --from-model: the text, in quotes; - reads standard input.",
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
