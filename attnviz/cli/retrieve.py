"""The command ``attnviz retrieve``: which heads fetch a fact from a long text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.draw.report import EVERY
from attnviz.inspect.retrieve.request import RetrieveRequest
from attnviz.options import ManyTexts

EXAMPLES = """
attnviz retrieve
attnviz retrieve --needle "The password is|blue rain" --haystack book.txt
attnviz retrieve --model Qwen/Qwen2.5-0.5B --lengths 1k,4k --save full_attention_heads.tsv
attnviz retrieve --texts books.jsonl --lengths 512 --shard 0/4 --resume part-0.record
"""


@dataclass(frozen=True)
class _Output(shared.Output):
    """The output options of every command, with the table that DuoAttention reads."""

    save: tuple[Path, ...] = shared.saved(f"{EVERY} .tsv")


@command(EXAMPLES, "--needle --haystack --chat --lengths --top", draws="haystacks, random heads")
def retrieve(
    many: ManyTexts, request: RetrieveRequest, model: shared.DrawnModel, output: _Output
) -> None:
    """Find the heads that fetch a fact from a long text, and test the model without them."""
    from attnviz.inspect.retrieve import retrieve as question
    from attnviz.inspect.retrieve.haystacks import read_sentences

    outlet = Outlet.open(output, model)
    if many.texts is not None:
        from attnviz.inspect.retrieve.corpus import refuse_for_corpus, retrieve_over

        refuse_for_corpus(request)
        outlet.run_over("fetching needles", retrieve_over, question.work, request, **vars(many))
        return
    sentences = read_sentences(request.haystack)
    loaded = outlet.load_model(question.work(None, request))
    outlet.run("fetching needles", question.retrieve, loaded, sentences, request)
