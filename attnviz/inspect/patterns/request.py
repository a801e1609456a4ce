"""The options of ``patterns``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.errors import UsageError
from attnviz.measures.registry import View
from attnviz.options import (
    HeadChoice,
    IndexBase,
    Kind,
    Known,
    Options,
    Seed,
    Truncation,
    flag,
    option,
)


@dataclass(frozen=True)
class _Scoring(Options, panel="What to score"):
    """The options on the texts and weights that are scored, and on the random baseline."""

    probe: tuple[Path, ...] = option(
        "FILE",
        "Your own annotated sentences instead of the built-in English ones; may be repeated.",
        (),
        brief="Your own annotated sentences.",
    )
    without_first: bool = flag("Leave out the weight on the first token and renormalise.")
    norm_weighted: bool = flag(
        "Score each weight times the norm of the value vector it multiplies."
    )
    reduce: Literal["auto", "fused", "blocks", "full"] = option(
        "MODE",
        "How to compute attention: full (a layer's whole matrices), blocks (of rows) or fused "
        "(only sums, no weights); auto depends on the length of the text.",
        "auto",
    )
    control: Literal["random-weights"] | None = option(
        "CONTROL",
        "random-weights: also score the same architecture with random weights.",
        brief="random-weights: compare with an untrained copy.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.without_first and self.norm_weighted:
            raise UsageError(
                "expected one view: --without-first and --norm-weighted exclude each other"
            )

    @property
    def view(self) -> View:
        """Return the transform of the attention weights before they are scored, such as ``raw``."""
        if self.without_first:
            return "without-first"
        return "norm-weighted" if self.norm_weighted else "raw"


@dataclass(frozen=True)
class _Shown(Options, panel="View"):
    """The options on what is shown of the pattern scores."""

    watch: str | None = option("LABEL", "Rank every head by its score for one label.")
    top: int | None = option(
        "N",
        "Number of heads to list per label (default: 4; 24 with --watch).",
        min=1,
        brief="Number of heads to list per label.",
    )


@dataclass(frozen=True)
class PatternsRequest(Truncation, Kind, HeadChoice, _Scoring, _Shown, Known, IndexBase, Seed):
    """All options of ``patterns``."""

    def control_seed(self, drawn: int | None) -> int | None:
        """Return the seed of the random baseline, a model with random parameters; None without one.

        drawn: the seed of the model's own parameters if they are random: the baseline must differ.
        """
        return None if self.control is None else self.seed + (self.seed == drawn)
