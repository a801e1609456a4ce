"""``attnviz patterns``: what every head does, scored, labelled and held against a base rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnviz.cli import options as opt
from attnviz.cli.complete import complete_label

__all__ = ["EXAMPLES", "patterns"]

KindName = Literal["self", "encoder", "decoder", "cross"]
ControlName = Literal["random-weights"]

_PROBES, _VIEW = "What is scored", "View"
EXAMPLES = """
[bold]Examples[/bold]

attnviz patterns

attnviz patterns --watch induction

attnviz patterns "When Mary and John went out, John gave a book to Mary." --stats

attnviz patterns --without-first --control random-weights --save patterns.csv

attnviz patterns --model openai-community/gpt2 --probe my-pairs.tsv
"""


def patterns(
    text: opt.TextArgument = None,
    file: opt.TextFile = None,
    probe: Annotated[
        list[Path] | None,
        typer.Option(
            "--probe",
            metavar="FILE",
            help="Annotated sentences of your own, in place of the built-in English ones; may be "
            "repeated.",
            rich_help_panel=_PROBES,
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
            help="Decoder text for --kind decoder and cross (default: the model's own greedy "
            "output).",
        ),
    ] = None,
    layer: opt.Layers = None,
    head: opt.Heads = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", metavar="", help="The weights as they are (default).", rich_help_panel=_PROBES
        ),
    ] = False,
    without_first: Annotated[
        bool,
        typer.Option(
            "--without-first",
            metavar="",
            help="Leave out the weight on the first token, and let the rest sum to one.",
            rich_help_panel=_PROBES,
        ),
    ] = False,
    norm_weighted: Annotated[
        bool,
        typer.Option(
            "--norm-weighted",
            metavar="",
            help="Each weight times the norm of what it moves.",
            rich_help_panel=_PROBES,
        ),
    ] = False,
    control: Annotated[
        ControlName | None,
        typer.Option(
            metavar="CONTROL",
            help="random-weights: score the same architecture with random weights, too.",
            rich_help_panel=_PROBES,
        ),
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Only one label: every head, ranked by its score.",
            autocompletion=complete_label,
            rich_help_panel=_VIEW,
        ),
    ] = None,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            metavar="",
            help="Entropy, distance, confidence and first-token share of every head.",
            rich_help_panel=_VIEW,
        ),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Heads listed for a label (4; with --watch 24).",
            rich_help_panel=_VIEW,
        ),
    ] = None,
    index_base: opt.IndexBase = 0,
    model: opt.Model = "tiny",
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of random weights, random tokens and the control.",
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
    save: opt.PatternSave = None,
    palette: opt.Palette = "viridis",
    color: opt.Colour = "auto",
    ascii: opt.Ascii = False,
    width: opt.Width = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Score what every head does, label it, and hold it against a base rate."""
    from attnviz.cli.output import Output
    from attnviz.cli.patterns_run import show_patterns
    from attnviz.cli.patterns_wish import PatternWish, ViewWish, chosen_view
    from attnviz.cli.text_input import as_utf8
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
    show_patterns(
        model,
        options,
        PatternWish(
            text,
            file,
            tuple(probe or ()),
            chosen_view(raw, without_first, norm_weighted),
            control,
            layer,
            tuple(head or ()),
            index_base,
            kind,
            as_utf8(target, "--target") if target is not None else None,
            truncate,
        ),
        ViewWish(watch, stats, top, explain),
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
