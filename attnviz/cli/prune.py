"""The command ``attnviz prune``: removes the least important heads for good."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.prune.request import PruneRequest

EXAMPLES = """
attnviz prune --fraction 0.3
attnviz prune --fraction 0.25 --uniform --out smaller
attnviz prune --until-loss 1.05 --rerank --texts stories.txt
attnviz prune --head L0H1,L2H3 --out without-two
attnviz prune --model openai-community/gpt2 --fraction 0.2 --method gradient
"""


@command(EXAMPLES, "--fraction --head --until-loss --out --texts")
def prune(
    texts: shared.TextOrTexts,
    request: PruneRequest,
    model: shared.LoadedModel,
    output: shared.Output,
) -> None:
    """Remove the least important heads, and compare with removing random ones."""
    from attnviz.draw.whole_file import check_new_directory
    from attnviz.inspect.prune import prune as question
    from attnviz.texts import read_texts

    outlet = Outlet.open(output, model, seed=request.seed, limits_runs=True)
    if request.out is not None:
        check_new_directory(request.out)
    read = read_texts(texts.text, texts.file, texts.texts, texts.column)
    loaded = outlet.load_model(question.work(read, request))
    outlet.run("removing heads", question.prune, loaded, read, request, long=False)
