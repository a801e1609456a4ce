"""``attnviz rollout``: attention followed through all layers, to each output token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnviz.cli.groups import command
from attnviz.cli.options import Loading, Model, Output, OwnShape, Text, load_options
from attnviz.options import Options, Truncation, flag, option

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.cli.outlet import Outlet
    from attnviz.draw.document import Document
    from attnviz.engine.capture import Choice
    from attnviz.inspect.rollout.document import Shown
    from attnviz.inspect.rollout.flow import Rollout
    from attnviz.models.resolve import LoadOptions

SCHEMA = "attnviz.rollout/1"
_MATRICES = 4
"""Of the text by itself in float64, that a rollout holds at once."""

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
        "KIND", "Follow the encoder (default) or the decoder of an encoder–decoder."
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
    sink: bool = option(
        "",
        "Keep the attention sink (first token, special tokens), raw; or leave it out and rescale.",
        False,
        name="--sink/--no-sink",
    )


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
    from attnviz.cli.outlet import open_outlet
    from attnviz.engine.capture import Choice
    from attnviz.inspect.rollout.document import Shown
    from attnviz.texts import read_text

    options = load_options(model.model, loading, model.seed, own)
    choice = Choice(**vars(attention), **vars(truncation))
    outlet = open_outlet(output)
    content = read_text(text.text, text.file, "rollout")
    found, target = _followed(model.model, options, content, choice, outlet)
    shown = Shown(view.values, view.sink, output.explain, not output.quiet)
    outlet.show(RolloutReport(found, content, target, shown))


def _followed(
    name: str, options: LoadOptions, text: str, choice: Choice, outlet: Outlet
) -> tuple[Rollout, str | None]:
    """The rollout, and the decoder's text where it was followed."""
    from attnviz.cli.progress import loading
    from attnviz.engine.capture import attention_kind, encoded, target_tokens
    from attnviz.inspect.rollout.flow import rollout
    from attnviz.measures.words import joined
    from attnviz.models.memory import require_room
    from attnviz.models.model import TwoStackModel
    from attnviz.models.resolve import load, reckoned_tokens

    with loading(name, outlet.notices) as progress:
        model = load(name, replace(options, progress=progress, tokens=reckoned_tokens(text)))
        kind = attention_kind(model, choice)
        tokens, target = encoded(model, text, choice.truncate), None
        if isinstance(model, TwoStackModel) and kind == "decoder":
            target = target_tokens(model, tokens, choice)
        length = len(target or tokens)
        require_room(
            f"following {length:,} tokens through the layers takes",
            _MATRICES * 8 * length**2,
            "shorten the text, or add --truncate",
        )
        found = rollout(model, tokens, kind=kind, target=target)
    if target is None:
        return found, None
    return found, choice.target if choice.target is not None else joined(target)


# What is shown -------------------------------------------------------------------------------


class RolloutReport(NamedTuple):
    """A rollout for every outlet.

    target: what the decoder read where it was followed. shown: how it is to be seen.
    """

    found: Rollout
    text: str
    target: str | None
    shown: Shown

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Everything as one JSON object, ASCII only."""
        from attnviz.draw.values import model_facts
        from attnviz.inspect.heads.data import weight_rows

        found = self.found
        data = {
            "schema": SCHEMA,
            "model": model_facts(found.model),
            "text": self.text,
            "kind": found.kind,
            "causal": found.causal,
            "layers": found.layers,
            "tokens": list(found.tokens.texts),
            "token_ids": list(found.tokens.ids),
            "rollout": weight_rows(found.matrix),
            "last_layer": weight_rows(found.raw),
            "sink": found.sink.nonzero()[0].tolist(),
            "rollout_without_sink": weight_rows(found.without_sink()),
        }
        stream.write(json.dumps(data, allow_nan=False) + "\n")

    def rows(self) -> Iterator[tuple[object, ...]]:
        """A row a pair: query and key, their tokens, the rollout and the last layer's weight."""
        found, texts = self.found, self.found.tokens.texts
        yield ("query", "key", "query_token", "key_token", "rollout", "last_layer")
        matrices = zip(found.matrix.tolist(), found.raw.tolist(), strict=True)
        for query, (row, last) in enumerate(matrices):
            for key in range(query + 1 if found.causal else len(texts)):
                yield query, key, texts[query], texts[key], row[key], last[key]

    def document(self) -> Document:
        from attnviz.inspect.rollout.document import rollout_document

        return rollout_document(self.found, self.text, self.target, self.shown)
