"""``attnviz heads``: from a sentence to heatmaps of every head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.cli.groups import Options, command, flag, option
from attnviz.cli.options import (
    HeadChoice,
    IndexBase,
    Loading,
    Model,
    Output,
    OwnShape,
    Text,
    Truncation,
    load_options,
    saved,
)

__all__ = ["EXAMPLES", "HeadsOutput", "Kinds", "Variants", "View", "heads"]

Measure = Literal[
    "previous",
    "first",
    "self",
    "next",
    "duplicate",
    "induction",
    "entropy",
    "normalised_entropy",
    "distance",
    "confidence",
]

EXAMPLES = """
[bold]Examples[/bold]

attnviz heads "The cat sat on the mat because it was tired."

attnviz heads "When Mary and John went out, John gave Mary a book." --head L1H0 --values

attnviz heads --file story.txt --layer 0-1 --top 3

attnviz heads "A text." --model ./my-checkpoint --token text --save heads.svg

attnviz heads "나는 오늘 학교에 갔다 ." --model mha --d-model 64 --heads 8 --causal

attnviz heads "the cat sat on the mat" --model mha --kind self,cross --target "four words of query"
"""


@dataclass(frozen=True)
class Kinds(Options):
    """Which attention of a model that has several; several of them stand side by side."""

    kind: str | None = option(
        "KIND",
        "Of an encoder–decoder: encoder (default), decoder or cross; of mha: self (default) or "
        "cross; several with commas: side by side.",
    )
    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder and cross (default: the model's own greedy output); with "
        "mha the text of the queries, which look at TEXT.",
        words=True,
    )


@dataclass(frozen=True)
class View(Options, panel="View"):
    """What is to be seen."""

    values: bool = flag("Write the weights in the cells.")
    top: int | None = option("N", "The N strongest token pairs of each head, as a table.", min=1)
    token: str | None = option(
        "WORD|INDEX", "What one word looks at and is looked at by, over all heads.", words=True
    )
    sort: Measure | None = option(
        "MEASURE",
        "Order the heads by previous, first, self, next, duplicate, induction, entropy, "
        "normalised_entropy, distance or confidence; largest first.",
    )
    reverse: bool = flag("Smallest first.")


@dataclass(frozen=True)
class Variants(OwnShape):
    """The shape of ``mha``, and what of it is compared."""

    compare_mask: bool = flag("The same heads without and with the causal mask, side by side.")
    score: str | None = option(
        "SCORE",
        "How a query and a key are matched: scaled-dot (q·k/√d_k, the default), dot (q·k) or "
        "additive (v·tanh(q + k), Bahdanau); several with commas: side by side.",
    )


@dataclass(frozen=True)
class HeadsOutput(Output):
    """The options of the same names."""

    save: tuple[Path, ...] = saved(".json .csv .npz .safetensors .svg .html .txt .png .pdf")


@command(EXAMPLES)
def heads(
    text: Text,
    choice: HeadChoice,
    kinds: Kinds,
    truncation: Truncation,
    view: View,
    counted: IndexBase,
    model: Model,
    own: Variants,
    loading: Loading,
    output: HeadsOutput,
) -> None:
    """Show where each attention head looks, over one text."""
    from attnviz.cli.inputs import read_text
    from attnviz.errors import UsageError
    from attnviz.heads.run import Choice, Wish, show_heads
    from attnviz.heads.variants import make_variants

    if own.compare_mask and own.causal is not None:
        raise UsageError("--compare-mask shows both: leave out --causal and --no-causal")
    compared = ["compare_mask"] * own.compare_mask + ["score"] * bool(own.score)
    show_heads(
        lambda: read_text(text.text, text.file),
        model.model,
        make_variants(
            load_options(model.model, loading, model.seed, own, *compared),
            Choice(
                choice.layer,
                choice.head,
                counted.index_base,
                target=kinds.target,
                truncate=truncation.truncate,
            ),
            kinds.kind,
            own.score,
            own.compare_mask,
        ),
        Wish(**vars(view), explain=output.explain),
        output,
    )
