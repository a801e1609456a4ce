"""The command ``attnviz retrieve``: which heads fetch a fact from a long text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.draw.report import EVERY
from attnviz.inspect.retrieve.request import RetrieveRequest
from attnviz.options import ManyTexts

EXAMPLES = """
[bold]Examples[/bold]

attnviz retrieve

attnviz retrieve --needle "The password is|blue rain" --haystack book.txt --lengths 256,1k

attnviz retrieve --model Qwen/Qwen2.5-0.5B --lengths 1k,4k --save full_attention_heads.tsv

attnviz retrieve --texts books.jsonl --lengths 512 --shard 0/4 --resume part-0.record
"""


@dataclass(frozen=True)
class _Output(shared.Output):
    """The output options of every command, with the table that DuoAttention reads."""

    save: tuple[Path, ...] = shared.saved(f"{EVERY} .tsv")


@command(EXAMPLES, "--needle --haystack --chat --lengths --top", draws="haystacks, random heads")
def retrieve(
    many: ManyTexts,
    request: RetrieveRequest,
    model: shared.SeededModel,
    loading: shared.Loading,
    output: _Output,
) -> None:
    """Find the heads that fetch a fact from a long text, and what their loss costs."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.inspect.retrieve import retrieve as question
    from attnviz.inspect.retrieve.haystacks import read_sentences

    options = shared.load_options(model.model, loading, model.seed)
    outlet = open_outlet(output)
    if many.texts is not None:
        from attnviz.corpus import RECKONED_TEXTS, RECKONED_TOKENS, open_corpus, read_shard
        from attnviz.inspect.retrieve.corpus import refuse_for_corpus, retrieve_over

        refuse_for_corpus(request)
        corpus = open_corpus(many.texts, many.column)
        shard, kept = read_shard(many.shard, many.resume)
        options = replace(options, tokens=RECKONED_TOKENS, texts=RECKONED_TEXTS)
        loaded = outlet.load(model.model, options)
        with outlet.resumable(kept), outlet.advancing("fetching needles", long=True) as watch:
            report = retrieve_over(loaded, corpus, request, shard, kept, watch)
        if shard.number == 0 or many.shard is not None:  # of a torchrun, one process speaks
            outlet.show(report)
        return
    sentences = read_sentences(request.haystack)
    tokens, texts = question.reckoned(request)
    loaded = outlet.load(model.model, replace(options, tokens=tokens, texts=texts))
    with outlet.advancing("fetching needles", long=True) as advance:
        report = question.retrieve(loaded, sentences, request, advance=advance)
    outlet.show(report)
