"""The command ``attnviz rollout``: attention through all layers, for each output token."""

from __future__ import annotations

from attnviz.cli.groups import command
from attnviz.cli.options import OnePicture, Output, ShapedModel, Text
from attnviz.cli.outlet import Outlet
from attnviz.inspect.rollout.request import RolloutRequest

EXAMPLES = """
attnviz rollout "The cat sat on the mat because it was tired."
attnviz rollout "Mary met John, and John met Mary." --values --explain
attnviz rollout --file story.txt --save rollout.svg
attnviz rollout --image cat.jpg --model facebook/dinov2-small
"""


@command(EXAMPLES, "--token --values --sink --file")
def rollout(
    text: Text, picture: OnePicture, request: RolloutRequest, model: ShapedModel, output: Output
) -> None:
    """Follow attention through all layers, from each output token to the input."""
    from attnviz.inspect.rollout import rollout as question
    from attnviz.models.work import Work
    from attnviz.regions import given_text

    outlet = Outlet.open(output, model)
    if picture.image is not None:
        content = picture.path(text, request)
        options = outlet.of_model(Work(pictures=True))
    else:
        content = given_text(request, text.text, text.file, "rollout")
        options = outlet.of_model(question.work(content, request))
    with outlet.opened(model.model, options) as loaded:
        report = question.rollout(loaded, content, request)
    outlet.show(report)
