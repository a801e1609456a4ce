"""The two sides of a comparison: the models, and the texts whose tokens must be alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from attnviz.draw.labels import visible
from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.diff.saved import SavedResult, is_saved, read_saved
from attnviz.models.model import Model, NumpyModel
from attnviz.models.resolve import LoadOptions, reckoned_tokens, refuse_ignored
from attnviz.records import Input, Kind
from attnviz.texts import Texts, built_in_texts, encode_texts

_BUILT_IN = ("tiny", "mha")
_TOKENS = 6_000
"""About how many tokens the probes of ``patterns`` and the built-in texts have together."""

_TEXTS = 80
"""In about how many texts."""

_ABLATED = 2
"""How many times as much there is to run with every head ablated, in a model that NumPy runs."""

_LONG = 2_048
"""The tokens of a text from which a model runs in torch, which reads it without whole maps."""

_LEAST = 2
"""The fewest tokens of a text: the first query of a causal text sees only itself."""


@dataclass(frozen=True)
class LiveSide:
    """One side of a comparison that is measured: a model, and the texts that it runs on.

    name: the model's. options: how it is loaded. texts: its texts. loaded: the model itself, if
        Python code gave it.
    """

    name: str
    options: LoadOptions
    texts: Texts
    loaded: Model | None = None

    def of_model(self, other: LiveSide) -> bool:
        """Return whether both sides have the same model.

        Two loaded models may share a name without being the same.
        """
        if self.loaded is not None or other.loaded is not None:
            return self.loaded is other.loaded
        return self.name == other.name


Side = LiveSide | SavedResult


def both_sides(
    request: DiffRequest,
    a: str | Model,
    b: str | Model,
    options: LoadOptions,
    *,
    texts: Texts | None = None,
    texts_b: Texts | None = None,
) -> tuple[Side, Side]:
    """Return both sides of a comparison with every file read; no model is loaded yet.

    a, b: a name, a loaded model, or a result saved as .json. options: for models given by name.
    texts: by default the built-in ones. texts_b: the texts of B, if not those of A.

    Raises UsageError for options that do not go together, LoadError for files that cannot be read.
    """
    named = [side for side in (a, b) if isinstance(side, str)]
    unused = not named and options != LoadOptions(seed=request.seed)
    if unused or (not isinstance(b, str) and request.named_condition()):
        raise UsageError(
            "device, dtype, backend and revision are for a model that is loaded by its name: this "
            "one is loaded"
        )
    if texts_b is not None and texts is None:
        raise UsageError("texts_b is what b reads in place of texts: give texts as well")
    texts = texts or built_in_texts()
    if any(map(is_saved, named)):
        given = [*request.named_condition(), *(["text"] if texts_b is not None else [])]
        if given:
            raise UsageError(f"a saved result is compared as it stands: leave out --{given[0]}-b")
        if request.match:
            raise UsageError("--match pairs heads by their maps, which a saved result has none of")
    if texts_b is not None and len(texts.texts) != len(texts_b.texts):
        raise UsageError(
            f"texts are compared one by one: expected as many for B as for A, got "
            f"{len(texts.texts)} and {len(texts_b.texts)}"
        )
    found: list[Side] = []
    read = (texts, texts if texts_b is None else texts_b)
    each_options = _options(request, a, b, options, [*read[0].texts, *read[1].texts])
    for side, each, own in zip((a, b), each_options, read, strict=True):
        if not isinstance(side, str):
            found.append(LiveSide(side.info.name, each, own, side))
        else:
            found.append(read_saved(side) if is_saved(side) else LiveSide(side, each, own))
    first, second = found
    return first, second


def distinct(a: LiveSide, b: LiveSide) -> tuple[LiveSide, LiveSide, int]:
    """Return both sides without repeated text pairs, and how many pairs were left out.

    A text that counts twice would make intervals over texts too narrow.
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


def _options(
    request: DiffRequest,
    a: str | Model,
    b: str | Model,
    options: LoadOptions,
    texts: Sequence[str],
) -> tuple[LoadOptions, LoadOptions]:
    """Return the options with which A and B are loaded.

    a, b: a name or a loaded model. options: for models given by name. texts: what A and B read.
    """
    found = []
    for side, own in ((a, options), (b, replace(options, **request.named_condition()))):
        if not isinstance(side, str) or is_saved(side):
            found.append(LoadOptions(seed=request.seed))
            continue
        if side in _BUILT_IN and side != a:  # the options are for A's checkpoint
            own = replace(own, revision=request.revision_b, device="cpu", backend="auto")
        refuse_ignored(side, own, ())
        found.append(own)
    # Both sides run on the same backend: torch, if one of them or a long text needs it.
    long = request.reduce == "fused" or max(map(reckoned_tokens, texts)) >= _LONG
    torch = long or any(
        (not isinstance(side, str | NumpyModel))
        or each.backend == "torch"
        or each.dtype not in ("auto", "float32")
        or each.device != "cpu"
        for side, each in zip((a, b), found, strict=True)
    )
    much = _ABLATED if request.importance else 1
    one, other = (
        replace(
            each,
            tokens=None if torch and each.backend != "numpy" else much * _TOKENS,
            texts=much * _TEXTS,
        )
        for each in found
    )
    return one, other


# Token by token ------------------------------------------------------------------------------


def side_inputs(probing: Probing, side: LiveSide, truncate: bool) -> list[Input]:
    """Return the inputs of the model, one for each text of its side.

    probing: prepares texts for the model. truncate: True cuts texts that are too long.
    Raises UsageError if a text is too short or too long for it.
    """
    tokens = encode_texts(probing.model, side.texts, truncate, _LEAST)
    if probing.kind in ("self", "encoder"):
        return [Input(each) for each in tokens]
    return [probing.input_of(text, truncate=truncate) for text in side.texts.texts]


def require_alike(
    first: Sequence[Input], second: Sequence[Input], kind: Kind, *, two_texts: bool
) -> None:
    """Raise UsageError unless both models run on the same tokens.

    first, second: the inputs of A and B. kind: of attention. two_texts: B was given other texts;
        then only the numbers of tokens must be equal.
    """
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
