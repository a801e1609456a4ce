"""The command ``attnviz ablate``: how much the loss rises if heads are ablated."""

from __future__ import annotations

from dataclasses import replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.options import Sharding

EXAMPLES = """
[bold]Examples[/bold]

attnviz ablate

attnviz ablate --head 3

attnviz ablate "When Mary and John went out, John gave a book to Mary." --head L1H0 --by-token

attnviz ablate "The cat sat on the mat because it was tired." --edge "it→cat"

attnviz ablate --texts stories.txt --mode mean --resume scan.jsonl --save scan.csv

attnviz ablate --model openai-community/gpt2 --method budget --budget 30s
"""

_FOLLOWED = 3
"""Number of heads whose losses by token a first screen may show."""


@command(
    EXAMPLES,
    "--head --by-token --texts --mode --budget --together",
    draws="weights, resampling, bootstrap, control",
)
def ablate(
    texts: shared.TextOrTexts,
    request: AblateRequest,
    model: shared.SeededModel,
    own: shared.OwnShape,
    share: Sharding,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Ablate each head and measure how much the loss rises."""
    # Options are checked before a model is loaded. Ctrl-C shows the partial result.
    from attnviz.cli.outlet import open_outlet
    from attnviz.corpus import (
        RECKONED_TEXTS,
        RECKONED_TOKENS,
        is_corpus,
        open_corpus,
        read_shard,
        under_torchrun,
    )
    from attnviz.inspect.interventions.ablate import ablate as question
    from attnviz.regions import chat_or_text
    from attnviz.texts import read_texts

    options = shared.load_options(model.model, loading, model.seed, own, limits_runs=True)
    outlet = open_outlet(output)
    text = chat_or_text(request, texts.text, texts.file)
    alone = texts.texts if text is None and texts.file is None else None
    large = alone is not None and is_corpus(alone)
    if share.shard is not None or under_torchrun() or large:
        from attnviz.inspect.interventions.ablate.corpus import ablate_over, refuse_for_corpus

        if alone is None:
            raise UsageError("--shard is for a corpus: give --texts FILE alone")
        refuse_for_corpus(request)
        corpus, (shard, kept) = (
            open_corpus(alone, texts.column),
            read_shard(share.shard, request.resume),
        )
        options = replace(options, tokens=RECKONED_TOKENS, texts=RECKONED_TEXTS, changed=True)
        loaded = outlet.load(model.model, options)
        with outlet.resumable(kept), outlet.advancing("ablating heads", long=True) as watch:
            report = ablate_over(loaded, corpus, request, shard, kept, watch)
        if shard.number == 0 or share.shard is not None:  # of a torchrun, one process speaks
            outlet.show(report)
        return
    read = read_texts(text, texts.file, texts.texts, texts.column)
    tokens = question.reckoned(read, request)
    joined = request.second is not None
    options = replace(options, tokens=tokens, changed=True, joined=joined)
    loaded = outlet.load(model.model, options)
    drawn = outlet.console is not None and not output.whole
    with outlet.resumable(request.resume), outlet.advancing("ablating heads", long=True) as advance:
        report = question.ablate(
            loaded, read, request, followed=_FOLLOWED if drawn else 0, advance=advance
        )
    outlet.show(report)
    if not report.complete:
        outlet.interrupted(request.resume)
