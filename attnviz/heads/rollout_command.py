"""``attnviz rollout``: attention followed through all layers, to each output token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnviz.cli.groups import Options, command, flag, option
from attnviz.cli.options import Loading, Model, Output, OwnShape, Text, Truncation, load_options

__all__ = ["EXAMPLES", "SelfAttention", "View", "rollout"]

EXAMPLES = """
[bold]Examples[/bold]

attnviz rollout "The cat sat on the mat because it was tired."

attnviz rollout "When Mary and John went out, John gave Mary a book." --values --explain

attnviz rollout --file story.txt --save rollout.svg
"""


@dataclass(frozen=True)
class SelfAttention(Options):
    """Which self-attention of an encoder–decoder."""

    kind: Literal["self", "encoder", "decoder"] | None = option(
        "KIND", "Of an encoder–decoder: encoder (default) or decoder."
    )
    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder (default: the model's own greedy output).",
        words=True,
    )


@dataclass(frozen=True)
class View(Options, panel="View"):
    """What is to be seen."""

    values: bool = flag("Write the shares in the cells.")


@command(EXAMPLES)
def rollout(
    text: Text,
    truncation: Truncation,
    attention: SelfAttention,
    view: View,
    model: Model,
    own: OwnShape,
    loading: Loading,
    output: Output,
) -> None:
    """Follow attention through all layers, from each output token to the input."""
    from attnviz.cli.inputs import read_text
    from attnviz.engine.over_text import Choice
    from attnviz.heads.rollout_run import show_rollout

    show_rollout(
        lambda: read_text(text.text, text.file, "rollout"),
        model.model,
        load_options(model.model, loading, model.seed, own),
        Choice(**vars(attention), **vars(truncation)),
        view.values,
        output.explain,
        output,
    )
