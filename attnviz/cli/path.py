"""The command ``attnviz path``: which later heads read the output of a head."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.interventions.path.request import PathRequest

EXAMPLES = """
attnviz path L0H0
attnviz path L0H0 "Tom Brown ran. Tom" "Tom Harris ran. Tom"
attnviz path L1H2 --into value --pairs pairs.jsonl --save listeners.csv
"""


@command(EXAMPLES, "--into --pairs --top")
def path(request: PathRequest, model: shared.DrawnModel, output: shared.Output) -> None:
    """Follow one head: which later heads read what it writes."""
    from attnviz.inspect.interventions.path import path as question
    from attnviz.inspect.interventions.prompts import read_pairs

    outlet = Outlet.open(output, model)
    pairs = read_pairs(request.clean, request.corrupt, request.pairs, chat=request.chat)
    loaded = outlet.load_model(question.work(pairs, request))
    outlet.run("following paths", question.path, loaded, pairs, request)
