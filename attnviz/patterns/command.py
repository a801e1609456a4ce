"""``attnviz patterns``: what every head does, scored, labelled and held against a base rate."""

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
    Text,
    Truncation,
    complete_label,
    load_options,
)

__all__ = ["EXAMPLES", "ScoredModel", "Scoring", "View", "patterns"]

EXAMPLES = """
[bold]Examples[/bold]

attnviz patterns

attnviz patterns --watch induction

attnviz patterns "When Mary and John went out, John gave a book to Mary." --stats

attnviz patterns --without-first --control random-weights --save patterns.csv

attnviz patterns --model openai-community/gpt2 --probe my-pairs.tsv
"""


@dataclass(frozen=True)
class Scoring(Options, panel="What is scored"):
    """What is scored, and against what."""

    probe: tuple[Path, ...] = option(
        "FILE",
        "Annotated sentences of your own, in place of the built-in English ones; may be repeated.",
        (),
    )
    raw: bool = flag("The weights as they are (default).")
    without_first: bool = flag(
        "Leave out the weight on the first token, and let the rest sum to one."
    )
    norm_weighted: bool = flag("Each weight times the norm of what it moves.")
    control: Literal["random-weights"] | None = option(
        "CONTROL", "random-weights: score the same architecture with random weights, too."
    )


@dataclass(frozen=True)
class View(Options, panel="View"):
    """What is to be seen."""

    watch: str | None = option(
        "LABEL",
        "Only one label: every head, ranked by its score.",
        autocompletion=complete_label,
    )
    stats: bool = flag("Entropy, distance, confidence and first-token share of every head.")
    top: int | None = option("N", "Heads listed for a label (4; with --watch 24).", min=1)


@dataclass(frozen=True)
class ScoredModel(Model):
    """The model that is scored."""

    seed: int = option("N", "Of random weights, random tokens and the control.", 0, min=0)


@command(EXAMPLES)
def patterns(
    text: Text,
    truncation: Truncation,
    kind: Kind,
    choice: HeadChoice,
    scoring: Scoring,
    view: View,
    counted: IndexBase,
    model: ScoredModel,
    own: OwnShape,
    loading: Loading,
    output: Output,
) -> None:
    """Score what every head does, label it, and hold it against a base rate."""
    from attnviz.patterns.request import PatternWish, ViewWish, chosen_view
    from attnviz.patterns.run import show_patterns

    show_patterns(
        model.model,
        load_options(model.model, loading, model.seed, own),
        PatternWish(
            text.text,
            text.file,
            scoring.probe,
            chosen_view(scoring.raw, scoring.without_first, scoring.norm_weighted),
            scoring.control,
            choice.layer,
            choice.head,
            counted.index_base,
            kind.kind,
            kind.target,
            truncation.truncate,
        ),
        ViewWish(**vars(view), explain=output.explain),
        output,
    )
