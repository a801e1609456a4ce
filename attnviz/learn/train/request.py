"""The options of ``attnviz train``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.options import Options, argument, flag, option

if TYPE_CHECKING:  # slow to import
    from attnviz.learn.train.recipe import Recipe


@dataclass(frozen=True)
class _Trained(Options, panel="What to train"):
    """The options on the texts, the output directory and the recipe; None if the recipe decides."""

    files: tuple[Path, ...] = argument(
        "FILES",
        "UTF-8 text files to train on; a directory means its *.txt files.",
        (),
        show_default=False,
        rich_help_panel=None,
        brief="UTF-8 text files, or directories of *.txt files.",
    )
    out: Path = option(
        "DIR",
        "Write the model to DIR, which must not exist yet.",
        ...,
        short="-o",
        show_default=False,
    )
    valid: tuple[Path, ...] = option(
        "FILES…",
        "Validate on these texts; --valid takes one or more (default: the last tenth of the text, "
        "held out).",
        (),
        brief="Validate on these texts.",
    )
    config: Path | None = option(
        "FILE",
        "Use this recipe, a TOML file such as configs/tiny.toml (default: 4 layers × 4 heads, "
        "1.7 minutes).",
        brief="Use this recipe, a TOML file.",
    )
    vocabulary: int | None = option(
        "N", "Vocabulary size (default: 4096, or what the text allows)."
    )
    seed: int | None = option(
        "N", "Random seed (weights, data order; default: the recipe's, else 0).", min=0
    )

    def check_kept(self, saves: Sequence[Path]) -> None:
        """Raise UsageError if one of ``saves`` is in a directory of texts to train on."""
        read = [text for path in (*self.files, *self.valid) for text in path.glob("*.txt")]
        for path in filter(Path.exists, saves):
            if any(path.samefile(text) for text in read):
                raise UsageError(f"--save {path} would overwrite a text to train on: name another")


@dataclass(frozen=True)
class _Duration(Options, panel="How long"):
    """The options on the budget of the training; None if the recipe decides."""

    minutes: float | None = option("M", "Minutes to train; evaluation is extra.")
    tokens: int | None = option(
        "N",
        "Number of tokens to train on; unlike --minutes, gives the same model every time.",
        min=1,
    )
    resume: bool = flag("Resume the interrupted run in --out.")


@dataclass(frozen=True)
class TrainRequest(_Trained, _Duration):
    """All options of ``attnviz train``."""

    def recipe(self) -> Recipe:
        """Return the recipe of the config (``read_recipe``), or the default, with the options."""
        from attnviz.learn.train.recipe import Recipe, TrainingBudget, read_recipe

        recipe = Recipe() if self.config is None else read_recipe(self.config)
        if self.minutes is not None or self.tokens is not None:
            recipe = replace(recipe, budget=TrainingBudget(self.tokens, self.minutes))
        if self.vocabulary is not None:
            recipe = replace(recipe, vocabulary=self.vocabulary)
        return recipe if self.seed is None else replace(recipe, seed=self.seed)
