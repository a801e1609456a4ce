"""The two sides of a comparison: a model and its texts, or scores that were saved earlier."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import get_args

from attnviz.draw.labels import visible
from attnviz.draw.values import model_of
from attnviz.engine.capture import Probing
from attnviz.engine.head_run import Head
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.diff.report import HeadState
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.patterns.report import SCHEMA, read_scores
from attnviz.models.model import Model, NumpyModel
from attnviz.models.resolve import LoadOptions, load, refuse_ignored
from attnviz.models.work import Work, about_tokens
from attnviz.reading import RESULT_BYTES, damaged, optional, parse_json, read_bytes
from attnviz.records import Input, Kind, ModelInfo
from attnviz.texts import Texts, built_in_texts, encode_texts
from attnviz.token_layout import WHOLE, Grid

_BUILT_IN = ("tiny", "mha")
_TOKENS, _TEXTS = 6_000, 80  # about those of the probes of patterns and the built-in texts
_LONG = 2_048  # tokens of a text from which torch runs the model: it needs no whole maps
_MOST_LAYERS = 2_000  # of a decoder, whose number a saved result does not tell
_LEAST = 2  # the fewest tokens of a text: the first query of a causal text sees only itself


@dataclass(frozen=True)
class LiveSide:
    """One side of a comparison that is measured: a model, loaded or named, and its texts."""

    name: str
    options: LoadOptions
    texts: Texts
    loaded: Model | None = None

    def of_model(self, other: LiveSide) -> bool:
        """Return whether both sides have the same model; of loaded ones, the same Python object."""
        return self.loaded is other.loaded and (self.loaded is not None or self.name == other.name)

    def opened(self) -> Model:
        """Return the model of the side, loaded if it was given by its name."""
        return load(self.name, self.options) if self.loaded is None else self.loaded

    def taken(self, places: Sequence[int]) -> LiveSide:
        """Return the side with only some of its texts. places: the indices of these."""
        texts, lines = self.texts.texts, self.texts.lines
        kept = tuple(texts[place] for place in places)
        some = tuple(lines[place] for place in places if lines)
        return replace(self, texts=self.texts._replace(texts=kept, lines=some))


@dataclass(frozen=True)
class SavedResult:
    """A result that ``patterns`` saved as JSON, as one side of a comparison.

    heads: label and scores by (layer, head). text: the text that was scored; None for the probes.
    """

    name: str
    info: ModelInfo
    kind: Kind
    heads: Mapping[Head, HeadState]
    text: str | None = None
    source: str = ""


Side = LiveSide | SavedResult


def is_saved(name: str) -> bool:
    """Return whether a name is that of a saved result: a file that ends in .json."""
    return name.lower().endswith(".json") and not os.path.isdir(os.path.expanduser(name))


def read_saved(name: str) -> SavedResult:
    """Return the result that ``patterns`` saved in a file; LoadError for anything else."""
    path = Path(os.path.expanduser(name))
    shown = repr(visible(str(path)))
    data = parse_json(read_bytes(path, name=shown, most=RESULT_BYTES), shown)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        got = f"the schema {visible(str(schema))[:60]!r}" if schema else "no schema"
        raise LoadError(
            f"{shown} holds {got}: expected what attnviz patterns --save FILE.json writes "
            f"({SCHEMA})"
        )
    with damaged(shown, "save it again with attnviz patterns --save"):
        entries = [read_scores(entry) for entry in data["heads"]]
        heads = {
            entry.place: HeadState(entry.label, entry.scores, entry.intervals) for entry in entries
        }
        if not heads or len(heads) < len(entries):
            raise ValueError("a head that is there twice" if heads else "no heads")
        info = model_of(data["model"])
        layers = range(info.layers) if data["kind"] in ("self", "encoder") else range(_MOST_LAYERS)
        known = all(layer in layers and head in range(info.heads) for layer, head in heads)
        if data["kind"] not in get_args(Kind) or not known:
            raise ValueError("no such attention or head")
        text, source = optional(data["text"], str), optional(data["source"], str) or ""
        return SavedResult(str(path), info, data["kind"], heads, text, source)


def both_sides(
    request: DiffRequest,
    a: str | Model,
    b: str | Model,
    options: LoadOptions,
    *,
    texts: Texts | None = None,
    texts_b: Texts | None = None,
    pictures: Work | None = None,
) -> tuple[Side, Side]:
    """Return both sides of a comparison with every file read; no model is loaded yet.

    a, b: a name, a loaded model, or a result saved as .json. options: for models given by name.
    texts: by default the built-in ones. texts_b: the texts of B, if not those of A. pictures: the
    work of models that read pictures, if the texts are such or have some.

    Raises UsageError for options that do not go together, LoadError for files that cannot be read.
    """
    named, condition = [side for side in (a, b) if isinstance(side, str)], request.named_condition()
    unused = not named and options != LoadOptions(seed=request.seed)
    if unused or (not isinstance(b, str) and condition):
        raise UsageError(
            "device, dtype, backend and revision are for a model that is loaded by its name: this "
            "one is loaded"
        )
    if texts_b is not None and texts is None:
        raise UsageError("texts_b is what b reads in place of texts: give texts as well")
    texts = texts or built_in_texts()
    if any(map(is_saved, named)):
        if given := [*condition, *(["text"] if texts_b is not None else [])]:
            raise UsageError(f"a saved result is compared as it stands: leave out --{given[0]}-b")
        if pictures is not None:
            raise UsageError("a saved result has scores of texts: no image is read beside it")
        if request.match:
            raise UsageError("--match pairs heads by their maps, which a saved result has none of")
    texts_b = texts if texts_b is None else texts_b
    if len(texts.texts) != len(texts_b.texts):
        raise UsageError(
            f"texts are compared one by one: expected as many for B as for A, got "
            f"{len(texts.texts)} and {len(texts_b.texts)}"
        )
    first, second = _options(request, a, b, options, [*texts.texts, *texts_b.texts])
    if pictures is not None:
        first, second = (replace(own, work=pictures) for own in (first, second))
    return _side(a, first, texts), _side(b, second, texts_b)


def _side(given: str | Model, options: LoadOptions, texts: Texts) -> Side:
    if not isinstance(given, str):
        return LiveSide(given.info.name, options, texts, given)
    return read_saved(given) if is_saved(given) else LiveSide(given, options, texts)


def _options(
    request: DiffRequest,
    a: str | Model,
    b: str | Model,
    options: LoadOptions,
    texts: Sequence[str],
) -> list[LoadOptions]:
    """Return the options with which A and B are loaded, on the same backend."""
    both = []
    for side, own in ((a, options), (b, replace(options, **request.named_condition()))):
        if not isinstance(side, str) or is_saved(side):
            both.append(LoadOptions(seed=request.seed))
            continue
        if side in _BUILT_IN and side != a:  # the options are for A's checkpoint
            own = replace(own, revision=request.revision_b, device="cpu", backend="auto")
        refuse_ignored(side, own, ())
        both.append(own)
    # Both run in torch if one of them or a long text needs it.
    torch = request.reduce == "fused" or max(map(about_tokens, texts)) >= _LONG
    torch = torch or any(
        not isinstance(side, str | NumpyModel)
        or own.backend == "torch"
        or own.dtype not in ("auto", "float32")
        or own.device != "cpu"
        for side, own in zip((a, b), both, strict=True)
    )
    return [
        replace(own, work=Work(None if torch and own.backend != "numpy" else _TOKENS, texts=_TEXTS))
        for own in both
    ]


def distinct(a: LiveSide, b: LiveSide) -> tuple[LiveSide, LiveSide, int]:
    """Return both sides without repeated text pairs, and how many pairs were left out.

    A text that counts twice would make intervals over texts too narrow.
    """
    first: dict[tuple[str, str], int] = {}
    for place, pair in enumerate(zip(a.texts.texts, b.texts.texts, strict=True)):
        first.setdefault(pair, place)
    kept = [*first.values()]
    return a.taken(kept), b.taken(kept), len(a.texts.texts) - len(kept)


def are_same(a: LiveSide, b: LiveSide) -> bool:
    """Return whether both sides are one model, with the same texts, dtype and backend."""
    return a.of_model(b) and a.texts.texts == b.texts.texts and a.options == b.options


# Token by token ------------------------------------------------------------------------------


def side_inputs(probing: Probing, side: LiveSide, truncate: bool) -> list[Input]:
    """Return the model's input for each text; UsageError for one too short or too long for it."""
    tokens = encode_texts(probing.model, side.texts, truncate, _LEAST)
    return probing.inputs_of(side.texts.texts, tokens, truncate)


