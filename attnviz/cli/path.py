"""The command ``attnviz path``: which later heads read the output of a head."""

from __future__ import annotations

from dataclasses import replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.interventions.path.request import PathRequest

EXAMPLES = """
[bold]Examples[/bold]

attnviz path L0H0

attnviz path L0H0 "Tom Brown met Jane Green, and Tom" "Tom Harris met Jane Green, and Tom"

attnviz path L1H2 --into value --pairs pairs.jsonl --save listeners.csv
"""


@command(EXAMPLES, "--into --pairs --top")
def path(
    request: PathRequest, model: shared.SeededModel, loading: shared.Loading, output: shared.Output
) -> None:
    """Follow one head: which later heads read what it writes."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.inspect.interventions.path import path as question
    from attnviz.inspect.interventions.prompts import read_pairs

    options = shared.load_options(model.model, loading, model.seed)
    outlet = open_outlet(output)
    pairs = read_pairs(request.clean, request.corrupt, request.pairs, chat=request.chat)
    tokens, texts = question.reckoned(pairs)
    loaded = outlet.load(model.model, replace(options, tokens=tokens, texts=texts))
    with outlet.advancing("following paths", long=True) as advance:
        report = question.path(loaded, pairs, request, advance=advance)
    outlet.show(report)
