"""The command ``attnviz retrieve``: which heads fetch a fact from a long text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.draw.report import EVERY
from attnviz.inspect.retrieve.request import RetrieveRequest

EXAMPLES = """
[bold]Examples[/bold]

attnviz retrieve

attnviz retrieve --needle "The password is|blue rain" --haystack book.txt --lengths 256,1k

attnviz retrieve --model Qwen/Qwen2.5-0.5B --lengths 1k,4k --save full_attention_heads.tsv
"""


@dataclass(frozen=True)
class _Output(shared.Output):
    """The output options of every command, with the table that DuoAttention reads."""

    save: tuple[Path, ...] = shared.saved(f"{EVERY} .tsv")


@command(EXAMPLES, "--needle --haystack --chat --lengths --top", draws="haystacks, random heads")
def retrieve(
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
    sentences = read_sentences(request.haystack)
    tokens, texts = question.reckoned(request)
    loaded = outlet.load(model.model, replace(options, tokens=tokens, texts=texts))
    with outlet.advancing("fetching needles", long=True) as advance:
        report = question.retrieve(loaded, sentences, request, advance=advance)
    outlet.show(report)
