"""The command ``attnviz link``: why a head looks where it looks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.link.request import LinkRequest
from attnviz.options import TextColumn, option

EXAMPLES = """
attnviz link "When Nancy met John, nobody knew why Nancy met"
attnviz link "Then Mary saw Tom. Then Mary saw" --head L1H2 --key Tom
attnviz link --texts prompts.jsonl --head L1H2 --save parts.csv
"""


@dataclass(frozen=True)
class _Prompts(TextColumn, shared.PromptText):
    """The argument and options on one prompt or many."""

    texts: Path | None = option(
        "FILE",
        "Many prompts: one a line, or CSV, TSV or JSON with prompt, and where wanted query, key "
        "and than.",
        brief="Many prompts: one a line, CSV, TSV or JSON.",
    )


@command(EXAMPLES, "--head --query --key --than --texts", draws="weights, control, bootstrap")
def link(
    prompts: _Prompts, request: LinkRequest, model: shared.DrawnModel, output: shared.ArrayOutput
) -> None:
    """Show why a head looks at a token: who wrote the query and the key."""
    from attnviz.inspect.link import link as question
    from attnviz.prompts.study import read_prompts

    outlet = Outlet.open(output, model)
    read, source = read_prompts(
        "link", request, prompts.text, prompts.file, prompts.texts, prompts.column
    )
    given = outlet.load_model(question.work(read, request)), read, request
    report = outlet.run("taking attention apart", question.link, *given, long=False, source=source)
    report.require_tally()
