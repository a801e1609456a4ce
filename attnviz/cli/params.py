"""``attnviz params``: from a shape or a model's name to what it costs, exactly."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from attnviz.cli import options as opt
from attnviz.cli.complete import complete_shape

__all__ = ["PARAMS_EXAMPLES", "params"]

_SHAPE, _FORWARD, _TABLES = "Shape: attention", "Shape: feed-forward", "Shape: the rest"
_LATENT, _RUN, _VIEW, _LOADING = "Shape: latent attention", "Running it", "View", "Loading"
PARAMS_EXAMPLES = """
[bold]Examples[/bold]

attnviz params --d-model 4096 --heads 32

attnviz params --d-model 4096 --heads 32 --compare kv-heads=32,8,1

attnviz params --d-model 512 --heads 8 --layers 6 --d-ff 2048 --formula

attnviz params llama-2-70b --tokens 4096 --memory 160GB

attnviz params gpt2 bert-base llama-2-7b --save models.md
"""

_Dtype = Literal["auto", "float32", "float16", "bfloat16", "float8", "int8", "int4"]
_Number = int | None


def params(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A named shape such as llama-2-7b, a directory with a config.json, or a Hugging "
            "Face id; several stand side by side.",
            autocompletion=complete_shape,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="As MODEL; a bare name that is a Hugging Face id as well means that.",
            autocompletion=complete_shape,
        ),
    ] = None,
    d_model: Annotated[
        _Number, typer.Option("--d-model", metavar="D", help="Width.", rich_help_panel=_SHAPE)
    ] = None,
    heads: Annotated[
        _Number, typer.Option("--heads", metavar="H", help="Query heads.", rich_help_panel=_SHAPE)
    ] = None,
    kv_heads: Annotated[
        _Number,
        typer.Option(
            "--kv-heads",
            metavar="K",
            help="Key/value heads that they share (H).",
            rich_help_panel=_SHAPE,
        ),
    ] = None,
    head_dim: Annotated[
        _Number,
        typer.Option(
            "--head-dim", metavar="N", help="Width of a head (D / H).", rich_help_panel=_SHAPE
        ),
    ] = None,
    v_head_dim: Annotated[
        _Number,
        typer.Option(
            "--v-head-dim",
            metavar="N",
            help="Width of a head's value (head-dim).",
            rich_help_panel=_SHAPE,
        ),
    ] = None,
    bias: Annotated[
        bool | None,
        typer.Option("--bias/--no-bias", metavar="", help="Biases (no).", rich_help_panel=_SHAPE),
    ] = None,
    window: Annotated[
        _Number,
        typer.Option(metavar="N", help="Tokens that a query sees (all).", rich_help_panel=_SHAPE),
    ] = None,
    linear: Annotated[
        bool,
        typer.Option(
            "--linear",
            metavar="",
            help="Linear attention: a state of fixed size.",
            rich_help_panel=_SHAPE,
        ),
    ] = False,
    kv_lora: Annotated[
        _Number,
        typer.Option(
            "--kv-lora",
            metavar="N",
            help="Width of the vector that keys and values are squeezed into.",
            rich_help_panel=_LATENT,
        ),
    ] = None,
    q_lora: Annotated[
        _Number,
        typer.Option(
            "--q-lora",
            metavar="N",
            help="Width that queries are squeezed into (not squeezed).",
            rich_help_panel=_LATENT,
        ),
    ] = None,
    rope_dim: Annotated[
        _Number,
        typer.Option(
            "--rope-dim",
            metavar="N",
            help="Width of a head that carries positions.",
            rich_help_panel=_LATENT,
        ),
    ] = None,
    nope_dim: Annotated[
        _Number,
        typer.Option(
            "--nope-dim", metavar="N", help="Width that does not.", rich_help_panel=_LATENT
        ),
    ] = None,
    d_ff: Annotated[
        _Number,
        typer.Option(
            "--d-ff", metavar="F", help="Inner width (no such part).", rich_help_panel=_FORWARD
        ),
    ] = None,
    ffn: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="relu, gelu (default), swiglu, geglu.", rich_help_panel=_FORWARD
        ),
    ] = None,
    experts: Annotated[
        _Number,
        typer.Option(metavar="N", help="Experts in each layer.", rich_help_panel=_FORWARD),
    ] = None,
    active_experts: Annotated[
        _Number,
        typer.Option(
            "--active-experts",
            metavar="N",
            help="Experts that a token passes through.",
            rich_help_panel=_FORWARD,
        ),
    ] = None,
    shared_experts: Annotated[
        _Number,
        typer.Option(
            "--shared-experts",
            metavar="N",
            help="Experts that every token passes through (0).",
            rich_help_panel=_FORWARD,
        ),
    ] = None,
    d_expert: Annotated[
        _Number,
        typer.Option(
            "--d-expert",
            metavar="F",
            help="Inner width of one expert.",
            rich_help_panel=_FORWARD,
        ),
    ] = None,
    layers: Annotated[
        _Number, typer.Option(metavar="L", help="Layers (1).", rich_help_panel=_TABLES)
    ] = None,
    vocab: Annotated[
        _Number,
        typer.Option(metavar="N", help="Rows of the token table (none).", rich_help_panel=_TABLES),
    ] = None,
    tied: Annotated[
        bool | None,
        typer.Option(
            "--tied/--untied",
            metavar="",
            help="Whether the head is the token table (tied).",
            rich_help_panel=_TABLES,
        ),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="layernorm or rmsnorm (none).", rich_help_panel=_TABLES),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="learned, rotary or none (none).", rich_help_panel=_TABLES
        ),
    ] = None,
    max_positions: Annotated[
        _Number,
        typer.Option(
            "--max-positions", metavar="N", help="Longest sequence.", rich_help_panel=_TABLES
        ),
    ] = None,
    tokens: Annotated[
        _Number,
        typer.Option(
            metavar="N",
            help="Length of a sequence (2048, or what the positions allow).",
            rich_help_panel=_RUN,
        ),
    ] = None,
    source_tokens: Annotated[
        _Number,
        typer.Option(
            "--source-tokens",
            metavar="N",
            help="Length of what an encoder reads (as --tokens).",
            rich_help_panel=_RUN,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="B", help="Sequences at once.", rich_help_panel=_RUN)
    ] = 1,
    dtype: Annotated[
        _Dtype,
        typer.Option(
            metavar="DTYPE",
            help="Of the weights: auto (a config's own, else bfloat16), float32, float16, "
            "bfloat16, float8, int8 or int4.",
            rich_help_panel=_RUN,
        ),
    ] = "auto",
    cache_dtype: Annotated[
        _Dtype,
        typer.Option(
            "--cache-dtype",
            metavar="DTYPE",
            help="Of keys and values (as the weights; bfloat16 beside int8 and int4).",
            rich_help_panel=_RUN,
        ),
    ] = "auto",
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What fits into 24GB (10⁹ bytes each) or 24GiB (2³⁰ each) of memory.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=A,B,…",
            help="One row for each value of any option with a value, such as "
            "heads=1,2,4 or tokens=1024,4096; of several, all combinations.",
            rich_help_panel=_VIEW,
        ),
    ] = None,
    formula: Annotated[
        bool,
        typer.Option(
            "--formula", metavar="", help="Each line's arithmetic.", rich_help_panel=_VIEW
        ),
    ] = False,
    per_layer: Annotated[
        bool,
        typer.Option("--per-layer", metavar="", help="Every kind of layer.", rich_help_panel=_VIEW),
    ] = False,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    json: opt.Json = False,
    save: opt.ParamsSave = None,
    palette: opt.Palette = "viridis",
    color: opt.Colour = "auto",
    ascii: opt.Ascii = False,
    width: opt.Width = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Count parameters, KV cache, operations and memory of any attention design, exactly."""
    from attnviz.cli.output import Output
    from attnviz.cli.params_designs import Request
    from attnviz.cli.params_run import ParamsView, show_params

    shape = {
        "d_model": d_model,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
        "bias": bias,
        "window": window,
        "linear": linear or None,
        "kv_lora": kv_lora,
        "q_lora": q_lora,
        "rope_dim": rope_dim,
        "nope_dim": nope_dim,
        "d_ff": d_ff,
        "ffn": ffn,
        "experts": experts,
        "active_experts": active_experts,
        "shared_experts": shared_experts,
        "d_expert": d_expert,
        "layers": layers,
        "vocab": vocab,
        "tied": tied,
        "norm": norm,
        "positions": positions,
        "max_positions": max_positions,
    }
    request = Request(
        names=tuple(models or ()),
        models=tuple(model or ()),
        shape={name: value for name, value in shape.items() if value is not None},
        tokens=tokens,
        source_tokens=source_tokens,
        batch=batch,
        dtype=dtype,
        cache_dtype=cache_dtype,
        memory=memory,
        revision=revision,
        offline=offline,
    )
    show_params(
        request,
        tuple(compare or ()),
        ParamsView(formula, per_layer, explain),
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
