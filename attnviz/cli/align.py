"""The command ``attnviz align``: which cross-attention heads align words with a sound or a text."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.align.request import AlignOptions, AlignRequest

EXAMPLES = """
attnviz align --audio clips --words words.csv --model openai/whisper-tiny
attnviz align --audio a.wav --audio b.wav --words words.json --save heads.json
attnviz align --pairs gold.txt --model Helsinki-NLP/opus-mt-en-de
attnviz align --pairs gold.tsv --model t5-small --prefix "translate English to German:"
"""


@command(EXAMPLES, "--audio --words --pairs --most")
def align(
    given: AlignOptions, request: AlignRequest, model: shared.LoadedModel, output: shared.Output
) -> None:
    """Find the cross-attention heads that align words with a sound or a translation."""
    outlet = Outlet.open(output, model)
    from attnviz.inspect.align import align as question

    studied = given.read(request.recipe)
    with outlet.of(model.model):
        opened = outlet.load_model(question.work(studied))
        outlet.run("reading examples", question.align, opened, studied, request)
