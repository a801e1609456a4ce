"""The command ``attnviz lens``: what the model would predict after each block."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.lens.request import LensRequest

EXAMPLES = """
[bold]Examples[/bold]

attnviz lens "When Nancy met John, nobody knew why Nancy met"

attnviz lens "Then Mary saw Tom. Then Mary saw" --answer Mary --head L1H2

attnviz lens "The Eiffel Tower stands in the city of" --model openai-community/gpt2
"""


@command(EXAMPLES, "--answer --position --head", draws="weights")
def lens(
    prompt: shared.PromptText,
    request: LensRequest,
    model: shared.SeededModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: shared.ArrayOutput,
) -> None:
    """Show what the model would predict after each block, and what heads write there."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.draw.labels import visible
    from attnviz.inspect.lens import lens as question
    from attnviz.regions import given_text

    options = shared.load_options(model.model, loading, model.seed, own)
    outlet = open_outlet(output)
    text = given_text(request, prompt.text, prompt.file, "lens")
    source = "" if prompt.file is None else visible(str(prompt.file))
    with outlet.loading(model.model, options) as watched:
        loaded = question.open_model(model.model, watched, text)
    outlet.show(question.lens(loaded, text, request, source=source))
