"""``attnviz diff``: what changed between two models, beyond a noise floor measured in the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.diff.options import Compared, ConditionB, Drawn, Request, Sides

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.inspect.diff.records import DiffReport
    from attnviz.inspect.diff.sides import LiveSide
    from attnviz.models.model import Model
    from attnviz.records import Advance

EXAMPLES = """
[bold]Examples[/bold]

attnviz diff openai-community/gpt2 ./tuned

attnviz diff ./model ./model --dtype-b bfloat16 --texts stories.txt

attnviz diff ./model ./pruned --match --importance --save diff.html

attnviz patterns --model ./model --save base.json && attnviz diff base.json ./tuned
"""


@command(EXAMPLES)
def diff(
    sides: Sides,
    condition: ConditionB,
    compared: Compared,
    truncation: options.Truncation,
    counted: options.IndexBase,
    drawn: Drawn,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Compare two models head by head, beyond a noise floor."""
    request = Request(sides, condition, compared, truncation, counted, loading, drawn.seed)
    from attnviz.cli import progress
    from attnviz.cli.outlet import open_outlet
    from attnviz.inspect.diff.sides import LiveSide, both_sides
    from attnviz.models.resolve import load

    outlet = open_outlet(output)
    a, b = both_sides(request)

    def open_model(side: LiveSide) -> Model:
        with progress.loading(side.name, outlet.notices) as advance:
            return load(side.name, replace(side.options, progress=advance))

    def scanning() -> AbstractContextManager[Advance]:
        return progress.scanning("comparing heads", outlet.notices)

    if isinstance(a, LiveSide) and isinstance(b, LiveSide):
        from attnviz.inspect.diff.job import compared as compared_models

        report = compared_models(request, a, b, open_model, scanning)
    else:
        from attnviz.inspect.diff.saved_job import compared_saved

        report = compared_saved(request, a, b, open_model, scanning)
    outlet.show(_Compared(report, output.explain, () if output.quiet else _hints(request, report)))


def _hints(request: Request, report: DiffReport) -> tuple[str, ...]:
    """What to try next."""
    hints = []
    if not request.compared.importance and report.predictions is not None:
        hints.append("--importance: do the changes matter?")
    if report.source.endswith("built-in texts"):
        hints.append("--texts FILE your data")
    if not report.matched and not report.saved and report.unmatched_a:
        hints.append("--match")
    return (*hints, "--explain")


@dataclass(frozen=True)
class _Compared:
    """What was found, for every outlet. explain: add a reading for newcomers."""

    report: DiffReport
    explain: bool
    hints: tuple[str, ...]

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.inspect.diff.data import write_diff_json

        write_diff_json(self.report, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.diff.data import diff_rows

        return diff_rows(self.report)

    def document(self) -> Document:
        from attnviz.inspect.diff.document import diff_document

        return diff_document(self.report, self.explain, self.hints)
