"""``attnviz scaling``: what dividing the scores by √d_k does to attention."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.cli.groups import Options, argument, command, flag, option
from attnviz.cli.options import (
    HeadChoice,
    IndexBase,
    Loading,
    Output,
    OwnShape,
    Text,
    Truncation,
    complete_model,
    load_options,
)

__all__ = ["EXAMPLES", "FromModel", "ModelText", "RandomVectors", "Seed", "scaling"]

EXAMPLES = """
[bold]Examples[/bold]

attnviz scaling

attnviz scaling --d-k 1,16,256 --seq 128 --samples 50 --explain

attnviz scaling --from-model

attnviz scaling "A text of your own." --from-model --head L1H0

attnviz scaling --from-model --model mha --d-model 512 --heads 1 --save scaling.svg
"""


@dataclass(frozen=True)
class ModelText(Text):
    """The text that a model reads."""

    text: str | None = argument(
        "TEXT", "With --from-model: the text, in quotes; - reads standard input."
    )


@dataclass(frozen=True)
class Seed(Options):
    """Of all that is random."""

    seed: int = option("N", "Of random numbers and random weights.", 0, min=0)


@dataclass(frozen=True)
class RandomVectors(Options, panel="Random queries and keys"):
    """Queries and keys of independent standard normal entries; None for the usual number."""

    d_k: str | None = option("LIST", "Entries of a query and of a key, such as 8,64,512 (default).")
    seq: int | None = option("N", "Queries and keys of a sample (64).", min=2)
    samples: int | None = option("N", "Independent samples (100).", min=1)


@dataclass(frozen=True)
class FromModel(Options, panel="A model's queries and keys"):
    """Queries and keys of a model instead."""

    from_model: bool = flag("A model's real queries and keys over a text, in place of random ones.")
    model: str | None = option(
        "NAME",
        "tiny (bundled, default), mha (the library's own attention, random weights), a directory, "
        "a Hugging Face id, or a named shape such as configs/gpt2.",
        short="-m",
        autocompletion=complete_model,
    )


@command(EXAMPLES)
def scaling(
    text: ModelText,
    truncation: Truncation,
    choice: HeadChoice,
    counted: IndexBase,
    seed: Seed,
    vectors: RandomVectors,
    source: FromModel,
    own: OwnShape,
    loading: Loading,
    output: Output,
) -> None:
    """Soften the same scores with and without the scale 1/√d_k, and compare the weights."""
    from attnviz.scaling.request import ModelWish, random_wish, refuse_unused
    from attnviz.scaling.run import show_model_scaling, show_random_scaling

    if not source.from_model:
        of_model = [text, truncation, choice, counted, source, own, loading]
        refuse_unused(of_model, "is for the queries and keys of a model: add --from-model")
        wish = random_wish(vectors.d_k, vectors.seq, vectors.samples, seed.seed)
        show_random_scaling(wish, output.explain, output)
        return
    refuse_unused([vectors], "counts random queries and keys: leave --from-model out")
    name = source.model if source.model is not None else "tiny"
    show_model_scaling(
        name,
        load_options(name, loading, seed.seed, own),
        ModelWish(
            text.text,
            text.file,
            choice.layer,
            choice.head,
            counted.index_base,
            truncation.truncate,
        ),
        output.explain,
        output,
    )
