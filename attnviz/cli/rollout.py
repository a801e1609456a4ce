"""The command ``attnviz rollout``: attention through all layers, for each output token."""

from __future__ import annotations

from dataclasses import replace

from attnviz.cli.groups import command
from attnviz.cli.options import Loading, Output, SeededModel, Text, load_options
from attnviz.inspect.rollout.request import RolloutRequest
from attnviz.options import OwnShape

EXAMPLES = """
[bold]Examples[/bold]

attnviz rollout "The cat sat on the mat because it was tired."

attnviz rollout "Mary met John, and John met Mary." --values --explain

attnviz rollout --file story.txt --save rollout.svg
"""


@command(EXAMPLES, "--values --sink --file --truncate")
def rollout(
    text: Text,
    request: RolloutRequest,
    model: SeededModel,
    own: OwnShape,
    loading: Loading,
    output: Output,
) -> None:
    """Follow attention through all layers, from each output token to the input."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.inspect.rollout import rollout as question
    from attnviz.regions import given_text

    options = load_options(model.model, loading, model.seed, own)
    outlet = open_outlet(output)
    content = given_text(request, text.text, text.file, "rollout")
    watched = replace(options, tokens=question.reckoned_length(content, request))
    with outlet.opened(model.model, watched) as loaded:
        report = question.rollout(loaded, content, request)
    outlet.show(report)
