"""``attnviz verify``: the proof that the numbers are right, of the own attention or of a model."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.cli.groups import Options, argument, command, flag, option
from attnviz.cli.options import (
    Loading,
    Output,
    OwnShape,
    Text,
    Truncation,
    complete_model,
    load_options,
)

__all__ = ["EXAMPLES", "ModelText", "Own", "Verified", "verify"]

EXAMPLES = """
[bold]Examples[/bold]

attnviz verify

attnviz verify --steps

attnviz verify --d-model 96 --heads 6 --kv-heads 3 --seq 11 --dtype float64

attnviz verify --model tiny

attnviz verify "A text of your own." --model ./my-checkpoint --json
"""


@dataclass(frozen=True)
class ModelText(Text):
    """The text that a model reads."""

    text: str | None = argument(
        "TEXT", "With --model: the text, in quotes; - reads standard input (default: a sentence)."
    )
    target: str | None = option(
        "TEXT", "Decoder text of an encoder–decoder (the text itself).", words=True
    )


@dataclass(frozen=True)
class Own(OwnShape, panel="The library's own attention"):
    """What is verified of the own attention, and its shape."""

    causal: bool | None = option(
        "",
        "Hide later tokens, in --steps (yes) and with --model mha (no).",
        name="--causal/--no-causal",
    )
    steps: bool = flag(
        "Shapes at each step, and for small sizes the numbers (3 tokens, d_model 4, 2 heads unless "
        "given)."
    )
    seq: int | None = option("N", "Tokens of a text (7).", min=2)
    keras: bool | None = option(
        "", "Compare with Keras's layers (if installed).", name="--keras/--no-keras"
    )


@dataclass(frozen=True)
class Verified(Options, panel="Model"):
    """The model that is verified; none for the own attention."""

    model: str | None = option(
        "NAME",
        "Verify this model: tiny (bundled), mha, a directory, a Hugging Face id, or a named shape "
        "such as configs/gpt2 (random weights).",
        short="-m",
        autocompletion=complete_model,
    )
    seed: int = option("N", "Of random weights.", 0, min=0)


@command(EXAMPLES)
def verify(
    text: ModelText,
    truncation: Truncation,
    own: Own,
    model: Verified,
    loading: Loading,
    output: Output,
) -> None:
    """Prove that attention is computed right: against other libraries, or in a model."""
    from attnviz.models.resolve import LoadOptions
    from attnviz.verify.request import ModelWish, OwnWish, refuse_idle
    from attnviz.verify.run import show_model_proof, show_own_proof

    proof = OwnWish(**vars(own), dtype=loading.dtype, seed=model.seed)
    wish = ModelWish(**vars(text), **vars(truncation))
    refuse_idle(model.model, proof, wish, LoadOptions(**vars(loading), seed=model.seed))
    if model.model is None:
        show_own_proof(proof, output.explain, output)
        return
    options = load_options(model.model, loading, model.seed, own)
    show_model_proof(model.model, options, wish, output.explain, output)
