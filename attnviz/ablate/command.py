"""``attnviz ablate``: what is lost when heads are removed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.cli.groups import Options, command, flag, option
from attnviz.cli.options import (
    HeadChoice,
    IndexBase,
    Kind,
    Loading,
    Model,
    Output,
    OwnShape,
    Texts,
    Truncation,
    load_options,
    saved,
)

__all__ = [
    "EXAMPLES",
    "AblatedModel",
    "AblationOutput",
    "Measure",
    "Removal",
    "View",
    "WrittenText",
    "ablate",
]

EXAMPLES = """
[bold]Examples[/bold]

attnviz ablate

attnviz ablate --head 3

attnviz ablate "When Mary and John went out, John gave a book to Mary." --head L1H0 --by-token

attnviz ablate --texts stories.txt --mode mean --resume scan.jsonl --save scan.csv

attnviz ablate --model openai-community/gpt2 --method budget --budget 30s
"""


@dataclass(frozen=True)
class WrittenText(Kind):
    """Which attention of a model that has several."""

    target: str | None = option(
        "TEXT",
        "Text that an encoder–decoder is to write (default: its own greedy output).",
        words=True,
    )


@dataclass(frozen=True)
class Removal(Options, panel="What is removed"):
    """What is removed, and what takes its place."""

    together: bool = flag("Remove the chosen heads all at once, not one at a time.")
    unit: Literal["head", "kv-head", "layer"] = option(
        "UNIT", "head, kv-head (all heads that share it) or layer.", "head"
    )
    mode: Literal["zero", "mean", "resample"] = option(
        "MODE",
        "A removed head's output becomes zero, its mean over the reference, or that of another "
        "text (resample).",
        "zero",
    )
    reference: Path | None = option(
        "FILE", "Texts that mean and resample draw from (default: the measured texts)."
    )
    draws: int | None = option("N", "Texts that a resample draws for each text (4).", min=1)


@dataclass(frozen=True)
class Measure(Options, panel="What is measured"):
    """What is measured, and how."""

    metric: (
        Literal["loss_delta", "kl", "flip_rate", "output_mse", "output_cosine", "logit_diff"] | None
    ) = option(
        "METRIC",
        "What is ranked and coloured: loss_delta (default), kl, flip_rate, output_mse, "
        "output_cosine or logit_diff.",
    )
    answer: str | None = option(
        "TOKEN", "With --foil: the change of logit(answer) - logit(foil).", words=True
    )
    foil: str | None = option("TOKEN", "See --answer.", words=True)
    positions: Literal["all", "last"] = option(
        "WHICH", "all predictions, or the last one of each text only.", "all"
    )
    method: Literal["exact", "gradient", "budget"] | None = option(
        "METHOD",
        "exact, gradient (a first-order hint, one backward pass) or budget (the hint ranks, the "
        "top is measured).",
    )
    budget: str | None = option("AMOUNT", "What --method budget may spend: 30s, 5m, or 20 heads.")
    max_memory: str | None = option(
        "SIZE", "The most memory a scan may take, such as 2GB (default: a share of what is free)."
    )
    resume: Path | None = option(
        "FILE", "Keep the result of each finished text there, and go on where a run ended."
    )


@dataclass(frozen=True)
class View(Options, panel="View"):
    """What is to be seen."""

    by_token: bool = flag("Where in the text the removal hurts.")
    top: int = option("N", "Heads in the ranking.", 8, min=1)


@dataclass(frozen=True)
class AblatedModel(Model):
    """The model that loses heads."""

    seed: int = option("N", "Of random weights, draws, intervals and the control.", 0, min=0)


@dataclass(frozen=True)
class AblationOutput(Output):
    """The options of the same names."""

    save: tuple[Path, ...] = saved(".json .csv .svg .html .png .pdf .txt")


@command(EXAMPLES)
def ablate(
    texts: Texts,
    truncation: Truncation,
    kind: WrittenText,
    choice: HeadChoice,
    removal: Removal,
    measure: Measure,
    view: View,
    counted: IndexBase,
    model: AblatedModel,
    own: OwnShape,
    loading: Loading,
    output: AblationOutput,
) -> None:
    """Remove heads and measure what is lost; all of them, exactly, in one scan."""
    from attnviz.ablate.head_choice import RemovalChoice
    from attnviz.ablate.request import ScanWish, ViewWish
    from attnviz.ablate.run import show_ablation
    from attnviz.cli.inputs import read_texts

    show_ablation(
        lambda: read_texts(texts.text, texts.file, texts.texts),
        model.model,
        load_options(model.model, loading, model.seed, own),
        ScanWish(
            RemovalChoice(
                choice.layer, choice.head, counted.index_base, removal.unit, removal.together
            ),
            mode=removal.mode,
            reference=removal.reference,
            draws=removal.draws,
            **vars(measure),
            **vars(kind),
            **vars(truncation),
        ),
        ViewWish(**vars(view), explain=output.explain),
        output,
    )
