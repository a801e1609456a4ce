"""The command ``attnviz prune``: removes the least important heads for good."""

from __future__ import annotations

from dataclasses import replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.prune.request import PruneRequest

EXAMPLES = """
[bold]Examples[/bold]

attnviz prune --fraction 0.3

attnviz prune --fraction 0.25 --uniform --out smaller

attnviz prune --until-loss 1.05 --rerank --texts stories.txt

attnviz prune --heads L0H1,L2H3 --out without-two

attnviz prune --model openai-community/gpt2 --fraction 0.2 --method gradient
"""


@command(EXAMPLES, "--fraction --heads --until-loss --out --texts")
def prune(
    texts: shared.TextOrTexts,
    request: PruneRequest,
    model: shared.ModelName,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Remove the least important heads; compare with as many removed at random."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.draw.whole_file import check_new_directory
    from attnviz.inspect.prune import prune as question
    from attnviz.texts import read_texts

    options = shared.load_options(model.model, loading, request.seed, limits_runs=True)
    outlet = open_outlet(output)
    if request.out is not None:
        check_new_directory(request.out)
    read = read_texts(texts.text, texts.file, texts.texts, texts.column)
    tokens, runs = question.reckoned(read, request)
    if model.model == "tiny":  # torch only writes it
        tokens = 0
    options = replace(options, tokens=tokens, texts=runs, changed=True)
    loaded = outlet.load(model.model, options)
    if options.backend != "numpy" and question.needs_torch(loaded):
        loaded = outlet.load(model.model, replace(options, tokens=None))
    with outlet.advancing("removing heads") as advance:
        report = question.prune(loaded, read, request, advance=advance)
    outlet.show(report)
