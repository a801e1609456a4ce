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
    from attnviz.learn.train.texts import Corpus


@dataclass(frozen=True)
class _Trained(Options, panel="What is trained"):
    """The options on the texts, the output directory and the recipe; None if the recipe decides."""

    files: tuple[Path, ...] = argument(
        "FILES",
        "UTF-8 text files to train on; a directory stands for its *.txt files.",
        (),
        show_default=False,
        rich_help_panel=None,
        brief="UTF-8 text files; a directory: its *.txt files.",
    )
    out: Path = option(
        "DIR", "Write the model to this new directory.", ..., short="-o", show_default=False
    )
    valid: tuple[Path, ...] = option(
        "FILES…",
        "Validate on these texts, several after one --valid (default: the last tenth of the "
        "text, held out).",
        (),
        brief="Validate on these texts.",
    )
    config: Path | None = option(
        "FILE",
        "Train by this recipe, a TOML file such as configs/tiny.toml (default: 4 layers × 4 "
        "heads, 1.7 minutes).",
        brief="Train by this recipe, a TOML file.",
    )
    vocabulary: int | None = option(
        "N", "Vocabulary size (default: 4096, or what the text allows)."
    )
    seed: int | None = option(
        "N", "Random seed (weights, order of the text; default: the recipe's, 0).", min=0
    )

    def check_kept(self, saves: Sequence[Path]) -> None:
        """Raise UsageError if a file to be written is also one that the training uses.

        saves: the files to be written.
        """
        read = [*self.files, *self.valid, *([self.config] if self.config else [])]
        files = [file for one in read for file in (one.glob("*.txt") if one.is_dir() else [one])]
        for path in filter(Path.exists, saves):
            if any(path.samefile(file) for file in files if file.exists()):
                raise UsageError(f"--save {str(path)!r} is a file that is read: name another one")

    def texts(self) -> tuple[Corpus, Corpus]:
        """Return the text to train on and the text to validate on.

        Raises LoadError and UsageError as ``read_corpus`` does, UsageError also if no text is named
        or a text is in both.
        """
        from attnviz.learn.train.texts import hold_out, read_corpus

        if not self.files:
            raise UsageError(
                "no text to learn from: name FILES, before --valid, which takes all that follow it"
            )
        train = read_corpus(self.files)
        if not self.valid:
            return hold_out(train)
        valid = read_corpus(self.valid)
        known = dict(zip(train.texts, train.names, strict=True))
        for name, text in zip(valid.names, valid.texts, strict=True):
            if text in known:
                same = "" if known[text] == name else f" (as {known[text]!r})"
                raise UsageError(
                    f"{name!r} is among the texts to train on{same} and to validate on: a model "
                    "must be measured on text that it never saw"
                )
        return train, valid


@dataclass(frozen=True)
class _Duration(Options, panel="How long"):
    """The options on the budget of the training; None if the recipe decides."""

    minutes: float | None = option("M", "Minutes to train, final measurements included.")
    tokens: int | None = option(
        "N", "Number of tokens to train on; the same run again gives the same model.", min=1
    )
    resume: bool = flag("Go on with the interrupted run in --out.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes is not None and self.tokens is not None:
            raise UsageError("--minutes and --tokens are two budgets: give one of them")


@dataclass(frozen=True)
class TrainRequest(_Trained, _Duration):
    """All options of ``attnviz train``."""

    def recipe(self) -> Recipe:
        """Return the recipe of the config, or the default one, changed by the options.

        Raises LoadError and UsageError as ``read_recipe`` does.
        """
        from attnviz.learn.train.recipe import Recipe, TrainingBudget, read_recipe

        recipe = Recipe() if self.config is None else read_recipe(self.config)
        if self.minutes is not None or self.tokens is not None:
            recipe = replace(recipe, budget=TrainingBudget(self.tokens, self.minutes))
        if self.vocabulary is not None:
            recipe = replace(recipe, vocabulary=self.vocabulary)
        return recipe if self.seed is None else replace(recipe, seed=self.seed)
