"""``attnviz ablate``: what is lost when heads are removed."""

from __future__ import annotations

from attnviz.ablate.options import (
    AblatedModel,
    Ablation,
    Measure,
    Request,
    View,
    WrittenText,
)
from attnviz.cli.groups import command
from attnviz.cli.options import (
    HeadChoice,
    IndexBase,
    Loading,
    Output,
    OwnShape,
    Texts,
    Truncation,
    load_options,
)

__all__ = ["EXAMPLES", "ablate"]

EXAMPLES = """
[bold]Examples[/bold]

attnviz ablate

attnviz ablate --head 3

attnviz ablate "When Mary and John went out, John gave a book to Mary." --head L1H0 --by-token

attnviz ablate --texts stories.txt --mode mean --resume scan.jsonl --save scan.csv

attnviz ablate --model openai-community/gpt2 --method budget --budget 30s
"""


@command(EXAMPLES)
def ablate(
    texts: Texts,
    truncation: Truncation,
    kind: WrittenText,
    heads: HeadChoice,
    ablation: Ablation,
    measure: Measure,
    view: View,
    counted: IndexBase,
    model: AblatedModel,
    own: OwnShape,
    loading: Loading,
    output: Output,
) -> None:
    """Remove heads and measure what is lost; all of them, exactly, in one scan."""
    from attnviz.ablate.run import show_ablation
    from attnviz.cli.inputs import read_texts

    show_ablation(
        lambda: read_texts(texts.text, texts.file, texts.texts),
        model.model,
        load_options(model.model, loading, model.seed, own),
        Request(heads, counted, ablation, measure, view, kind, truncation, model.seed),
        output,
    )
