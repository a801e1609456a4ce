"""The options that commands share: each declared once, so that it means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attnviz.cli.complete import complete_model
from attnviz.cli.terminal import ColourChoice

__all__ = [
    "Ascii",
    "Causal",
    "Colour",
    "CompareMask",
    "DModel",
    "Device",
    "Dtype",
    "Explain",
    "HeadCount",
    "Heads",
    "IndexBase",
    "Json",
    "KvHeads",
    "Layers",
    "Model",
    "Offline",
    "Palette",
    "ParamsSave",
    "PatternSave",
    "Pickle",
    "Quiet",
    "RemoteCode",
    "Revision",
    "Save",
    "Scores",
    "Seed",
    "TextArgument",
    "TextFile",
    "Truncate",
    "Width",
]

_MODEL, _LOADING, _OUTPUT = "Model", "Loading", "Output"
_SHAPE = "The library's own attention (--model mha)"

PaletteName = Literal["viridis", "magma", "blues", "grey"]

TextArgument = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="The text, in quotes; - reads standard input."),
]
TextFile = Annotated[
    Path | None, typer.Option("--file", metavar="PATH", help="Read the text from a UTF-8 file.")
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="tiny (bundled), mha (the library's own attention, random weights), a directory, a "
        "Hugging Face id, or a named shape such as configs/gpt2 (random weights).",
        autocompletion=complete_model,
        rich_help_panel=_MODEL,
    ),
]
Layers = Annotated[
    str | None,
    typer.Option("--layer", "-l", metavar="LAYERS", help="Layers: 2, 0-3, 0,5, -1 is the last."),
]
Heads = Annotated[
    list[str] | None,
    typer.Option(
        "--head",
        "-H",
        metavar="HEADS",
        help="Heads: L2H5, 3 (of every layer), 2.5, 2.*, 0-3.1,4, -1; may be repeated.",
    ),
]
IndexBase = Annotated[
    int,
    typer.Option(
        "--index-base",
        metavar="0|1",
        min=0,
        max=1,
        help="Number layers and heads from 0, or from 1 as some papers do.",
    ),
]
Truncate = Annotated[
    bool,
    typer.Option(
        "--truncate", metavar="", help="Cut texts that are longer than the model's context."
    ),
]
DModel = Annotated[
    int | None,
    typer.Option("--d-model", metavar="D", help="Width (64).", rich_help_panel=_SHAPE),
]
HeadCount = Annotated[
    int | None,
    typer.Option("--heads", metavar="H", help="Query heads (8).", rich_help_panel=_SHAPE),
]
KvHeads = Annotated[
    int | None,
    typer.Option(
        "--kv-heads",
        metavar="K",
        help="Key/value heads that they share (H).",
        rich_help_panel=_SHAPE,
    ),
]
Causal = Annotated[
    bool | None,
    typer.Option(
        "--causal/--no-causal",
        metavar="",
        help="Hide later words (no).",
        rich_help_panel=_SHAPE,
    ),
]
CompareMask = Annotated[
    bool,
    typer.Option(
        "--compare-mask",
        metavar="",
        help="The same heads without and with the causal mask, side by side.",
        rich_help_panel=_SHAPE,
    ),
]
Scores = Annotated[
    str | None,
    typer.Option(
        "--score",
        metavar="SCORE",
        help="How a query and a key are matched: scaled-dot (q·k/√d_k, the default), dot (q·k) or "
        "additive (v·tanh(q + k), Bahdanau); several with commas: side by side.",
        rich_help_panel=_SHAPE,
    ),
]
Device = Annotated[
    str,
    typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, mps.", rich_help_panel=_LOADING),
]
Dtype = Annotated[
    Literal["auto", "float32", "float16", "bfloat16", "float64"],
    typer.Option(
        metavar="DTYPE",
        help="auto (the checkpoint's own), float32, float16, bfloat16 or float64.",
        rich_help_panel=_LOADING,
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Of random weights.", min=0, rich_help_panel=_MODEL)
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", metavar="", help="Directories and the cache only.", rich_help_panel=_LOADING
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        metavar="REVISION",
        help="Branch, tag or commit on the hub.",
        rich_help_panel=_LOADING,
    ),
]
RemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        metavar="",
        help="Run Python code that comes with the model.",
        rich_help_panel=_LOADING,
    ),
]
Pickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        metavar="",
        help="Read weights from pickles, which can run code.",
        rich_help_panel=_LOADING,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON object.", rich_help_panel=_OUTPUT)
]
Save = Annotated[
    list[Path] | None,
    typer.Option(
        "--save",
        metavar="FILE",
        help="Write a file by its ending: .json .csv .npz .safetensors .svg .html .txt .png .pdf; "
        "may be repeated.",
        rich_help_panel=_OUTPUT,
    ),
]
ParamsSave = Annotated[
    list[Path] | None,
    typer.Option(
        "--save",
        metavar="FILE",
        help="Write a file by its ending: .json .csv .md .svg .html .txt; may be repeated.",
        rich_help_panel=_OUTPUT,
    ),
]
PatternSave = Annotated[
    list[Path] | None,
    typer.Option(
        "--save",
        metavar="FILE",
        help="Write a file by its ending: .json .csv .svg .html .png .txt; may be repeated.",
        rich_help_panel=_OUTPUT,
    ),
]
Palette = Annotated[
    PaletteName,
    typer.Option(
        metavar="NAME", help="Colours: viridis, magma, blues or grey.", rich_help_panel=_OUTPUT
    ),
]
Colour = Annotated[
    ColourChoice,
    typer.Option(
        "--color",
        metavar="WHEN",
        help="auto (obeys NO_COLOR and pipes), always or never.",
        rich_help_panel=_OUTPUT,
    ),
]
Ascii = Annotated[
    bool, typer.Option("--ascii", metavar="", help="Draw with ASCII only.", rich_help_panel=_OUTPUT)
]
Width = Annotated[
    int | None,
    typer.Option(
        metavar="COLUMNS",
        help="Columns to draw in (default: the terminal's, 80 in a pipe).",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", metavar="", help="No progress, notices or hints.", rich_help_panel=_OUTPUT
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", metavar="", help="Add a reading for newcomers.", rich_help_panel=_OUTPUT
    ),
]
