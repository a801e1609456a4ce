"""``attnviz train``: a small language model of the library's own attention, from text files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from attnviz.cli.groups import Options, argument, command, flag, option
from attnviz.cli.options import Device, Output, saved

__all__ = ["EXAMPLES", "Budget", "ListOptions", "TrainOutput", "Trained", "spread_lists", "train"]

_LISTS = ("--valid",)


class ListOptions(TyperCommand):
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
    """What is trained on which texts."""

    files: tuple[Path, ...] = argument(
        "FILES",
        "UTF-8 text files to learn from; a directory stands for its *.txt files.",
        (),
        show_default=False,
        rich_help_panel=None,
    )
    out: Path = option(
        "DIR", "The model's directory, a new one.", ..., short="-o", show_default=False
    )
    valid: tuple[Path, ...] = option(
        "FILES…",
        "Texts to validate on, several after one --valid (default: the last tenth of the text, "
        "which is then not learned from).",
        (),
    )
    config: Path | None = option(
        "FILE",
        "The recipe, a TOML file such as configs/tiny.toml (default: 4 layers × 4 heads, "
        "1.7 minutes).",
    )
    vocabulary: int | None = option(
        "N", "Tokens of the tokenizer that is made (default: 4096, or what the text allows)."
    )
    seed: int | None = option(
        "N",
        "Of the first weights and of the order of the text (default: the recipe's, 0).",
        min=0,
    )


@dataclass(frozen=True)
class Budget(Options, panel="How long"):
    """How long it may take."""

    minutes: float | None = option("M", "Train for so many minutes.")
    tokens: int | None = option("N", "Train on so many tokens; the same on every run.", min=1)
    resume: bool = flag("Go on with the run in --out that was interrupted.")


@dataclass(frozen=True)
class TrainOutput(Output):
    """The options of the same names."""

    save: tuple[Path, ...] = saved(".json .csv .txt")


@command(EXAMPLES, ListOptions)
def train(trained: Trained, budget: Budget, device: Device, output: TrainOutput) -> None:
    """Train a small language model of the library's own attention on your texts."""
    from attnviz.train.request import TrainWish
    from attnviz.train.show import show_train

    wish = TrainWish(**vars(trained), **vars(budget), **vars(device), explain=output.explain)
    show_train(wish, output)
