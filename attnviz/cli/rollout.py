"""``attnviz rollout``: attention followed through all layers, to each output token."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from attnviz.cli import options as opt

__all__ = ["EXAMPLES", "rollout"]

KindName = Literal["self", "encoder", "decoder"]

_VIEW = "View"
EXAMPLES = """
[bold]Examples[/bold]

attnviz rollout "The cat sat on the mat because it was tired."

attnviz rollout "When Mary and John went out, John gave Mary a book." --values --explain

attnviz rollout --file story.txt --save rollout.svg
"""


def rollout(
    text: opt.TextArgument = None,
    file: opt.TextFile = None,
    truncate: opt.Truncate = False,
    kind: Annotated[
        KindName | None,
        typer.Option(metavar="KIND", help="Of an encoder–decoder: encoder (default) or decoder."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Decoder text for --kind decoder (default: the model's own greedy output).",
        ),
    ] = None,
    values: Annotated[
        bool,
        typer.Option(
            "--values", metavar="", help="Write the shares in the cells.", rich_help_panel=_VIEW
        ),
    ] = False,
    model: opt.Model = "tiny",
    seed: opt.Seed = 0,
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
    """Follow attention through all layers, from each output token to the input."""
    from attnviz.capture.over_text import Choice
    from attnviz.cli.output import Output
    from attnviz.cli.rollout_run import show_rollout
    from attnviz.cli.text_input import as_utf8, read_text
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
    if target is not None:
        target = as_utf8(target, "--target")
    show_rollout(
        lambda: read_text(text, file, "rollout"),
        model,
        options,
        Choice(kind=kind, target=target, truncate=truncate),
        values,
        explain,
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
