"""The command ``attnviz verify``: checks the library's own attention or a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.learn.verify.request import VerifyRequest
from attnviz.options import Options, argument, option

EXAMPLES = """
attnviz verify
attnviz verify --steps
attnviz verify --d-model 96 --heads 6 --kv-heads 3 --seq 11 --dtype float64
attnviz verify --model tiny
attnviz verify "A text of your own." --model ./my-checkpoint --json
"""


@dataclass(frozen=True)
class _ModelText(shared.Text):
    """The argument and option on the text of ``verify`` with a model."""

    text: str | None = argument(
        "TEXT",
        "With --model: the text, in quotes; - reads standard input (default: a sentence).",
        brief="With --model: the text, in quotes.",
    )


@dataclass(frozen=True)
class _Examined(Options, panel="Model"):
    """The options on the model that is verified; none for the library's own attention."""

    model: str | None = option(
        "NAME",
        "Check this model: tiny (bundled), a directory, a Hugging Face id, or a named shape such "
        "as configs/gpt2 (random weights).",
        short="-m",
        autocompletion=shared.complete_model,
        brief="Check this model: tiny, a directory or a Hugging Face id.",
    )
    seed: int = option("N", "Random seed (weights, inputs).", 0, min=0)


@command(EXAMPLES, "--steps --d-model --heads --dtype")
def verify(
    text: _ModelText,
    request: VerifyRequest,
    model: _Examined,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Check attention against reference implementations."""

    name = model.model
    if name is None:
        if text.text is not None or text.file is not None:
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
        from attnviz.texts import read_text

        request.refuse_own_options(name)
        options = shared.load_options(name, loading, model.seed)
        outlet = Outlet.open(output)
        given = text.text is not None or text.file is not None
        read = read_text(text.text, text.file, "verify") if given else None
        with outlet.opened(name, replace(options, backend="torch")) as loaded:
            from attnviz.learn.verify.loaded import verify_model  # imports torch

            report = verify_model(loaded, read, request, name=name, options=options)
    outlet.show(report)
    report.require_passed()
