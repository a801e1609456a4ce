"""The command ``attnviz lens``: what the model would predict after each block."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.lens.request import LensRequest

EXAMPLES = """
attnviz lens "When Nancy met John, nobody knew why Nancy met"
attnviz lens "Then Mary saw Tom. Then Mary saw" --answer Mary --head L1H2
attnviz lens "The Eiffel Tower stands in the city of" --model openai-community/gpt2
"""


@command(EXAMPLES, "--answer --position --head", draws="weights")
def lens(
    prompt: shared.PromptText,
    request: LensRequest,
    model: shared.ShapedModel,
    output: shared.ArrayOutput,
) -> None:
    """Show what the model would predict after each block, and what heads write there."""
    from attnviz.draw.labels import visible
    from attnviz.inspect.lens import lens as question
    from attnviz.regions import given_text

    outlet = Outlet.open(output, model)
    text = given_text(request, prompt.text, prompt.file, "lens")
    source = "" if prompt.file is None else visible(str(prompt.file))
    loaded = outlet.load_model(question.work(text, request))
    outlet.show(question.lens(loaded, text, request, source=source))
