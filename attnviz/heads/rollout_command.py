"""``attnviz rollout``: attention followed through all layers, to each output token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from attnviz.cli.groups import Options, command, flag, option
from attnviz.cli.options import Loading, Model, Output, OwnShape, Text, Truncation, load_options

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.cli.outlet import Outlet
    from attnviz.draw.document import Document, Part
    from attnviz.engine.capture import Choice
    from attnviz.heads.rollout import Rollout
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
    from attnviz.cli.outlet import open_outlet
    from attnviz.engine.capture import Choice

    options = load_options(model.model, loading, model.seed, own)
    choice = Choice(**vars(attention), **vars(truncation))
    outlet = open_outlet(output)
    content = read_text(text.text, text.file, "rollout")
    found, target = _followed(model.model, options, content, choice, outlet)
    outlet.show(RolloutReport(found, content, target, view.values, output.explain))


def _followed(
    name: str, options: LoadOptions, text: str, choice: Choice, outlet: Outlet
) -> tuple[Rollout, str | None]:
    """The rollout, and the decoder's text where it was followed."""
    from attnviz.cli.progress import loading
    from attnviz.engine.capture import attention_kind, encoded, target_tokens
    from attnviz.heads.rollout import rollout
    from attnviz.measures.words import joined
    from attnviz.models.memory import require_room
    from attnviz.models.model import TwoStackModel
    from attnviz.models.resolve import load

    with loading(name, outlet.notices) as progress:
        model = load(name, replace(options, progress=progress))
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

_EXPLANATION = (
    "How to read this: a row is an output token, a column an input token, and the cell is the "
    "share of the output that comes from there; a row sums to one.",
    "rollout: in each layer half of a token is taken to come from where its heads look on "
    "average, and half from itself, past them (the residual stream). The layers are multiplied, "
    "so that what a token has from others counts on through all of them (Abnar & Zuidema 2020).",
    "last layer: the same rows of the last layer alone, without what was mixed before: its keys "
    "are places, no longer words, because every layer below has already moved words around.",
    "limits: rollout knows where heads look, not what they move; it takes all heads for equal and "
    "forgets the feed-forward layers. It is a picture of flow, not a proof of influence.",
)


@dataclass(frozen=True)
class RolloutReport:
    """A rollout for every outlet.

    target: what the decoder read where it was followed. values: write the shares in the cells.
    explain: add a reading for newcomers.
    """

    found: Rollout
    text: str
    target: str | None = None
    values: bool = False
    explain: bool = False

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Everything as one JSON object, ASCII only."""
        from attnviz.draw.values import model_facts
        from attnviz.heads.data import weight_rows

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
        """Attention through all layers beside that of the last one."""
        from attnviz.draw.document import Document, Facts, Group, Map, Maps, Note, Quote, Say
        from attnviz.draw.provenance import counted, model_words

        found, info = self.found, self.found.model
        words = [] if found.kind == "self" else [f"{found.kind} attention"]
        words.append(f"{len(found.tokens)} tokens")
        words += [] if info.seed is None else [f"seed {info.seed}"]
        about: list[Part] = [
            Facts([*model_words(info), *((word, False) for word in words)]),
            Quote("text", self.text),
            *([] if self.target is None else [Quote("target", self.target)]),
        ]
        matrices = {
            f"rollout through {counted(found.layers, 'layer')}": found.matrix,
            "last layer, mean of its heads": found.raw,
        }
        maps = [
            Map(name, matrix, found.tokens, found.tokens, causal=found.causal)
            for name, matrix in matrices.items()
        ]
        return Document(
            f"rollout of {info.name}",
            f"Attention of {info.name} followed through its layers",
            [
                Group(about),
                Group([Note(note) for note in info.notes]),
                Group([Maps(maps, values=self.values, least_cell=3, crowded=True)]),
            ],
            [Say(line, 100) for line in _EXPLANATION] if self.explain else (),
        )
