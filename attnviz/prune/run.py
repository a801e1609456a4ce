"""What ``attnviz prune`` does once its options are read: load, measure, store, show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.cli.outlet import open_outlet
from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.cli.scan_progress import scanning
from attnviz.cli.texts_input import Texts
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.errors import UsageError
from attnviz.models.resolve import LoadOptions, load
from attnviz.prune.records import PruneReport
from attnviz.prune.request import PruneWish
from attnviz.prune.screen import prune_screen
from attnviz.prune.whole_directory import check_new_directory

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

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

    def screen(self, theme: Theme, console: Console) -> Block:
        return prune_screen(self.report, theme, console.width, self.hints, self.explain)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.prune.json import write_prune_json

        write_prune_json(self.report, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import text_file
        from attnviz.prune.csv import write_prune_csv

        return {".csv": text_file(partial(write_prune_csv, self.report))}


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
