"""The command ``attnviz atlas``: on what each head fires most, over many texts."""

from __future__ import annotations

from dataclasses import replace

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.atlas.request import AtlasRequest
from attnviz.options import ManyTexts

EXAMPLES = """
[bold]Examples[/bold]

attnviz atlas

attnviz atlas tiny --top 3 --out atlas

attnviz atlas openai-community/gpt2 --texts stories.jsonl --out gpt2-atlas

attnviz atlas ./my-checkpoint --texts corpus.jsonl --shard 0/4 --resume part-0.record
"""


@command(EXAMPLES, "--texts --out --top --shard")
def atlas(
    named: shared.ModelArgument,
    many: ManyTexts,
    request: AtlasRequest,
    model: shared.SeededModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Show on what each head fires most over many texts, beside what is usual for it."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.corpus import RECKONED_TEXTS, RECKONED_TOKENS, open_corpus, read_shard
    from attnviz.draw.whole_file import check_new_directory
    from attnviz.inspect.atlas import atlas as question
    from attnviz.texts import built_in_texts

    name = named.chosen(model.model)
    options = shared.load_options(name, loading, model.seed, own)
    outlet = open_outlet(output)
    if request.out is not None:
        check_new_directory(request.out)
    corpus = open_corpus(built_in_texts() if many.texts is None else many.texts, many.column)
    shard, file = read_shard(many.shard, many.resume)
    options = replace(options, tokens=RECKONED_TOKENS, texts=RECKONED_TEXTS)
    loaded = outlet.load(name, options)
    with outlet.resumable(file), outlet.advancing("reading texts", long=True) as watch:
        report = question.atlas(loaded, corpus, request, shard, file, watch)
    if request.out is not None:
        report.write(request.out, loaded, output.palette)
        outlet.notices.print(f"the atlas is {request.out}", soft_wrap=True)
    outlet.show(report.with_maps(loaded) if output.pages else report)
