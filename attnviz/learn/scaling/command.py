"""``attnviz scaling``: what dividing the scores by √d_k does to attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import UsageError
from attnviz.options import Options, argument, flag, option

if TYPE_CHECKING:
    from attnviz.cli.outlet import Outlet
    from attnviz.draw.document import Document
    from attnviz.learn.scaling.records import ScalingReport
    from attnviz.models.resolve import LoadOptions

EXAMPLES = """
[bold]Examples[/bold]

attnviz scaling

attnviz scaling --d-k 1,16,256 --seq 128 --samples 50 --explain

attnviz scaling --from-model

attnviz scaling "A text of your own." --from-model --head L1H0

attnviz scaling --from-model --model mha --d-model 512 --heads 1 --save scaling.svg
"""

_NUMBER = re.compile(r"[0-9]{1,15}")
_NEEDED = "the scores and weights take"


@dataclass(frozen=True)
class ModelText(shared.Text):
    """The text that a model reads."""

    text: str | None = argument(
        "TEXT", "With --from-model: the text, in quotes; - reads standard input."
    )


@dataclass(frozen=True)
class Seed(Options):
    """The seed of all that is random."""

    seed: int = option("N", "Random seed (queries and keys, random weights).", 0, min=0)


@dataclass(frozen=True)
class RandomVectors(Options, panel="Random queries and keys"):
    """Queries and keys of independent standard normal entries; None for the usual number."""

    d_k: str | None = option("LIST", "Sizes of a query and a key (default: 8,64,512).")
    seq: int | None = option("N", "Number of queries and keys in a sample (default: 64).", min=2)
    samples: int | None = option("N", "Number of independent samples (default: 100).", min=1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Each d_k, smallest first; UsageError for a list that is none."""
        typed = self.d_k if self.d_k is not None else "8,64,512"
        sizes = set()
        for part in typed.split(","):
            if not _NUMBER.fullmatch(part.strip()) or int(part) < 1:
                raise UsageError(
                    f"cannot read {part.strip()!r} in --d-k {typed!r}: expected whole numbers from "
                    "1, such as 8,64,512"
                )
            sizes.add(int(part))
        return tuple(sorted(sizes))


@dataclass(frozen=True)
class FromModel(Options, panel="A model's queries and keys"):
    """Queries and keys of a model instead."""

    from_model: bool = flag("Take a model's queries and keys over a text, not random ones.")
    model: str | None = option(
        "NAME",
        "tiny (bundled, default), mha (the library's own attention, random weights), a directory, "
        "a Hugging Face id, or a named shape such as configs/gpt2.",
        short="-m",
        autocompletion=shared.complete_model,
    )


@command(EXAMPLES)
def scaling(
    text: ModelText,
    truncation: options.Truncation,
    choice: options.HeadChoice,
    counted: options.IndexBase,
    seed: Seed,
    vectors: RandomVectors,
    source: FromModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Compare the softmax with and without the scale 1/√d_k."""
    from attnviz.cli.outlet import Found, open_outlet
    from attnviz.learn.scaling.data import scaling_data, scaling_rows

    if source.from_model:
        _refuse(vectors, reason="counts random queries and keys: leave --from-model out")
        name = source.model if source.model is not None else "tiny"
        options = shared.load_options(name, loading, seed.seed, own)
        outlet = open_outlet(output)
        report = _of_model(name, options, text, truncation, choice, counted, outlet)
        hints = () if choice.head else ("--head L0H0: one head",)
    else:
        of_model = (text, truncation, choice, counted, source, own, loading)
        _refuse(*of_model, reason="is for the queries and keys of a model: add --from-model")
        outlet = open_outlet(output)
        report = _of_random_vectors(vectors, seed.seed, outlet)
        hints = ("--from-model: a trained model's own",)
    if not output.explain:
        hints = (*hints, "--explain: how to read this")

    def drawn() -> Document:
        from attnviz.learn.scaling.document import scaling_document

        return scaling_document(report, () if output.quiet else hints, output.explain)

    outlet.show(Found(partial(scaling_data, report), partial(scaling_rows, report), drawn))


def _refuse(*groups: Options, reason: str) -> None:
    """Raise UsageError for the first option that was given though it says nothing here."""
    for group in groups:
        for name in group.given():
            raise UsageError(f"{name} {reason}")


def _of_random_vectors(vectors: RandomVectors, seed: int, outlet: Outlet) -> ScalingReport:
    """What can be refused is refused before any is drawn."""
    from attnviz.cli.progress import scanning
    from attnviz.learn.scaling.measure import needed_bytes, random_scaling
    from attnviz.models.memory import require_room

    seq = vectors.seq if vectors.seq is not None else 64
    samples = vectors.samples if vectors.samples is not None else 100
    needed = needed_bytes(vectors.sizes, seq, samples)
    require_room(_NEEDED, needed, "choose a smaller --d-k, --seq or --samples")
    with scanning("softmax of the scores", outlet.notices) as advance:
        return random_scaling(vectors.sizes, seq, samples, seed, advance)


def _of_model(
    name: str,
    options: LoadOptions,
    text: shared.Text,
    truncation: options.Truncation,
    choice: options.HeadChoice,
    counted: options.IndexBase,
    outlet: Outlet,
) -> ScalingReport:
    """What can be refused is refused before the model is loaded."""
    from attnviz.cli.progress import loading
    from attnviz.engine.capture import encoded
    from attnviz.engine.selection import choose_heads
    from attnviz.learn.scaling.measure import model_scaling, needed_text_bytes
    from attnviz.models.memory import require_room
    from attnviz.models.resolve import load, reckoned_tokens
    from attnviz.texts import BUILT_IN_TEXT, Texts, read_texts

    given = text.text is not None or text.file is not None
    built_in = Texts((BUILT_IN_TEXT,), "a built-in text")
    texts = read_texts(text.text, text.file, None) if given else built_in
    with loading(name, outlet.notices) as progress:
        read = reckoned_tokens(texts.texts[0])
        model = load(name, replace(options, progress=progress, tokens=read))
        layers, heads, base = choice.layer, choice.head, counted.index_base
        chosen = choose_heads(layers, heads, model.info.layers, model.info.heads, base)
        tokens = encoded(model, texts.texts[0], truncation.truncate)
        if len(tokens) < 2:
            raise UsageError(
                "the text has one token: expected at least two, or there is nothing to choose"
            )
        needed = needed_text_bytes(len(tokens))
        require_room(_NEEDED, needed, "shorten the text, or add --truncate")
        report = model_scaling(
            model, tokens, chosen, seed=options.seed, by_head=bool(heads), index_base=base
        )
    return replace(report, text=texts.texts[0], source=texts.source)
