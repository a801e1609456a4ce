"""``attnviz verify``: the proof that the numbers are right, of the own attention or of a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnviz.cli import options as opt
from attnviz.cli.complete import complete_model

__all__ = ["EXAMPLES", "verify"]

_OWN, _MODEL = "The library's own attention", "Model"
EXAMPLES = """
[bold]Examples[/bold]

attnviz verify

attnviz verify --steps

attnviz verify --d-model 96 --heads 6 --kv-heads 3 --seq 11 --dtype float64

attnviz verify --model tiny

attnviz verify "A text of your own." --model ./my-checkpoint --json
"""


def verify(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="With --model: the text, in quotes; - reads standard input (default: a sentence).",
        ),
    ] = None,
    file: opt.TextFile = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Decoder text of an encoder–decoder (the text itself)."),
    ] = None,
    truncate: opt.Truncate = False,
    steps: Annotated[
        bool,
        typer.Option(
            "--steps",
            metavar="",
            help="Shapes at each step, and for small sizes the numbers (3 tokens, d_model 4, 2 "
            "heads unless given).",
            rich_help_panel=_OWN,
        ),
    ] = False,
    seq: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Tokens of a text (7).", rich_help_panel=_OWN),
    ] = None,
    d_model: opt.DModel = None,
    head_count: opt.HeadCount = None,
    kv_heads: opt.KvHeads = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--no-causal",
            metavar="",
            help="Hide later tokens, in --steps (yes) and with --model mha (no).",
            rich_help_panel=_OWN,
        ),
    ] = None,
    keras: Annotated[
        bool | None,
        typer.Option(
            "--keras/--no-keras",
            metavar="",
            help="Compare with Keras's layers (if installed).",
            rich_help_panel=_OWN,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Verify this model: tiny (bundled), mha, a directory, a Hugging Face id, or a "
            "named shape such as configs/gpt2 (random weights).",
            autocompletion=complete_model,
            rich_help_panel=_MODEL,
        ),
    ] = None,
    seed: opt.Seed = 0,
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
    """Prove that attention is computed right: against other libraries, or in a model."""
    from attnviz.cli.output import Output
    from attnviz.cli.text_input import as_utf8
    from attnviz.cli.verify_run import show_model_proof, show_own_proof
    from attnviz.cli.verify_wish import ModelWish, OwnWish, refuse_idle
    from attnviz.models.resolve import LoadOptions
    from attnviz.models.unheeded import refuse_unheeded

    given = {"d_model": d_model, "heads": head_count, "kv_heads": kv_heads, "causal": causal}
    shape: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    output = Output(json, tuple(save or ()), palette, color, ascii, width, quiet)
    loading = LoadOptions(
        revision=revision,
        device=device,
        dtype=dtype,
        offline=offline,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        seed=seed,
    )
    own = OwnWish(steps, d_model, head_count, kv_heads, seq, causal, keras, dtype, seed)
    wish = ModelWish(
        text, file, as_utf8(target, "--target") if target is not None else None, truncate
    )
    refuse_idle(model, own, wish, loading)
    if model is None:
        show_own_proof(own, explain, output)
        return
    options = LoadOptions(**{**vars(loading), **shape})
    refuse_unheeded(model, options, shape)
    show_model_proof(model, options, wish, explain, output)
