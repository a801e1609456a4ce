"""``attnviz heads``: from a sentence to heatmaps of every head."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from attnviz.cli import options as opt

__all__ = ["EXAMPLES", "heads"]

SortName = Literal[
    "previous",
    "first",
    "self",
    "next",
    "duplicate",
    "induction",
    "entropy",
    "normalised_entropy",
    "distance",
    "confidence",
]

_VIEW = "View"
EXAMPLES = """
[bold]Examples[/bold]

attnviz heads "The cat sat on the mat because it was tired."

attnviz heads "When Mary and John went out, John gave Mary a book." --head L1H0 --values

attnviz heads --file story.txt --layer 0-1 --top 3

attnviz heads "A text." --model ./my-checkpoint --token text --save heads.svg

attnviz heads "나는 오늘 학교에 갔다 ." --model mha --d-model 64 --heads 8 --causal

attnviz heads "the cat sat on the mat" --model mha --kind self,cross --target "four words of query"
"""


def heads(
    text: opt.TextArgument = None,
    file: opt.TextFile = None,
    layer: opt.Layers = None,
    head: opt.Heads = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Of an encoder–decoder: encoder (default), decoder or cross; of mha: self "
            "(default) or cross; several with commas: side by side.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Decoder text for --kind decoder and cross (default: the model's own greedy "
            "output); with mha the text of the queries, which look at TEXT.",
        ),
    ] = None,
    truncate: opt.Truncate = False,
    values: Annotated[
        bool,
        typer.Option(
            "--values", metavar="", help="Write the weights in the cells.", rich_help_panel=_VIEW
        ),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The N strongest token pairs of each head, as a table.",
            rich_help_panel=_VIEW,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="WORD|INDEX",
            help="What one word looks at and is looked at by, over all heads.",
            rich_help_panel=_VIEW,
        ),
    ] = None,
    sort: Annotated[
        SortName | None,
        typer.Option(
            metavar="MEASURE",
            help="Order the heads by previous, first, self, next, duplicate, induction, entropy, "
            "normalised_entropy, distance or confidence; largest first.",
            rich_help_panel=_VIEW,
        ),
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", metavar="", help="Smallest first.", rich_help_panel=_VIEW)
    ] = False,
    index_base: opt.IndexBase = 0,
    model: opt.Model = "tiny",
    seed: opt.Seed = 0,
    d_model: opt.DModel = None,
    head_count: opt.HeadCount = None,
    kv_heads: opt.KvHeads = None,
    causal: opt.Causal = None,
    compare_mask: opt.CompareMask = False,
    score: opt.Scores = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.RemoteCode = False,
    allow_pickle: opt.Pickle = False,
    json: opt.Json = False,
    save: opt.Save = None,
    palette: opt.Palette = "viridis",
    color: opt.Colour = "auto",
    ascii: opt.Ascii = False,
    width: opt.Width = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show where each attention head looks, over one text."""
    from attnviz.cli.heads_run import Choice, Wish, show_heads
    from attnviz.cli.heads_variants import make_variants
    from attnviz.cli.output import Output
    from attnviz.cli.text_input import as_utf8, read_text
    from attnviz.errors import UsageError
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
    if compare_mask:
        shape["compare_mask"] = True
        if causal is not None:
            raise UsageError("--compare-mask shows both: leave out --causal and --no-causal")
    if score:
        shape["score"] = score
    refuse_unheeded(model, options, shape)
    if target is not None:
        target = as_utf8(target, "--target")
    if token is not None:
        token = as_utf8(token, "--token")
    show_heads(
        lambda: read_text(text, file),
        model,
        make_variants(
            options,
            Choice(layer, tuple(head or ()), index_base, target=target, truncate=truncate),
            kind,
            score,
            compare_mask,
        ),
        Wish(values, top, token, sort, reverse, explain),
        Output(json, tuple(save or ()), palette, color, ascii, width, quiet),
    )