def _grid(grid: Grid | None) -> str:
    """Return a grid of patches in words, with the part of its picture if that is not the whole."""
    if grid is None:
        return "no patches"
    part = "" if grid.box == WHOLE else f" of {', '.join(f'{side:.0%}' for side in grid.box)}"
    return f"{grid.rows} x {grid.columns} patches{part}"


def require_alike(
    first: Sequence[Input], second: Sequence[Input], kind: Kind, *, two_texts: bool
) -> None:
    """Raise UsageError unless both models run on the same tokens.

    two_texts: B was given other texts; then only the numbers of tokens must be equal.
    """
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        for a, b in ((one.queries(kind), other.queries(kind)), (one.keys(kind), other.keys(kind))):
            if len(a) != len(b) and two_texts:
                raise UsageError(
                    f"text {number} has {len(a)} tokens for A and {len(b)} for B: rows are "
                    "compared query by query, give texts with as many tokens"
                )
            grids = [() if own.layout is None else own.layout.grids for own in (a, b)]
            if grids[0] != grids[1]:
                ours, theirs = next(pair for pair in zip_longest(*grids) if pair[0] != pair[1])
                raise UsageError(
                    f"A and B read text or image {number} differently: {_grid(ours)} to A, "
                    f"{_grid(theirs)} to B; rows can be compared only over the same patches of the "
                    "same part"
                )
            if two_texts or a.texts == b.texts:
                continue
            pairs = enumerate(zip_longest(a.texts, b.texts))
            at, pair = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            shown = ["none" if text is None else repr(visible(text)) for text in pair]
            differ = (
                "tokenizers differ" if a.layout is None else "models add other tokens to images"
            )
            raise UsageError(
                f"the {differ}: token {at} of text {number} is {shown[0]} to A and "
                f"{shown[1]} to B; rows can be compared only over the same tokens"
            )
