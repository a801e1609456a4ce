"""``attnviz sweep``: one small decoder trained with several numbers of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli import options as opt

__all__ = ["EXAMPLES", "sweep"]

_LEARNED, _MODEL = "What is learned", "Model"
EXAMPLES = """
[bold]Examples[/bold]

attnviz sweep

attnviz sweep --heads 1,4 --seeds 1 --explain

attnviz sweep --task copy --steps 300

attnviz sweep --text story.txt --heads 1,2,4,8,16 --d-model 64 --save sweep.json
"""


def sweep(
    heads: Annotated[
        str, typer.Option("--heads", metavar="LIST", help="Numbers of heads to compare.")
    ] = "1,2,4,8",
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="induction (repeat what followed this letter before; default), copy or majority.",
            rich_help_panel=_LEARNED,
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="In place of a task: guess the next character of this UTF-8 text.",
            rich_help_panel=_LEARNED,
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Steps that each model learns.", rich_help_panel=_LEARNED
        ),
    ] = 500,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            help="Models of each number of heads, to see what chance does.",
            rich_help_panel=_LEARNED,
        ),
    ] = 3,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="The first of them: of first weights, batches and held-out sequences.",
            rich_help_panel=_LEARNED,
        ),
    ] = 0,
    layers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Layers.", rich_help_panel=_MODEL)
    ] = 2,
    d_model: Annotated[
        int,
        typer.Option(
            "--d-model",
            metavar="D",
            min=2,
            help="Width, the same for all: a head is D / heads wide.",
            rich_help_panel=_MODEL,
        ),
    ] = 32,
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
    """Train the same small decoder with 1, 2, 4, 8 heads, and compare what they learn."""
    from attnviz.cli.output import Output
    from attnviz.cli.sweep_run import show_sweep
    from attnviz.cli.sweep_wish import SweepWish

    show_sweep(
        SweepWish(
            heads=heads,
            task=task,
            text=text,
            layers=layers,
            d_model=d_model,
            seeds=seeds,
            steps=steps,
            seed=seed,
            device=device,
            explain=explain,
        ),
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
