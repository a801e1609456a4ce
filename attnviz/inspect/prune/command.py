"""``attnviz prune``: remove the least important heads for good."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import UsageError
from attnviz.inspect.prune.options import Measure, Removal

if TYPE_CHECKING:
    from attnviz.inspect.prune.records import PruneReport

EXAMPLES = """
[bold]Examples[/bold]

attnviz prune --fraction 0.3

attnviz prune --fraction 0.25 --uniform --out smaller

attnviz prune --until-loss 1.05 --rerank --texts stories.txt

attnviz prune --heads L0H1,L2H3 --out without-two

attnviz prune --model openai-community/gpt2 --fraction 0.2 --method gradient
"""


@command(EXAMPLES)
def prune(
    texts: shared.Texts,
    truncation: options.Truncation,
    removal: Removal,
    measure: Measure,
    counted: options.IndexBase,
    model: shared.ModelName,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Remove the least important heads, beside as many at random."""
    from attnviz.cli.outlet import Found, open_outlet
    from attnviz.draw.whole_file import check_new_directory
    from attnviz.texts import read_texts

    options = shared.load_options(model.model, loading, measure.seed)
    if model.model == "mha":
        raise UsageError(
            "'mha' is attention with random weights, without a loss to prune by: choose tiny or a "
            "language model"
        )
    _ = measure.memory  # a size that cannot be read is told now
    outlet = open_outlet(output)
    if removal.out is not None:
        check_new_directory(removal.out)
    read = read_texts(texts.text, texts.file, texts.texts)
    with outlet.opened(model.model, options) as loaded:
        from attnviz.inspect.prune.data import prune_data, prune_rows
        from attnviz.inspect.prune.document import prune_document
        from attnviz.inspect.prune.job import prune_model  # brings torch
    with outlet.advancing("removing heads") as advance:
        report = prune_model(
            loaded, read, removal, measure, advance, counted.index_base, truncation.truncate
        )
    hints = () if output.quiet else _hints(report)
    drawn = partial(prune_document, report, hints, output.explain)
    outlet.show(Found(partial(prune_data, report), partial(prune_rows, report), drawn))


def _hints(report: PruneReport) -> Sequence[str]:
    hints, removal = [], report.removal
    if report.steps and removal.out is None:
        hints.append("--out DIR: write the pruned model")
    masked = report.pruned.form == "masked" and report.pruned.shrinks
    if masked and not removal.uniform and not removal.heads:
        hints.append("--uniform: equally many from every layer, to be cut")
    if not report.measure.rerank:
        hints.append("--rerank: rank again after each removal")
    if report.texts == 1:
        hints.append("--texts FILE: your texts")
    return hints
