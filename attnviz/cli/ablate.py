"""``attnviz ablate``: what is lost when heads are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnviz.cli import options as opt

__all__ = ["EXAMPLES", "ablate"]

ModeName = Literal["zero", "mean", "resample"]
UnitName = Literal["head", "kv-head", "layer"]
MetricName = Literal["loss_delta", "kl", "flip_rate", "output_mse", "output_cosine", "logit_diff"]
MethodName = Literal["exact", "gradient", "budget"]
KindName = Literal["self", "encoder", "decoder", "cross"]
PositionsName = Literal["all", "last"]

_REMOVAL, _MEASURE, _VIEW = "What is removed", "What is measured", "View"
EXAMPLES = """
[bold]Examples[/bold]

attnviz ablate

attnviz ablate --head 3

attnviz ablate "When Mary and John went out, John gave a book to Mary." --head L1H0 --by-token

attnviz ablate --texts stories.txt --mode mean --resume scan.jsonl --save scan.csv

attnviz ablate --model openai-community/gpt2 --method budget --budget 30s
"""


def ablate(
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
    kind: Annotated[
        KindName | None,
        typer.Option(
            metavar="KIND", help="Of an encoder–decoder: encoder (default), decoder or cross."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Text that an encoder–decoder is to write (default: its own greedy output).",
        ),
    ] = None,
    layer: opt.Layers = None,
    head: opt.Heads = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            metavar="",
            help="Remove the chosen heads all at once, not one at a time.",
            rich_help_panel=_REMOVAL,
        ),
    ] = False,
    unit: Annotated[
        UnitName,
        typer.Option(
            metavar="UNIT",
            help="head, kv-head (all heads that share it) or layer.",
            rich_help_panel=_REMOVAL,
        ),
    ] = "head",
    mode: Annotated[
        ModeName,
        typer.Option(
            metavar="MODE",
            help="A removed head's output becomes zero, its mean over the reference, or that of "
            "another text (resample).",
            rich_help_panel=_REMOVAL,
        ),
    ] = "zero",
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts that mean and resample draw from (default: the measured texts).",
            rich_help_panel=_REMOVAL,
        ),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Texts that a resample draws for each text (4).",
            rich_help_panel=_REMOVAL,
        ),
    ] = None,
    metric: Annotated[
        MetricName | None,
        typer.Option(
            metavar="METRIC",
            help="What is ranked and coloured: loss_delta (default), kl, flip_rate, output_mse, "
            "output_cosine or logit_diff.",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="With --foil: the change of logit(answer) - logit(foil).",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    foil: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="See --answer.", rich_help_panel=_MEASURE),
    ] = None,
    positions: Annotated[
        PositionsName,
        typer.Option(
            metavar="WHICH",
            help="all predictions, or the last one of each text only.",
            rich_help_panel=_MEASURE,
        ),
    ] = "all",
    method: Annotated[
        MethodName | None,
        typer.Option(
            metavar="METHOD",
            help="exact, gradient (a first-order hint, one backward pass) or budget (the hint "
            "ranks, the top is measured).",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="What --method budget may spend: 30s, 5m, or 20 heads.",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="The most memory a scan may take, such as 2GB (default: a share of what is free).",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the result of each finished text there, and go on where a run ended.",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    by_token: Annotated[
        bool,
        typer.Option(
            "--by-token",
            metavar="",
            help="Where in the text the removal hurts.",
            rich_help_panel=_VIEW,
        ),
    ] = False,
    top: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Heads in the ranking.", rich_help_panel=_VIEW),
    ] = 8,
    index_base: opt.IndexBase = 0,
    model: opt.Model = "tiny",
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of random weights, draws, intervals and the control.",
            rich_help_panel="Model",
        ),
    ] = 0,
    d_model: opt.DModel = None,
    head_count: opt.HeadCount = None,
    kv_heads: opt.KvHeads = None,
    causal: opt.Causal = None,
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
            help="Write a file by its ending: .json .csv .svg .html .txt; may be repeated.",
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
    """Remove heads and measure what is lost; all of them, exactly, in one scan."""
    from attnviz.cli.ablate_run import show_ablation
    from attnviz.cli.ablate_wish import ScanWish, ViewWish
    from attnviz.cli.output import Output
    from attnviz.cli.removal_choice import RemovalChoice
    from attnviz.cli.text_input import as_utf8
    from attnviz.cli.texts_input import read_texts
    from attnviz.models.resolve import LoadOptions
    from attnviz.models.unheeded import refuse_unheeded

    given = {"d_model": d_model, "heads": head_count, "kv_heads": kv_heads, "causal": causal}
    shape: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options = LoadOptions(
        revision=revision,
        device=device,
        dtype=dtype,
        offline=offline,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        seed=seed,
        **shape,
    )
    refuse_unheeded(model, options, shape)
    show_ablation(
        lambda: read_texts(text, file, texts),
        model,
        options,
        ScanWish(
            RemovalChoice(layer, tuple(head or ()), index_base, unit, together),
            mode=mode,
            reference=reference,
            draws=draws,
            metric=metric,
            answer=as_utf8(answer, "--answer") if answer is not None else None,
            foil=as_utf8(foil, "--foil") if foil is not None else None,
            positions=positions,
            method=method,
            budget=budget,
            max_memory=max_memory,
            resume=resume,
            kind=kind,
            target=as_utf8(target, "--target") if target is not None else None,
            truncate=truncate,
        ),
        ViewWish(by_token, top, explain),
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
