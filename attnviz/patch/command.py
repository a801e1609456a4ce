"""``attnviz patch``: what carries the difference between two prompts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.patch.options import Measure, Patching, PromptChoice, Request, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.patch.records import PatchReport

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
    heads: shared.HeadChoice,
    measure: Measure,
    kind: shared.Kind,
    view: View,
    counted: shared.IndexBase,
    model: shared.Model,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Patch activations between two prompts: which heads carry the difference."""
    # What can be refused is refused before a model is loaded. Ctrl-C shows what is done.
    from attnviz.cli.outlet import open_outlet
    from attnviz.cli.progress import loading as opening
    from attnviz.cli.progress import scanning
    from attnviz.cli.resume import ResumeFile
    from attnviz.cli.terminal import messages
    from attnviz.models.resolve import load
    from attnviz.patch.job import prepare
    from attnviz.patch.pairs import read_pairs
    from attnviz.patch.run import measure as measure_job

    options = shared.load_options(model.model, loading, model.seed)
    request = Request(prompts, kind, heads, counted, patching, measure, view, model.seed)
    outlet = open_outlet(output)
    notices, resume = outlet.notices, measure.resume
    given = read_pairs(prompts.clean, prompts.corrupt, prompts.pairs)
    with opening(model.model, notices) as progress:
        job = prepare(load(model.model, replace(options, progress=progress)), given, request)
    file = ResumeFile(resume, RESUME, job.identity()) if resume is not None else None
    with file or nullcontext(), scanning("patching", messages(output.quiet)) as advance:
        measured = measure_job(job, file, advance)
    if not measured.empty:
        report = measured.report()
        hints = () if output.quiet else _hints(report, request, output.explain)
        outlet.show(_Patched(replace(report, hints=hints), output.explain))
    if not measured.complete:
        if resume is not None:
            notices.print("the same command goes on where this one ended")
        raise KeyboardInterrupt


@dataclass(frozen=True)
class _Patched:
    """What was found, for every outlet. explain: add a reading for newcomers."""

    report: PatchReport
    explain: bool = False

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.patch.data import write_patch_json

        write_patch_json(self.report, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.patch.data import patch_rows

        return patch_rows(self.report)

    def document(self) -> Document:
        from attnviz.draw.provenance import advised
        from attnviz.patch.document import first_groups, patch_document

        document = patch_document(self.report, self.explain)
        tokens = self.report.pairs[0].clean
        return document._replace(first=advised(partial(first_groups, self.report), tokens))


def _hints(report: PatchReport, request: Request, explained: bool) -> tuple[str, ...]:
    """What to try next."""
    hints = []
    if report.source.endswith("built-in pairs"):
        hints.append('"CLEAN" "CORRUPT" your own')
    elif len(report.pairs) == 1:
        hints.append("--pairs FILE for intervals")
    carrying = [report.names(effect) for effect in report.ranking(2)]
    if len(carrying) == 2 and report.together is None and not report.whole_layers:
        hints.append(f"--together {','.join(carrying)}")
    if len(report.pairs) == 1 and not request.by_token:
        hints.append("--by-token")
    if not explained:
        hints.append("--explain")
    return tuple(hints)
