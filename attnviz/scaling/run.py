"""What ``attnviz scaling`` does once its options are read: draw or load, measure, show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.cli.inputs import read_texts
from attnviz.cli.options import Output
from attnviz.cli.outlet import open_outlet
from attnviz.cli.progress import loading, scanning
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.engine.over_text import encoded
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.models.memory import require_room
from attnviz.models.resolve import LoadOptions, load
from attnviz.scaling.model_scores import model_scaling, needed_text_bytes
from attnviz.scaling.random_scores import needed_bytes, random_scaling
from attnviz.scaling.records import ScalingReport
from attnviz.scaling.request import ModelWish, RandomWish
from attnviz.scaling.screen import scaling_screen

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["Softmaxed", "show_model_scaling", "show_random_scaling"]

_WHAT = "the scores and weights take"


def show_random_scaling(wish: RandomWish, explain: bool, output: Output) -> None:
    """Measure random queries and keys. What can be refused is refused before any is drawn."""
    outlet = open_outlet(output)
    needed = needed_bytes(wish.sizes, wish.seq, wish.samples)
    require_room(_WHAT, needed, "choose a smaller --d-k, --seq or --samples")
    with scanning("softening scores", outlet.notices) as advance:
        report = random_scaling(wish.sizes, wish.seq, wish.samples, wish.seed, advance)
    hints = ("next: --from-model shows a trained model's own queries and keys",)
    outlet.show(Softmaxed(report, explain, _hints(hints, explain, output)))


def show_model_scaling(
    name: str, options: LoadOptions, wish: ModelWish, explain: bool, output: Output
) -> None:
    """Measure a model's queries and keys. What can be refused is refused before it is loaded."""
    outlet = open_outlet(output)
    texts = read_texts(wish.text, wish.file, None)
    text = texts.texts[0]
    with loading(name, outlet.notices) as progress:
        model = load(name, replace(options, progress=progress))
        info = model.info
        heads = choose_heads(wish.layers, wish.heads, info.layers, info.heads, wish.index_base)
        tokens = encoded(model, text, wish.truncate)
        if len(tokens) < 2:
            raise UsageError(
                "the text has one token: expected at least two, or there is nothing to choose"
            )
        room = needed_text_bytes(len(tokens))
        require_room(_WHAT, room, "shorten the text, or add --truncate")
        report = model_scaling(
            model,
            tokens,
            heads,
            seed=options.seed,
            by_head=bool(wish.heads),
            index_base=wish.index_base,
        )
    report = replace(report, text=text, source=texts.source)
    hints = () if wish.heads else ("next: --head L0H0 shows one head",)
    outlet.show(Softmaxed(report, explain, _hints(hints, explain, output)))


def _hints(first: tuple[str, ...], explain: bool, output: Output) -> tuple[str, ...]:
    """What to try next."""
    if output.quiet:
        return ()
    return first if explain else (*first, "--explain reads it for you")


@dataclass(frozen=True)
class Softmaxed:
    """What the scale does, and how it is to be seen."""

    report: ScalingReport
    explain: bool
    hints: tuple[str, ...]

    def screen(self, theme: Theme, console: Console) -> Block:
        return scaling_screen(self.report, theme, console.width, self.hints, self.explain)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.scaling.json import write_scaling_json

        write_scaling_json(self.report, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import page_files, text_file
        from attnviz.scaling.csv import write_scaling_csv
        from attnviz.scaling.page import scaling_page

        csv = text_file(partial(write_scaling_csv, self.report))
        return {".csv": csv, **page_files(partial(scaling_page, self.report), palette)}
