"""``attnviz train``: a small language model of the library's own attention, from text files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli import options as opt

__all__ = ["EXAMPLES", "train"]

_TRAINED, _BUDGET = "What is trained", "How long"
EXAMPLES = """
[bold]Examples[/bold]

attnviz train story.txt --out my-model

attnviz train books/ --valid held-out/*.txt --minutes 30 --out my-model

attnviz train books/ --valid held-out/ --config configs/tiny.toml --out tiny

attnviz train books/ --valid held-out/ --config configs/tiny.toml --out tiny --resume

attnviz heads --model my-model "The cat sat on the mat because the cat was tired."
"""


def train(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="The model's directory, a new one.",
            show_default=False,
            rich_help_panel=_TRAINED,
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help="UTF-8 text files to learn from; a directory stands for its *.txt files.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            "--valid",
            metavar="FILES…",
            help="Texts to validate on, several after one --valid (default: the last tenth of the "
            "text, which is then not learned from).",
            rich_help_panel=_TRAINED,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The recipe, a TOML file such as configs/tiny.toml (default: 4 layers × 4 heads, "
            "1.7 minutes).",
            rich_help_panel=_TRAINED,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens of the tokenizer that is made (default: 4096, or what the text allows).",
            rich_help_panel=_TRAINED,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Of the first weights and of the order of the text (default: the recipe's, 0).",
            rich_help_panel=_TRAINED,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="Train for so many minutes.", rich_help_panel=_BUDGET),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Train on so many tokens; the same on every run.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar="",
            help="Go on with the run in --out that was interrupted.",
            rich_help_panel=_BUDGET,
        ),
    ] = False,
    device: opt.Device = "cpu",
    json: opt.Json = False,
    save: Annotated[
        list[Path] | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write a file by its ending: .json .csv .txt; may be repeated.",
            rich_help_panel="Output",
        ),
    ] = None,
    palette: opt.Palette = "viridis",
    color: opt.Colour = "auto",
    ascii: opt.Ascii = False,
    width: opt.Width = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train a small language model of the library's own attention on your texts."""
    from attnviz.cli.output import Output
    from attnviz.cli.train_run import show_train
    from attnviz.cli.train_wish import TrainWish

    show_train(
        TrainWish(
            files=tuple(files or ()),
            valid=tuple(valid or ()),
            config=config,
            out=out,
            vocabulary=vocabulary,
            seed=seed,
            minutes=minutes,
            tokens=tokens,
            resume=resume,
            device=device,
            explain=explain,
        ),
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
