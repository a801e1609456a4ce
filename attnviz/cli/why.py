"""The command ``attnviz why``: what each head writes towards a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.why.request import WhyRequest
from attnviz.options import TextColumn, option

EXAMPLES = """
attnviz why "Then Mary saw Tom. Then Mary saw"
attnviz why "Then Mary saw Tom. Then Mary saw" --answer Tom --foil Mary
attnviz why --texts prompts.jsonl --save parts.csv
attnviz why "The Eiffel Tower stands in the city of" --model openai-community/gpt2
"""


@dataclass(frozen=True)
class _Prompts(TextColumn, shared.PromptText):
    """The argument and options on one prompt or many."""

    texts: Path | None = option(
        "FILE",
        "Many prompts: one a line, or CSV, TSV or JSON with prompt, and where wanted answer, foil "
        "and position.",
        brief="Many prompts: one a line, CSV, TSV or JSON.",
    )


@command(EXAMPLES, "--answer --foil --texts --head --top", draws="weights, control, bootstrap")
def why(
    prompts: _Prompts, request: WhyRequest, model: shared.ShapedModel, output: shared.ArrayOutput
) -> None:
    """Show what each head adds to the logit of the predicted token, exactly."""
    from attnviz.inspect.why import why as question
    from attnviz.prompts.study import read_prompts

    outlet = Outlet.open(output, model)
    read, source = read_prompts(
        "why", request, prompts.text, prompts.file, prompts.texts, prompts.column
    )
    given = outlet.load_model(question.work(read, request)), read, request
    report = outlet.run("taking logits apart", question.why, *given, long=False, source=source)
    report.require_tally()
