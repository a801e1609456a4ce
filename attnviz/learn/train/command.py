"""``attnviz train``: a small language model of the library's own attention, from text files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.cli.groups import OptionsOnce, command
from attnviz.cli.options import Device, Output
from attnviz.errors import UsageError
from attnviz.options import Options, argument, flag, option

if TYPE_CHECKING:  # heavier than the options
    from attnviz.learn.train.recipe import Recipe
    from attnviz.learn.train.texts import Corpus

_LISTS = ("--valid",)


class ListOptions(OptionsOnce):
    """Reads ``--valid a b c`` as ``--valid a --valid b --valid c``.

    Without it, all but the first file of a pattern would silently become texts to train on.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_lists(args))


def spread_lists(arguments: Sequence[str], lists: Sequence[str] = _LISTS) -> list[str]:
    """The arguments, every value that follows one of ``lists`` with the option before it.

    An option's values end at the next argument that begins with ``-``.
    """
    spread: list[str] = []
    option = ""
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*spread, argument, *rest]
        if argument.startswith("-"):
            name, equals, value = argument.partition("=")
            option = name if name in lists else ""
            spread += [name, value] if option and equals else [argument]
            if option and not equals and rest and not rest[0].startswith("-"):
                spread.append(rest.pop(0))
        else:
            spread += [option, argument] if option else [argument]
    return spread


EXAMPLES = """
[bold]Examples[/bold]

attnviz train story.txt --out my-model

attnviz train books/ --valid held-out/*.txt --minutes 30 --out my-model

attnviz train books/ --valid held-out/ --config configs/tiny.toml --out tiny

attnviz train books/ --valid held-out/ --config configs/tiny.toml --out tiny --resume

attnviz heads --model my-model "The cat sat on the mat because the cat was tired."
"""


@dataclass(frozen=True)
class Trained(Options, panel="What is trained"):
    """What is trained on which texts; None where the recipe decides."""

    files: tuple[Path, ...] = argument(
        "FILES",
        "UTF-8 text files to train on; a directory stands for its *.txt files.",
        (),
        show_default=False,
        rich_help_panel=None,
    )
    out: Path = option(
        "DIR", "Write the model to this new directory.", ..., short="-o", show_default=False
    )
    valid: tuple[Path, ...] = option(
        "FILES…",
        "Validate on these texts, several after one --valid (default: the last tenth of the "
        "text, held out).",
        (),
    )
    config: Path | None = option(
        "FILE",
        "Train by this recipe, a TOML file such as configs/tiny.toml (default: 4 layers × 4 "
        "heads, 1.7 minutes).",
    )
    vocabulary: int | None = option(
        "N", "Vocabulary size (default: 4096, or what the text allows)."
    )
    seed: int | None = option(
        "N",
        "Random seed (weights, order of the text; default: the recipe's, 0).",
        min=0,
    )

    def check_kept(self, saves: Sequence[Path]) -> None:
        """Raise UsageError where a file to be written is one that is read."""
        read = [*self.files, *self.valid, *([self.config] if self.config else [])]
        files = [file for one in read for file in (one.glob("*.txt") if one.is_dir() else [one])]
        for path in filter(Path.exists, saves):
            if any(path.samefile(file) for file in files if file.exists()):
                raise UsageError(f"--save {str(path)!r} is a file that is read: name another one")

    def texts(self) -> tuple[Corpus, Corpus]:
        """The text to train on and the text to validate on.

        Raises LoadError and UsageError as ``read_corpus`` does, UsageError where a text is in both,
        or none is named.
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

    def recipe(self, duration: Duration) -> Recipe:
        """The config's recipe, or the default one, with what the options say instead.

        Raises LoadError and UsageError as ``read_recipe`` does.
        """
        from attnviz.learn.train.recipe import Budget, Recipe, read_recipe

        recipe = Recipe() if self.config is None else read_recipe(self.config)
        if duration.minutes is not None or duration.tokens is not None:
            recipe = replace(recipe, budget=Budget(duration.tokens, duration.minutes))
        if self.vocabulary is not None:
            recipe = replace(recipe, vocabulary=self.vocabulary)
        return recipe if self.seed is None else replace(recipe, seed=self.seed)


@dataclass(frozen=True)
class Duration(Options, panel="How long"):
    """How long it may take; the recipe decides where nothing is said."""

    minutes: float | None = option("M", "Train for so many minutes, last measurements included.")
    tokens: int | None = option(
        "N", "Train on so many tokens; the same run again gives the same model.", min=1
    )
    resume: bool = flag("Go on with the interrupted run in --out.")

    def __post_init__(self) -> None:
        if self.minutes is not None and self.tokens is not None:
            raise UsageError("--minutes and --tokens are two budgets: give one of them")


@command(EXAMPLES, ListOptions)
def train(trained: Trained, duration: Duration, device: Device, output: Output) -> None:
    """Train a small language model of the library's own attention on your texts."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.learn.train.directory import check_directory
    from attnviz.learn.train.session import train_and_show
    from attnviz.models.placement import find_device

    outlet = open_outlet(output)
    trained.check_kept(output.save)
    recipe = trained.recipe(duration)
    check_directory(trained.out, duration.resume)
    place = find_device(device.device)
    texts = trained.texts()
    train_and_show(*texts, recipe, trained.out, place, outlet, resume=duration.resume)
