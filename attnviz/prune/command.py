"""``attnviz prune``: remove the least important heads for good."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.cli.groups import Options, command, flag, option
from attnviz.cli.options import (
    IndexBase,
    Loading,
    ModelName,
    Output,
    Texts,
    Truncation,
    load_options,
)

__all__ = ["EXAMPLES", "Measure", "Removal", "prune"]

EXAMPLES = """
[bold]Examples[/bold]

attnviz prune --fraction 0.3

attnviz prune --fraction 0.25 --uniform --out smaller

attnviz prune --until-loss 1.05 --rerank --texts stories.txt

attnviz prune --heads L0H1,L2H3 --out without-two

attnviz prune --model openai-community/gpt2 --fraction 0.2 --method gradient
"""


@dataclass(frozen=True)
class Removal(Options, panel="What is removed"):
    """Which heads go, and where the rest is written."""

    fraction: float | None = option("SHARE", "Remove this share of all heads, between 0 and 1.")
    heads: tuple[str, ...] = option(
        "HEADS",
        "Remove these: L2H5, 3 (of every layer), 2.5, 0-3.1,4; may be repeated.",
        (),
        short="--head -H",
    )
    until_loss: float | None = option(
        "RATIO", "Remove heads while the loss stays below this multiple of the whole model's."
    )
    uniform: bool = flag("Take equally many heads from every layer, so that they can be cut out.")
    empty_layers: bool = flag(
        "A layer may lose all its heads; else it keeps one.", name="--allow-empty-layers"
    )
    out: Path | None = option("DIR", "Write the pruned model there, a new directory.", short="-o")


@dataclass(frozen=True)
class Measure(Options, panel="What is measured"):
    """In which order heads go, and what that is held against."""

    method: Literal["exact", "gradient"] = option(
        "METHOD",
        "Order by exact (what each costs alone) or gradient (a first-order hint).",
        "exact",
    )
    rerank: bool = flag("Rank what is left again after each removal.")
    draws: int = option("N", "Random orders to compare with; 0 for none.", 5, min=0, max=1000)
    max_memory: str | None = option("SIZE", "The most memory measuring may take, such as 2GB.")
    seed: int = option("N", "Of the random orders, and of random weights.", 0, min=0)


@command(EXAMPLES)
def prune(
    texts: Texts,
    truncation: Truncation,
    removal: Removal,
    measure: Measure,
    counted: IndexBase,
    model: ModelName,
    loading: Loading,
    output: Output,
) -> None:
    """Remove the least important heads for good, beside as many at random."""
    from attnviz.cli.inputs import read_texts
    from attnviz.prune.run import PruneWish, show_prune

    wish = PruneWish(
        **vars(removal),
        **vars(measure),
        **vars(counted),
        **vars(truncation),
        explain=output.explain,
    )
    show_prune(
        lambda: read_texts(texts.text, texts.file, texts.texts),
        model.model,
        load_options(model.model, loading, measure.seed),
        wish,
        output,
    )
