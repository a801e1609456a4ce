"""``attnviz prune``: remove the least important heads for good."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attnviz.cli import options as opt

__all__ = ["EXAMPLES", "prune"]

MethodName = Literal["exact", "gradient"]

_REMOVAL, _MEASURE = "What is removed", "What is measured"
EXAMPLES = """
[bold]Examples[/bold]

attnviz prune --fraction 0.3

attnviz prune --fraction 0.25 --uniform --out smaller

attnviz prune --until-loss 1.05 --rerank --texts stories.txt

attnviz prune --heads L0H1,L2H3 --out without-two

attnviz prune --model openai-community/gpt2 --fraction 0.2 --method gradient
"""


def prune(
    text: opt.TextArgument = None,
    file: opt.TextFile = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            "--texts",
            metavar="FILE",
            help="Many texts: one a line, or JSON lines with a text field; - reads standard input.",
        ),
    ] = None,
    truncate: opt.Truncate = False,
    fraction: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Remove this share of all heads, between 0 and 1.",
            rich_help_panel=_REMOVAL,
        ),
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            "--heads",
            "--head",
            "-H",
            metavar="HEADS",
            help="Remove these: L2H5, 3 (of every layer), 2.5, 0-3.1,4; may be repeated.",
            rich_help_panel=_REMOVAL,
        ),
    ] = None,
    until_loss: Annotated[
        float | None,
        typer.Option(
            "--until-loss",
            metavar="RATIO",
            help="Remove heads while the loss stays below this multiple of the whole model's.",
            rich_help_panel=_REMOVAL,
        ),
    ] = None,
    uniform: Annotated[
        bool,
        typer.Option(
            "--uniform",
            metavar="",
            help="Take equally many heads from every layer, so that they can be cut out.",
            rich_help_panel=_REMOVAL,
        ),
    ] = False,
    allow_empty_layers: Annotated[
        bool,
        typer.Option(
            "--allow-empty-layers",
            metavar="",
            help="A layer may lose all its heads; else it keeps one.",
            rich_help_panel=_REMOVAL,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Write the pruned model there, a new directory.",
            rich_help_panel=_REMOVAL,
        ),
    ] = None,
    method: Annotated[
        MethodName,
        typer.Option(
            metavar="METHOD",
            help="Order by exact (what each costs alone) or gradient (a first-order hint).",
            rich_help_panel=_MEASURE,
        ),
    ] = "exact",
    rerank: Annotated[
        bool,
        typer.Option(
            "--rerank",
            metavar="",
            help="Rank what is left again after each removal.",
            rich_help_panel=_MEASURE,
        ),
    ] = False,
    draws: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Random orders to compare with; 0 for none.",
            rich_help_panel=_MEASURE,
        ),
    ] = 5,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="The most memory measuring may take, such as 2GB.",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    index_base: opt.IndexBase = 0,
    model: opt.Model = "tiny",
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Of the random orders, and of random weights.",
            min=0,
            rich_help_panel=_MEASURE,
        ),
    ] = 0,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.RemoteCode = False,
    allow_pickle: opt.Pickle = False,
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
    """Remove the least important heads for good, beside as many at random."""
    from attnviz.cli.output import Output
    from attnviz.cli.prune_run import PruneWish, show_prune
    from attnviz.cli.texts_input import read_texts
    from attnviz.models.resolve import LoadOptions
    from attnviz.models.unheeded import refuse_unheeded

    options = LoadOptions(
        revision=revision,
        device=device,
        dtype=dtype,
        offline=offline,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        seed=seed,
    )
    refuse_unheeded(model, options, ())
    wish = PruneWish(
        fraction=fraction,
        heads=tuple(heads or ()),
        until_loss=until_loss,
        uniform=uniform,
        empty_layers=allow_empty_layers,
        method=method,
        rerank=rerank,
        draws=draws,
        seed=seed,
        index_base=index_base,
        truncate=truncate,
        max_memory=max_memory,
        out=out,
        explain=explain,
    )
    show_prune(
        lambda: read_texts(text, file, texts),
        model,
        options,
        wish,
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
