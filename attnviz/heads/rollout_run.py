"""What ``attnviz rollout`` does once its options are read: load, follow, show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.cli.options import Output
from attnviz.cli.outlet import open_outlet
from attnviz.cli.progress import loading
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.engine.over_text import Choice, attention_kind, encoded, target_tokens
from attnviz.heads.rollout import rollout
from attnviz.heads.rollout_screen import rollout_screen
from attnviz.measures.records import Rollout
from attnviz.measures.words import joined
from attnviz.models.memory import require_room
from attnviz.models.model import TwoStackModel
from attnviz.models.resolve import LoadOptions, load

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["Followed", "show_rollout"]

_MATRICES = 4
"""Of the text by itself in float64, that a rollout holds at once."""


def show_rollout(
    read_text: Callable[[], str],
    model_name: str,
    options: LoadOptions,
    choice: Choice,
    values: bool,
    explained: bool,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded.

    values: write the shares in the cells. explained: add a reading for newcomers.
    """
    outlet = open_outlet(output)
    text = read_text()
    with loading(model_name, outlet.notices) as progress:
        model = load(model_name, replace(options, progress=progress))
        kind = attention_kind(model, choice)
        tokens = encoded(model, text, choice.truncate)
        target = None
        if isinstance(model, TwoStackModel) and kind == "decoder":
            target = target_tokens(model, tokens, choice)
        length = len(target or tokens)
        require_room(
            f"following {length:,} tokens through the layers takes",
            _MATRICES * 8 * length**2,
            "shorten the text, or add --truncate",
        )
        found = rollout(model, tokens, kind=kind, target=target)

    decoded = None
    if target is not None:
        decoded = choice.target if choice.target is not None else joined(target)

    outlet.show(Followed(found, text, decoded, values, explained))


@dataclass(frozen=True)
class Followed:
    """A rollout and how it is to be seen."""

    found: Rollout
    text: str
    decoded: str | None
    values: bool
    explained: bool

    def screen(self, theme: Theme, console: Console) -> Block:
        return rollout_screen(
            self.found, self.text, theme, console.width, self.values, self.explained, self.decoded
        )

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.heads.rollout_page import write_rollout_json

        write_rollout_json(self.found, self.text, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import page_files, text_file
        from attnviz.heads.rollout_page import rollout_page, write_rollout_csv

        csv = text_file(partial(write_rollout_csv, self.found))
        page = partial(rollout_page, self.found, self.text, palette)
        return {".csv": csv, **page_files(page, palette)}
