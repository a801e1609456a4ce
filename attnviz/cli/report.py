"""The command ``attnviz report``: what a model is, what its heads do, and which of them matter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.report.request import ReportRequest
from attnviz.options import TextColumn, option

EXAMPLES = """
attnviz report
attnviz report tiny --cards 1 --save report.html
attnviz report ./my-checkpoint --texts stories.txt --save report.html
attnviz report openai-community/gpt2-xl --budget 5m --save report.html
"""


@dataclass(frozen=True)
class _Named(TextColumn, shared.ModelArgument):
    """The argument that names the model, and the options on the texts."""

    text: str | None = option(
        "TEXT", "The text of the maps of the cards (default: a short one).", words=True
    )
    texts: Path | None = option(
        "FILE",
        "Ablate heads over these texts (default: built-in ones): one a line, or CSV, TSV or JSON "
        "with a column text; - reads standard input.",
        brief="Ablate heads over these texts, not the built-in ones.",
    )


@command(EXAMPLES, "--texts --text --cards --budget")
def report(
    named: _Named, request: ReportRequest, model: shared.ShapedModel, output: shared.Output
) -> None:
    """Show what a model is: what its heads do, which matter, and cards for a few."""
    from attnviz.inspect.report import report as question
    from attnviz.texts import read_text, read_texts

    outlet = Outlet.open(output, model, name=named.chosen(model.model))
    text = None if named.text is None else read_text(named.text, None, "report --text")
    many = read_texts(None, None, named.texts, named.column)
    loaded = outlet.load_model(question.work(many, request))
    outlet.run("making the report", question.report, loaded, text, many, request)
