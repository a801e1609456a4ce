"""What ``attnviz prune`` does once its options are read: load, measure, store, show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnviz.cli.inputs import Texts
from attnviz.cli.options import Output
from attnviz.cli.outlet import open_outlet
from attnviz.cli.progress import loading, scanning
from attnviz.errors import UsageError
from attnviz.models.resolve import LoadOptions, load
from attnviz.prune.records import PruneReport
from attnviz.prune.request import PruneWish
from attnviz.prune.whole_directory import check_new_directory

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document

__all__ = ["PruneWish", "show_prune"]


def show_prune(
    read_texts: Callable[[], Texts],
    model_name: str,
    options: LoadOptions,
    wish: PruneWish,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded."""
    if model_name == "mha":
        raise UsageError(
            "'mha' is attention with random weights, without a loss to prune by: choose tiny or a "
            "language model"
        )
    outlet = open_outlet(output)
    if wish.out is not None:
        check_new_directory(wish.out)
    texts = read_texts()
    with loading(model_name, outlet.notices) as progress:
        model = load(model_name, replace(options, progress=progress))
    from attnviz.prune.job import prune_model  # brings torch

    with scanning("removing heads", outlet.notices) as advance:
        report = prune_model(model, texts, wish, advance)
    hints = () if output.quiet else _hints(report, wish)
    outlet.show(_Pruned(report, wish.explain, hints))


@dataclass(frozen=True)
class _Pruned:
    """What was removed, and how it is to be seen."""

    report: PruneReport
    explain: bool
    hints: Sequence[str]

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.prune.data import write_prune_json

        write_prune_json(self.report, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.prune.data import prune_rows

        return prune_rows(self.report)

    def document(self) -> Document:
        from attnviz.prune.document import prune_document

        return prune_document(self.report, self.hints, self.explain)


def _hints(report: PruneReport, wish: PruneWish) -> Sequence[str]:
    """What to try next."""
    hints = []
    if report.steps and wish.out is None:
        hints.append("--out DIR writes the pruned model")
    masked = report.pruned.form == "masked" and report.pruned.shrinks
    if masked and not wish.uniform and not wish.heads:
        hints.append("--uniform takes equally many from every layer, so that they can be cut")
    if not wish.rerank:
        hints.append("--rerank ranks again after each removal")
    return (f"next: {hints[0]}", *hints[1:]) if hints else ()
