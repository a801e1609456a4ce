"""``attnviz scaling``: what dividing the scores by √d_k does to attention."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnviz.cli import options as opt
from attnviz.cli.complete import complete_model

__all__ = ["EXAMPLES", "scaling"]

_RANDOM, _MODEL = "Random queries and keys", "A model's queries and keys"
EXAMPLES = """
[bold]Examples[/bold]

attnviz scaling

attnviz scaling --d-k 1,16,256 --seq 128 --samples 50 --explain

attnviz scaling --from-model

attnviz scaling "A text of your own." --from-model --head L1H0

attnviz scaling --from-model --model mha --d-model 512 --heads 1 --save scaling.svg
"""


def scaling(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="With --from-model: the text, in quotes; - reads standard input.",
        ),
    ] = None,
    file: opt.TextFile = None,
    truncate: opt.Truncate = False,
    d_k: Annotated[
        str | None,
        typer.Option(
            "--d-k",
            metavar="LIST",
            help="Entries of a query and of a key, such as 8,64,512 (default).",
            rich_help_panel=_RANDOM,
        ),
    ] = None,
    seq: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Queries and keys of a sample (64).", rich_help_panel=_RANDOM
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Independent samples (100).", rich_help_panel=_RANDOM
        ),
    ] = None,
    from_model: Annotated[
        bool,
        typer.Option(
            "--from-model",
            metavar="",
            help="A model's real queries and keys over a text, in place of random ones.",
            rich_help_panel=_MODEL,
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="tiny (bundled, default), mha (the library's own attention, random weights), a "
            "directory, a Hugging Face id, or a named shape such as configs/gpt2.",
            autocompletion=complete_model,
            rich_help_panel=_MODEL,
        ),
    ] = None,
    layer: opt.Layers = None,
    head: opt.Heads = None,
    index_base: opt.IndexBase = 0,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of random numbers and random weights.", min=0)
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
    """Soften the same scores with and without the scale 1/√d_k, and compare the weights."""
    from attnviz.cli.output import Output
    from attnviz.cli.scaling_run import show_model_scaling, show_random_scaling
    from attnviz.cli.scaling_wish import ModelWish, random_wish, refuse_unused

    output = Output(json, tuple(save or ()), palette, color, ascii, width, quiet)
    given = {"d_model": d_model, "heads": head_count, "kv_heads": kv_heads, "causal": causal}
    shape: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if from_model:
        of_random = {"--d-k": d_k, "--seq": seq, "--samples": samples}
        refuse_unused(of_random, "counts random queries and keys: leave --from-model out")
    else:
        of_model: dict[str, object] = {
            "TEXT": text,
            "--file": file,
            "--truncate": truncate,
            "--model": model,
            "--layer": layer,
            "--head": head,
            "--index-base": index_base,
            **{f"--{name.replace('_', '-')}": True for name in shape},
            "--device": device != "cpu",
            "--dtype": dtype != "auto",
            "--revision": revision,
            "--offline": offline,
            "--trust-remote-code": trust_remote_code,
            "--allow-pickle": allow_pickle,
        }
        refuse_unused(of_model, "is for the queries and keys of a model: add --from-model")
        show_random_scaling(random_wish(d_k, seq, samples, seed), explain, output)
        return

    from attnviz.models.resolve import LoadOptions
    from attnviz.models.unheeded import refuse_unheeded

    name = model if model is not None else "tiny"
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
    refuse_unheeded(name, options, shape)
    wish = ModelWish(text, file, layer, tuple(head or ()), index_base, truncate)
    show_model_scaling(name, options, wish, explain, output)
