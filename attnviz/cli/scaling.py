"""The command ``attnviz scaling``: what dividing the scores by √d_k does to attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.learn.scaling.request import OF_MODEL, ScalingRequest
from attnviz.options import argument, flag

EXAMPLES = """
attnviz scaling
attnviz scaling --d-k 1,16,256 --seq 128 --samples 50 --explain
attnviz scaling --from-model
attnviz scaling "A text of your own." --from-model --head L1H0
attnviz scaling --from-model --model mha --d-model 512 --heads 1 --save scaling.svg
"""


@dataclass(frozen=True)
class _ModelText(shared.Text):
    """The argument and option on the text of ``scaling`` with a model."""

    text: str | None = argument(
        "TEXT",
        "With --from-model: the text, in quotes; - reads standard input.",
        brief="With --from-model: the text, in quotes.",
    )


@dataclass(frozen=True)
class _FromModel(shared.ModelName, panel="A model's queries and keys"):
    """The options on a model that gives queries and keys in place of random ones."""

    from_model: bool = flag(
        "Take a model's queries and keys over a text, not random ones.",
        brief="Take a model's queries and keys over a text.",
    )


@command(EXAMPLES, "--d-k --seq --samples --from-model --head")
def scaling(
    text: _ModelText,
    request: ScalingRequest,
    source: _FromModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Compare the softmax with and without the scale 1/√d_k."""
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
        if text.text is not None or text.file is not None:
            read = read_texts(text.text, text.file, None)
        model = outlet.load(source.model, replace(options, work=question.work(read, request)))
    outlet.run("softmax of the scores", question.scaling, model, read, request, long=False)
