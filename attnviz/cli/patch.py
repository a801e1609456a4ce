"""The command ``attnviz patch``: which heads carry the difference between two prompts."""

from __future__ import annotations

from dataclasses import replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.interventions.patch.request import PatchRequest

EXAMPLES = """
[bold]Examples[/bold]

attnviz patch

attnviz patch "Tom Brown met Jane Green, and Tom" "Tom Harris met Jane Green, and Tom"

attnviz patch CLEAN CORRUPT --by-token --head L1H0,L1H2

attnviz patch CLEAN CORRUPT --what residual

attnviz patch --pairs pairs.jsonl --together L1H0,L1H2 --fdr --save effects.csv
"""


@command(EXAMPLES, "--by-token --head --pairs --together --top")
def patch(
    request: PatchRequest, model: shared.SeededModel, loading: shared.Loading, output: shared.Output
) -> None:
    """Patch activations between two prompts: which heads carry the difference."""
    # Options are checked before a model is loaded. Ctrl-C shows the partial result.
    from attnviz.cli.outlet import open_outlet
    from attnviz.inspect.interventions.patch import patch as question
    from attnviz.inspect.interventions.prompts import read_pairs

    options = shared.load_options(model.model, loading, model.seed, limits_runs=True)
    outlet = open_outlet(output)
    pairs = read_pairs(
        request.clean, request.corrupt, request.pairs, request.second, chat=request.chat
    )
    tokens = question.reckoned(pairs, request)
    options = replace(options, tokens=tokens, changed=True, joined=pairs.joined)
    loaded = outlet.load(model.model, options)
    with outlet.resumable(request.resume), outlet.advancing("patching", long=True) as advance:
        report = question.patch(loaded, pairs, request, advance=advance)
    outlet.show(report)
    if not report.complete:
        outlet.interrupted(request.resume)
