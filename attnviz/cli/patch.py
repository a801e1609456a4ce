"""The command ``attnviz patch``: which heads carry the difference between two prompts."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.interventions.patch.request import PatchRequest

EXAMPLES = """
attnviz patch
attnviz patch "Tom Brown ran. Tom" "Tom Harris ran. Tom"
attnviz patch CLEAN CORRUPT --by-token --head L1H0,L1H2
attnviz patch CLEAN CORRUPT --what residual
attnviz patch --pairs pairs.jsonl --together L1H0,L1H2 --fdr --save effects.csv
"""


@command(EXAMPLES, "--by-token --head --pairs --together --top")
def patch(request: PatchRequest, model: shared.DrawnModel, output: shared.Output) -> None:
    """Patch activations between two prompts to find which heads carry the difference."""
    # Options are checked before a model is loaded. Ctrl-C shows the partial result.
    from attnviz.inspect.interventions.patch import patch as question
    from attnviz.inspect.interventions.prompts import read_pairs

    outlet = Outlet.open(output, model, limits_runs=True)
    pairs = read_pairs(
        request.clean, request.corrupt, request.pairs, request.second, chat=request.chat
    )
    loaded = outlet.load_model(question.work(pairs, request))
    outlet.run("patching", question.patch, loaded, pairs, request, resume=request.resume)
