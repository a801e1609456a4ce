"""The command ``attnviz verify``: checks the library's own attention or a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.learn.verify.request import VerifyRequest
from attnviz.options import Options, argument, option

if TYPE_CHECKING:
    from rich.console import Console

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
        "Check this model: tiny (bundled), mha, a directory, a Hugging Face id, or a named shape "
        "such as configs/gpt2 (random weights).",
        short="-m",
        autocompletion=shared.complete_model,
        brief="Check this model, as --model takes it elsewhere.",
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
        _refuse_model_options(text, loading)
        request.refuse_model_options()
        outlet = Outlet.open(output)
        with _telling(outlet.notices) as tell:
            from attnviz.learn.verify import verify as question  # imports torch
            from attnviz.models.threads import ask_for

            ask_for(loading.threads)
            report = question.verify_own(request, loading.dtype, tell=tell)
    else:
        from attnviz.texts import read_text

        request.refuse_own_options(name)
        options = shared.load_options(name, loading, model.seed, request)
        outlet = Outlet.open(output)
        given = text.text is not None or text.file is not None
        read = read_text(text.text, text.file, "verify") if given else None
        loaded = outlet.load(name, replace(options, backend="torch"))
        with _telling(outlet.notices) as tell:
            from attnviz.learn.verify import verify as question  # imports torch

            report = question.verify_model(
                loaded, read, request, name=name, options=options, tell=tell
            )
    outlet.show(report)
    report.require_passed()


def _refuse_model_options(text: _ModelText, loading: shared.Loading) -> None:
    if text.text is not None or text.file is not None:
        raise UsageError("a text is for a model to read: add --model tiny, or leave the text out")
    # The dtype and the threads also apply to the library's own attention.
    for name in replace(loading, dtype="auto", threads=None).given():
        raise UsageError(f"{name} is for a model: add --model NAME, or leave it out")


@contextmanager
def _telling(notices: Console) -> Iterator[Callable[[str], None]]:
    """Show a spinner with the current activity; nothing without a terminal.

    notices: the console. Yields the function to call with a string for each activity.
    """
    if notices.quiet or not notices.is_interactive:
        yield lambda words: None
        return
    with notices.status("starting") as status:
        yield lambda words: status.update(words)
