"""The two sides of a comparison: which models, over which texts, token by token alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from attnviz.cli.options import load_options
from attnviz.draw.labels import visible
from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.inspect.diff.options import Request
from attnviz.inspect.diff.saved import SavedResult, is_saved, read_saved
from attnviz.models.resolve import Loaded, LoadOptions
from attnviz.records import Input, Kind
from attnviz.texts import (
    Texts,
    built_in_texts,
    encode_texts,
    read_text,
    read_texts_file,
)

_BUILT_IN = ("tiny", "mha")
_TOKENS = 6_000
"""About what the probes of ``patterns`` and the built-in texts have together."""

_LEAST = 2
"""Tokens of a text: the first query of a causal one sees nothing but itself."""


@dataclass(frozen=True)
class LiveSide:
    """A model to be loaded, and the texts that it reads."""

    name: str
    options: LoadOptions
    texts: Texts

    def of_model(self, other: LiveSide) -> bool:
        """Whether both are one model; of two that Python has loaded the names may be the same."""
        if isinstance(self.name, Loaded) or isinstance(other.name, Loaded):
            return self.name is other.name
        return self.name == other.name


Side = LiveSide | SavedResult


def both_sides(request: Request) -> tuple[Side, Side]:
    """A and B, with every file read; nothing is loaded.

    Raises UsageError for options that do not go together, LoadError for files that cannot be read.
    """
    name, condition = request.sides.a, request.condition
    other = request.sides.b if request.sides.b is not None else name
    given = [*condition.given()]
    saved = [each for each in (name, other) if is_saved(each)]
    if saved and given:
        raise UsageError(f"a saved result is compared as it stands: leave out {given[0]}")
    if saved and request.compared.match:
        raise UsageError("--match pairs heads by their maps, which a saved result has none of")
    texts = _texts(request.compared.text, request.compared.texts)
    texts_b = texts
    if request.two_texts:
        texts_b = _texts(condition.text_b, condition.texts_b)
        if len(texts.texts) != len(texts_b.texts):
            raise UsageError(
                f"texts are compared one by one: expected as many for B as for A, got "
                f"{len(texts.texts)} and {len(texts_b.texts)}"
            )
    options, options_b = _options(request, name, other)
    return (
        read_saved(name) if is_saved(name) else LiveSide(name, options, texts),
        read_saved(other) if is_saved(other) else LiveSide(other, options_b, texts_b),
    )


def distinct(a: LiveSide, b: LiveSide) -> tuple[LiveSide, LiveSide, int]:
    """The sides with each pair of texts once, and how many were left out.

    A text that counts twice would narrow intervals that are over texts.
    """
    first: dict[tuple[str, str], int] = {}
    for place, pair in enumerate(zip(a.texts.texts, b.texts.texts, strict=True)):
        first.setdefault(pair, place)
    kept = first.values()
    one, other = (
        replace(
            side,
            texts=side.texts._replace(
                texts=tuple(side.texts.texts[place] for place in kept),
                lines=tuple(side.texts.lines[place] for place in kept if side.texts.lines),
            ),
        )
        for side in (a, b)
    )
    return one, other, len(a.texts.texts) - len(kept)


def _texts(text: str | None, many: Path | Texts | None) -> Texts:
    if isinstance(many, Texts):  # from Python
        return many
    if many is not None:
        return read_texts_file(many, "--texts")
    return built_in_texts() if text is None else Texts((read_text(text, None, "diff"),), "")


def _options(request: Request, name: str, other: str) -> tuple[LoadOptions, LoadOptions]:
    """How each side is loaded."""
    condition = request.condition
    changed = replace(
        request.loading,
        dtype=condition.dtype_b or request.loading.dtype,
        revision=condition.revision_b or request.loading.revision,
        backend=condition.backend_b or request.loading.backend,
    )
    found = []
    for each, loading in ((name, request.loading), (other, changed)):
        if each in _BUILT_IN and each != name:  # what was said of A's checkpoint
            loading = replace(loading, revision=condition.revision_b, device="cpu", backend="auto")
        options = (
            LoadOptions(seed=request.seed)
            if is_saved(each)
            else load_options(each, loading, request.seed)
        )
        found.append(options)
    # Both run by the same: what torch alone can do to one side, or effects, torch does to both.
    torch = request.compared.importance or any(
        each.backend == "torch" or each.dtype not in ("auto", "float32") or each.device != "cpu"
        for each in found
    )
    a, b = (
        replace(each, tokens=None if torch and each.backend != "numpy" else _TOKENS)
        for each in found
    )
    return a, b


# Token by token ------------------------------------------------------------------------------


def inputs_of(probing: Probing, side: LiveSide, truncate: bool) -> list[Input]:
    """What the model reads; UsageError for a text that is too short or too long for it."""
    tokens = encode_texts(probing.model, side.texts, truncate, _LEAST)
    if probing.kind in ("self", "encoder"):
        return [Input(each) for each in tokens]
    return [probing.input_of(text) for text in side.texts.texts]


def require_alike(
    first: Sequence[Input], second: Sequence[Input], kind: Kind, *, two_texts: bool
) -> None:
    """UsageError where the sides do not have the same tokens, or, of other texts, as many."""
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        for a, b in ((one.queries(kind), other.queries(kind)), (one.keys(kind), other.keys(kind))):
            if len(a) != len(b) and two_texts:
                raise UsageError(
                    f"text {number} has {len(a)} tokens for A and {len(b)} for B: rows are "
                    "compared query by query, give texts of as many tokens"
                )
            if not two_texts and a.texts != b.texts:
                pairs = enumerate(zip_longest(a.texts, b.texts))
                at = next(place for place, pair in pairs if pair[0] != pair[1])
                words = [
                    repr(visible(each.texts[at])) if at < len(each) else "none" for each in (a, b)
                ]
                raise UsageError(
                    f"the tokenizers differ: token {at} of text {number} is {words[0]} to A and "
                    f"{words[1]} to B; rows can be compared only over the same tokens"
                )
