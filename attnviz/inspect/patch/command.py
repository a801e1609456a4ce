"""``attnviz patch``: what carries the difference between two prompts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.patch.options import Measure, Patching, PromptChoice, Request, View

if TYPE_CHECKING:
    from attnviz.inspect.patch.records import PatchReport

EXAMPLES = """
[bold]Examples[/bold]

attnviz patch

attnviz patch "Tom Brown met Jane Green, and Tom" "Tom Harris met Jane Green, and Tom"

attnviz patch CLEAN CORRUPT --by-token --head L1H0,L1H2

attnviz patch CLEAN CORRUPT --what residual

attnviz patch --pairs pairs.jsonl --together L1H0,L1H2 --fdr --save effects.csv
"""


RESUME = "attnviz.patch-resume/1"
"""The schema of the file of ``--resume``."""


@command(EXAMPLES)
def patch(
    prompts: PromptChoice,
    patching: Patching,
    heads: options.HeadChoice,
    measure: Measure,
    kind: options.Kind,
    view: View,
    counted: options.IndexBase,
    model: shared.Model,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Patch activations between two prompts: which heads carry the difference."""
    # What can be refused is refused before a model is loaded. Ctrl-C shows what is done.
    from attnviz.cli.outlet import Found, open_outlet
    from attnviz.inspect.patch.data import LISTS, patch_data, patch_rows
    from attnviz.inspect.patch.document import patch_document
    from attnviz.inspect.patch.job import prepare
    from attnviz.inspect.patch.pairs import read_pairs
    from attnviz.inspect.patch.run import measure as measure_job
    from attnviz.resume import ResumeFile

    options = shared.load_options(model.model, loading, model.seed)
    request = Request(prompts, kind, heads, counted, patching, measure, view, model.seed)
    outlet, resume = open_outlet(output), measure.resume
    given = read_pairs(prompts.clean, prompts.corrupt, prompts.pairs)
    with outlet.opened(model.model, options) as loaded:
        job = prepare(loaded, given, request)
    file = ResumeFile(resume, RESUME, job.identity()) if resume is not None else None
    with file or nullcontext(), outlet.advancing("patching", long=True) as advance:
        measured = measure_job(job, file, advance)
    if not measured.empty:
        report = measured.report()
        report = replace(report, hints=_hints(report, request, output))
        drawn = partial(patch_document, report, output.explain)
        outlet.show(Found(partial(patch_data, report), partial(patch_rows, report), drawn, LISTS))
    if not measured.complete:
        outlet.interrupted(resume)


def _hints(report: PatchReport, request: Request, output: shared.Output) -> tuple[str, ...]:
    hints = []
    if output.quiet:
        return ()
    if report.source.endswith("built-in pairs"):
        hints.append('"CLEAN" "CORRUPT" your own')
    elif len(report.pairs) == 1:
        hints.append("--pairs FILE for intervals")
    carrying = [report.names(effect) for effect in report.ranking(2)]
    if len(carrying) == 2 and report.together is None and not report.whole_layers:
        hints.append(f"--together {','.join(carrying)}")
    if len(report.pairs) == 1 and not request.by_token:
        hints.append("--by-token")
    if not output.explain:
        hints.append("--explain")
    return tuple(hints)
