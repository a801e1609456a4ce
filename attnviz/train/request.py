"""What a person asks of ``attnviz train``, and the recipe that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.errors import UsageError

if TYPE_CHECKING:  # the recipe's module is heavier than the options
    from attnviz.train.corpus import Corpus
    from attnviz.train.recipe import Recipe

__all__ = ["TrainWish", "check_not_overwritten", "read_texts", "wished_recipe"]


@dataclass(frozen=True)
class TrainWish:
    """The options of the same names; None where the recipe decides."""

    files: tuple[Path, ...]
    valid: tuple[Path, ...]
    config: Path | None
    out: Path
    vocabulary: int | None
    seed: int | None
    minutes: float | None
    tokens: int | None
    resume: bool
    device: str
    explain: bool


def wished_recipe(wish: TrainWish) -> Recipe:
    """The config's recipe, or the default one, with what the options say instead.

    Raises LoadError and UsageError as ``read_recipe`` does, UsageError for two budgets.
    """
    from attnviz.train.recipe import Budget, Recipe
    from attnviz.train.recipe_file import read_recipe

    if wish.minutes is not None and wish.tokens is not None:
        raise UsageError("--minutes and --tokens are two budgets: give one of them")
    recipe = Recipe() if wish.config is None else read_recipe(wish.config)
    if wish.minutes is not None or wish.tokens is not None:
        recipe = replace(recipe, budget=Budget(wish.tokens, wish.minutes))
    if wish.vocabulary is not None:
        recipe = replace(recipe, vocabulary=wish.vocabulary)
    return recipe if wish.seed is None else replace(recipe, seed=wish.seed)


def check_not_overwritten(wish: TrainWish, saves: Sequence[Path]) -> None:
    """Raise UsageError where a file to be written is one that is read."""
    read = [*wish.files, *wish.valid, *([wish.config] if wish.config else [])]
    files = [file for one in read for file in (one.glob("*.txt") if one.is_dir() else [one])]
    for path in filter(Path.exists, saves):
        if any(path.samefile(file) for file in files if file.exists()):
            raise UsageError(f"--save {str(path)!r} is a file that is read: name another one")


def read_texts(wish: TrainWish) -> tuple[Corpus, Corpus]:
    """The text to train on and the text to validate on.

    Raises LoadError and UsageError as ``read_corpus`` does, UsageError where a text is in both, or
    none is named.
    """
    from attnviz.train.corpus import hold_out, read_corpus

    if not wish.files:
        raise UsageError(
            "no text to learn from: name FILES, before --valid, which takes all that follow it"
        )
    train = read_corpus(wish.files)
    if not wish.valid:
        return hold_out(train)
    valid = read_corpus(wish.valid)
    known = dict(zip(train.texts, train.names, strict=True))
    for name, text in zip(valid.names, valid.texts, strict=True):
        if text in known:
            same = "" if known[text] == name else f" (as {known[text]!r})"
            raise UsageError(
                f"{name!r} is among the texts to train on{same} and to validate on: a model "
                "must be measured on text that it never saw"
            )
    return train, valid
