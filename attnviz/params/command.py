"""``attnviz params``: from a shape or a model's name to what it costs, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.cli.groups import Options, argument, command, flag, option
from attnviz.cli.options import Loading, Output, complete_shape, saved

__all__ = [
    "EXAMPLES",
    "Attention",
    "FeedForward",
    "Hub",
    "Latent",
    "Named",
    "ParamsOutput",
    "Rest",
    "Running",
    "View",
    "params",
]

EXAMPLES = """
[bold]Examples[/bold]

attnviz params --d-model 4096 --heads 32

attnviz params --d-model 4096 --heads 32 --compare kv-heads=32,8,1

attnviz params --d-model 512 --heads 8 --layers 6 --d-ff 2048 --formula

attnviz params llama-2-70b --tokens 4096 --memory 160GB

attnviz params gpt2 bert-base llama-2-7b --save models.md
"""

Dtype = Literal["auto", "float32", "float16", "bfloat16", "float8", "int8", "int4"]


@dataclass(frozen=True)
class Named(Options):
    """Models that have a name; several stand side by side."""

    names: tuple[str, ...] = argument(
        "MODEL",
        "A named shape such as llama-2-7b, a directory with a config.json, or a Hugging Face id; "
        "several stand side by side.",
        (),
        autocompletion=complete_shape,
        show_default=False,
    )
    models: tuple[str, ...] = option(
        "NAME",
        "As MODEL; a bare name that is a Hugging Face id as well means that.",
        (),
        name="--model",
        short="-m",
        autocompletion=complete_shape,
    )


@dataclass(frozen=True)
class Attention(Options, panel="Shape: attention"):
    """A shape's attention, as in ``ShapeOptions``; here and below None where it is not said."""

    d_model: int | None = option("D", "Width.")
    heads: int | None = option("H", "Query heads.")
    kv_heads: int | None = option("K", "Key/value heads that they share (H).")
    head_dim: int | None = option("N", "Width of a head (D / H).")
    v_head_dim: int | None = option("N", "Width of a head's value (head-dim).")
    bias: bool | None = option("", "Biases (no).", name="--bias/--no-bias")
    window: int | None = option("N", "Tokens that a query sees (all).")
    linear: bool = flag("Linear attention: a state of fixed size.")


@dataclass(frozen=True)
class Latent(Options, panel="Shape: latent attention"):
    """A shape's latent attention."""

    kv_lora: int | None = option("N", "Width of the vector that keys and values are squeezed into.")
    q_lora: int | None = option("N", "Width that queries are squeezed into (not squeezed).")
    rope_dim: int | None = option("N", "Width of a head that carries positions.")
    nope_dim: int | None = option("N", "Width that does not.")


@dataclass(frozen=True)
class FeedForward(Options, panel="Shape: feed-forward"):
    """A shape's feed-forward part."""

    d_ff: int | None = option("F", "Inner width (no such part).")
    ffn: str | None = option("KIND", "relu, gelu (default), swiglu, geglu.")
    experts: int | None = option("N", "Experts in each layer.")
    active_experts: int | None = option("N", "Experts that a token passes through.")
    shared_experts: int | None = option("N", "Experts that every token passes through (0).")
    d_expert: int | None = option("F", "Inner width of one expert.")


@dataclass(frozen=True)
class Rest(Options, panel="Shape: the rest"):
    """What else a shape has."""

    layers: int | None = option("L", "Layers (1).")
    vocab: int | None = option("N", "Rows of the token table (none).")
    tied: bool | None = option(
        "", "Whether the head is the token table (tied).", name="--tied/--untied"
    )
    norm: str | None = option("KIND", "layernorm or rmsnorm (none).")
    positions: str | None = option("KIND", "learned, rotary or none (none).")
    max_positions: int | None = option("N", "Longest sequence.")


@dataclass(frozen=True)
class Running(Options, panel="Running it"):
    """On what, and in which numbers it runs."""

    tokens: int | None = option("N", "Length of a sequence (2048, or what the positions allow).")
    source_tokens: int | None = option("N", "Length of what an encoder reads (as --tokens).")
    batch: int = option("B", "Sequences at once.", 1)
    dtype: Dtype = option(
        "DTYPE",
        "Of the weights: auto (a config's own, else bfloat16), float32, float16, bfloat16, float8, "
        "int8 or int4.",
        "auto",
    )
    cache_dtype: Dtype = option(
        "DTYPE", "Of keys and values (as the weights; bfloat16 beside int8 and int4).", "auto"
    )
    memory: str | None = option(
        "SIZE", "What fits into 24GB (10⁹ bytes each) or 24GiB (2³⁰ each) of memory."
    )


@dataclass(frozen=True)
class View(Options, panel="View"):
    """What is to be seen."""

    compare: tuple[str, ...] = option(
        "OPTION=A,B,…",
        "One row for each value of any option with a value, such as heads=1,2,4 or "
        "tokens=1024,4096; of several, all combinations.",
        (),
    )
    formula: bool = flag("Each line's arithmetic.")
    per_layer: bool = flag("Every kind of layer.")


@dataclass(frozen=True)
class Hub(Options, panel=Loading.panel):
    """Where a config comes from."""

    revision: str | None = option("REVISION", "Branch, tag or commit on the hub.")
    offline: bool = flag("Directories and the cache only.")


@dataclass(frozen=True)
class ParamsOutput(Output):
    """The options of the same names."""

    save: tuple[Path, ...] = saved(".json .csv .md .svg .html .txt")


@command(EXAMPLES)
def params(
    named: Named,
    attention: Attention,
    latent: Latent,
    feed_forward: FeedForward,
    rest: Rest,
    running: Running,
    view: View,
    hub: Hub,
    output: ParamsOutput,
) -> None:
    """Count parameters, KV cache, operations and memory of any attention design, exactly."""
    from attnviz.params.designs import Request
    from attnviz.params.run import ParamsView, show_params

    shape = {**vars(attention), **vars(latent), **vars(feed_forward), **vars(rest)}
    shape["linear"] = attention.linear or None
    show_params(
        Request(
            **vars(named),
            **vars(running),
            **vars(hub),
            shape={name: value for name, value in shape.items() if value is not None},
        ),
        view.compare,
        ParamsView(view.formula, view.per_layer, output.explain),
        output,
    )
