"""``attnviz params``: from a shape or a model's name to what it costs, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnviz.cli.groups import command
from attnviz.cli.options import Output
from attnviz.count.params.options import (
    Attention,
    FeedForward,
    Hub,
    Latent,
    Named,
    Rest,
    Running,
    View,
)

if TYPE_CHECKING:  # the program's form needs no drawing, and --help no counting
    from _typeshed import SupportsWrite

    from attnviz.count.params.cases import Counted
    from attnviz.draw.document import Document

EXAMPLES = """
[bold]Examples[/bold]

attnviz params --d-model 4096 --heads 32

attnviz params --d-model 4096 --heads 32 --compare kv-heads=32,8,1

attnviz params --d-model 512 --heads 8 --layers 6 --d-ff 2048 --formula

attnviz params llama-2-70b --tokens 4096 --memory 160GB

attnviz params gpt2 bert-base llama-2-7b --save models.md
"""


@command(EXAMPLES)
def params(
    named: Named,
    attention: Attention,
    latent: Latent,
    feed_forward: FeedForward,
    rest: Rest,
    running: Running,
    view: View,
    hub: Hub,
    output: Output,
) -> None:
    """Count parameters, KV cache, operations and memory of any attention design, exactly."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.count.params.cases import compared_cases, requested_cases

    shape = {**vars(attention), **vars(latent), **vars(feed_forward), **vars(rest)}
    shape["linear"] = attention.linear or None
    given = {name: value for name, value in shape.items() if value is not None}
    outlet = open_outlet(output)
    if view.compare:
        counted = compared_cases(view.compare, named, given, running, hub)
    else:
        counted = requested_cases(named, given, running, hub)
    hints = [] if output.quiet or output.explain else list(_hints(named, running, view))
    outlet.show(_Report(counted, view, hints, output.explain))


class _Report(NamedTuple):
    """What was counted, and how it is to be seen."""

    counted: Counted
    view: View
    hints: Sequence[str]
    explain: bool

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.count.params.data import write_params_json

        write_params_json(self.counted, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.count.params.data import params_rows

        return params_rows(self.counted)

    def document(self) -> Document:
        from attnviz.count.params.document import params_document

        return params_document(self.counted, self.view, self.hints, self.explain)


def _hints(named: Named, running: Running, view: View) -> Iterator[str]:
    """What to try next: nothing that was given."""
    given = {*running.given(), *view.given()}
    if "--memory" not in given:
        yield "--memory 24GB: does it fit"
    if len(named.each) < 2 and "--compare" not in given:
        yield "--compare dtype=float32,int8" if named.each else "--compare heads=8,16,32"
        if "--formula" not in given:
            yield "--formula: the arithmetic"
    yield "--explain: how to read this"
