"""The two sides of a comparison: what is kept of each over texts, and the numbers of both.

A side is a model and its texts, or scores that were saved earlier. The models are loaded one after
the other. Attention rows, head outputs and predictions of each are kept for all queries of a text,
or for evenly spaced ones if all need over ``MOST_BYTES``.

A head counts as changed if the 95 % bootstrap interval, over paired texts, of its divergence lies
above the noise floor, which is the effect of rounding alone on either model. A difference by itself
means nothing, because any change of a weight changes every head.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array
from attnviz.draw.labels import visible
from attnviz.draw.values import model_of
from attnviz.engine.head_run import Head, HeadRun
from attnviz.engine.likely import log_softmax
from attnviz.engine.observer import Reduce, sums_or_maps, to_numpy
from attnviz.engine.probing import Probing
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.diff.report import Floor, HeadState, Predictions
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.patterns.report import SCHEMA, read_scores
from attnviz.measures.bootstrap import intervals
from attnviz.measures.divergence import cheapest_pairs, cosine, js_divergence, kl_divergence
from attnviz.measures.sinks import sink_keys, without_sink
from attnviz.models.model import Model, NumpyModel, require_number
from attnviz.models.resolve import LoadOptions, load, refuse_ignored
from attnviz.models.work import Work, about_tokens
from attnviz.reading import RESULT_BYTES, damaged, optional, parse_json, read_bytes
from attnviz.records import Floats, Input, Kind, ModelInfo, Tokens
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

    def taken(self, kept: Sequence[int]) -> LiveSide:
        """Return the side with only some of its texts. kept: the indices of these."""
        texts, lines = self.texts.texts, self.texts.lines
        some = tuple(lines[number] for number in kept if lines)
        taken = tuple(texts[number] for number in kept)
        return replace(self, texts=self.texts._replace(texts=taken, lines=some))


@dataclass(frozen=True)
class SavedResult:
    """Scores of heads that ``patterns`` saved as JSON; of one ``text``, or None for the probes."""

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
    request: DiffRequest, a: str | Model, b: str | Model, options: LoadOptions, texts: Sequence[str]
) -> list[LoadOptions]:
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
    """Raise UsageError unless A and B have the same tokens, or as many with ``two_texts``."""
    for number, both in enumerate(zip(first, second, strict=True), start=1):
        queries, keys = ([own.queries(kind) for own in both], [own.keys(kind) for own in both])
        for a, b in (queries, keys):
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


# What is kept of a model ------------------------------------------------------------------------


_LEAST_ROWS = 8  # the fewest rows of a long text that are compared

MOST_BYTES = 2**28
"""The most that is kept of one model: 256 MiB hold all heads of GPT-2 over some 900 tokens."""


@dataclass(frozen=True, eq=False)
class TextMaps:
    """The attention, the outputs and the predictions of one model over one text.

    queries, keys: its tokens on the two axes. kept: (row,) the positions of the recorded queries.
        sink: (key,) whether a key is part of the attention sink.
    rows: by layer, the attention weights (head, row, key). outputs: by layer, (head, row, dim)
        before the output projection; empty if they cannot be observed.
    predictions: (row, vocab) log-probabilities of the next token; None if there are none.
    """

    queries: Tokens
    keys: Tokens
    kept: NDArray[np.int64]
    sink: NDArray[np.bool_]
    rows: Mapping[int, Floats]
    outputs: Mapping[int, Floats]
    predictions: Floats | None

    @property
    def whole(self) -> bool:
        """Return whether every query of the text was recorded."""
        return len(self.kept) == len(self.queries)


@dataclass(frozen=True, eq=False)
class ModelMaps:
    """The attention maps of a model over all texts, stored for comparison with another model.

    stride: every ``stride``-th query was recorded. notes: sentences on what is not available.
    """

    info: ModelInfo
    kind: Kind
    causal: bool
    texts: tuple[TextMaps, ...]
    stride: int = 1
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> dict[int, int]:
        """Return for each layer how many heads it has."""
        return {layer: len(rows) for layer, rows in self.texts[0].rows.items()}


def model_maps(
    probing: Probing,
    inputs: Sequence[Input],
    stride: int | None = None,
    progress: Callable[[float], None] = lambda share: None,
    reduce: Reduce = "auto",
) -> ModelMaps:
    """Run a model over every input; return its attention maps.

    stride: record every ``stride``-th query, as for the other model; None decides by memory.
    reduce: whether a text is read whole, or only the rows that are recorded.
    Raises UnsupportedError if its attention cannot be observed, and as ``require_number`` if an
    attention weight or an output is not finite.
    """
    model, kind, causal = probing.model, probing.kind, probing.causal
    run, notes = probing.open_heads(inputs[0])

    def by_rows(number: int, given: Input, queries: int, stride: int | None) -> HeadRun:
        if stride is None:
            target = None if given.target is None else given.target.cut(2)
            stride = _stride(inputs, kind, run(Input(given.text.cut(2), target), rows=(0,)))
        if stride > 1 and queries // stride < _LEAST_ROWS:
            raise UsageError(
                f"text {number + 1} has {len(given.keys(kind)):,} tokens, of which {_LEAST_ROWS} "
                f"rows of attention take more than {MOST_BYTES:,} bytes: shorten it"
            )
        return run(given, rows=range(0, queries, stride))

    texts = []
    for number, given in enumerate(inputs):
        queries, keys = given.queries(kind), given.keys(kind)
        few = partial(by_rows, number, given, len(queries), stride)
        tokens = max(len(queries), len(keys))
        seen = sums_or_maps(model.info, tokens, reduce, few, partial(run, given))
        for layer, rows in seen.weights.items():
            numbers = np.isfinite(rows).all((1, 2))
            if layer in seen.outputs:
                numbers &= np.isfinite(seen.outputs[layer]).all((1, 2))
            if not numbers.all():
                name = f"attention of L{layer}H{numbers.argmin()} over text {number + 1}"
                require_number(name, math.nan, model.info)
        stride = stride or _stride(inputs, kind, seen)
        kept = np.arange(0, len(queries), stride)
        texts.append(
            TextMaps(
                queries=queries,
                keys=keys,
                kept=kept,
                sink=sink_keys(keys, causal),
                rows={layer: _some(rows, kept) for layer, rows in seen.weights.items()},
                outputs={layer: _some(rows, kept) for layer, rows in seen.outputs.items()},
                predictions=None
                if seen.logits is None
                else log_softmax(to_numpy(_some(seen.logits, kept))),
            )
        )
        progress((number + 1) / len(inputs))
    return ModelMaps(model.info, kind, causal, tuple(texts), stride or 1, notes)


def _some(rows: Array, kept: NDArray[np.int64]) -> Array:
    """Return the kept ones of rows (…, row, number), which may be all that were read."""
    return rows if len(kept) == rows.shape[-2] else rows[..., kept, :]


def _stride(inputs: Sequence[Input], kind: Kind, seen: HeadRun) -> int:
    """Return the stride between recorded queries with which all texts fit ``MOST_BYTES``."""
    heads = sum(map(len, seen.weights.values()))
    always = sum(4 * len(rows) * rows.shape[-1] for rows in seen.outputs.values())
    always += 0 if seen.logits is None else 4 * seen.logits.shape[-1]
    total = sum(
        len(given.queries(kind)) * (4 * heads * len(given.keys(kind)) + always) for given in inputs
    )
    return max(math.ceil(int(total) / MOST_BYTES), 1)


# Two models beside each other ------------------------------------------------------------------


Values = NDArray[np.floating]

Pair = tuple[Head, Head]
"""A head of the first model, and the head of the second that it is compared with."""

_ROUNDED = 2.0
"""The ratio of the floor to the divergence between a rounded and an exact side. If both sides are
rounded, squared errors add up, and a divergence is a squared error to first order."""

_MOST_PAIRS = 2**18  # the most pairs of heads that are compared to find a match


class Divergences(NamedTuple):
    """The divergences of two models' heads over each text: (text, head pair); NaN if unknown.

    js: Jensen–Shannon divergence of the attention rows in bits, mean over queries. no_sink: the
    same without the attention sink's keys, rows rescaled. output: 1 − cosine of the heads' outputs,
    mean over queries.
    """

    js: Values
    no_sink: Values
    output: Values


def divergences(
    first: ModelMaps, second: ModelMaps, pairs: Sequence[Pair], *, bare: bool = True
) -> Divergences:
    """Return the divergences of each pair of heads (one of each model) over each text.

    bare: False leaves out ``no_sink``, which a noise floor does not need.

    The first query of a causal text, which sees only itself, does not count.
    """
    apart = np.full((3, len(first.texts), len(pairs)), np.nan)
    by_layers: dict[tuple[int, int], list[int]] = {}
    for pair, ((a, _), (b, _)) in enumerate(pairs):
        by_layers.setdefault((a, b), []).append(pair)
    for number, (here, there) in enumerate(zip(first.texts, second.texts, strict=True)):
        rows = here.kept >= 1 if first.causal else np.ones(len(here.kept), bool)
        if not rows.any():
            rows[:] = True
        for (a, b), at in by_layers.items():
            left, right = ([pairs[pair][side][1] for pair in at] for side in (0, 1))
            weights = here.rows[a][left][:, rows], there.rows[b][right][:, rows]
            apart[0, number, at] = js_divergence(*weights).mean(-1)
            if bare:
                bared = map(without_sink, weights, (here.sink, there.sink))
                apart[1, number, at] = known_mean(js_divergence(*bared))
            if a in here.outputs and b in there.outputs:
                outputs = here.outputs[a][left][:, rows], there.outputs[b][right][:, rows]
                if outputs[0].shape == outputs[1].shape:
                    apart[2, number, at] = 1 - cosine(*outputs).mean(-1)
    return Divergences(*apart)


def known_mean(values: Values) -> Values:
    """Return the mean of the finite values over the last axis; NaN if there are none."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(-1)
    means = np.full(total.shape, np.nan)
    np.divide(total, known.sum(-1), out=means, where=known.any(-1))
    return means


def noise_floor(noise: Divergences) -> Floor:
    """Return the noise floor. noise: a model's divergences from itself in another number format."""
    means = (known_mean(values.T) for values in (noise.js, noise.output))
    return Floor(*(_ROUNDED * float(np.fmax.reduce(mean)) for mean in means))


class MeanOverTexts(NamedTuple):
    """A mean over texts; ends: of its 95% confidence interval, None for fewer than five texts."""

    mean: float
    ends: tuple[float, float] | None

    def above(self, floor: float) -> bool:
        """Return whether the interval lies above ``floor``; False if either is unknown."""
        return self.ends is not None and self.ends[0] > floor


def over_texts(values: Values, seed: int) -> list[MeanOverTexts]:
    """Return the mean over texts of each column, with its interval. values: (text, column), ≥ 0."""
    means = []
    for mean, ends in zip(values.mean(axis=0).tolist(), intervals(values, seed), strict=True):
        known = ends is not None and math.isfinite(ends[0])
        means.append(MeanOverTexts(mean, (max(ends[0], 0.0), ends[1]) if ends and known else None))
    return means


def predictions(first: ModelMaps, second: ModelMaps) -> Predictions | None:
    """Return how far two models' predictions differ over shared ids; None without any, or NaN."""
    apart, same, outside = [], [], None
    for both in zip(first.texts, second.texts, strict=True):
        p, q = (text.predictions for text in both)
        if p is None or q is None or np.isnan([p.max(), q.max()]).any():
            return None
        if (shared := min(p.shape[-1], q.shape[-1])) < max(p.shape[-1], q.shape[-1]):
            kept = [np.logaddexp.reduce(logs[:, :shared], -1, keepdims=True) for logs in (p, q)]
            p, q = p[:, :shared] - kept[0], q[:, :shared] - kept[1]
            outside = max(outside or 0.0, *(float(-np.expm1(logs.min())) for logs in kept))
        apart.append(kl_divergence(p, q))
        same.append(p.argmax(-1) == q.argmax(-1))
    kl, share = np.concatenate(apart), float(np.concatenate(same).mean())
    spare = max(len(kl) - 1, 1)
    return Predictions(
        kl=float(kl.mean()),
        kl_error=float(kl.std(ddof=min(1, len(kl) - 1)) / math.sqrt(len(kl))),
        same_top=share,
        same_top_error=math.sqrt(share * (1 - share) / spare),
        positions=len(kl),
        outside=outside,
    )


def heads_of(counts: Mapping[int, int]) -> list[Head]:
    """Return every (layer, head). counts: how many heads each layer has."""
    return [(layer, head) for layer, count in counts.items() for head in range(count)]


def pairs_by_index(first: Mapping[int, int], second: Mapping[int, int]) -> list[Pair]:
    """Return the heads that both models have, each as a pair of the same (layer, head) twice."""
    return [(head, head) for head in heads_of(first) if head[1] < second.get(head[0], 0)]


def matched_pairs(first: ModelMaps, second: ModelMaps) -> list[Pair]:
    """Return pairs (of A, of B) of least divergence, by layer if possible; UsageError for many."""
    heads, others = first.heads, second.heads
    groups = [(heads_of(heads), heads_of(others))]
    if len(heads) == len(others):
        layers = zip(heads.items(), others.items(), strict=True)
        groups = [(heads_of(dict([a])), heads_of(dict([b]))) for a, b in layers]
    tried = sum(len(lefts) * len(rights) for lefts, rights in groups)
    if tried > _MOST_PAIRS:
        raise UsageError(
            f"--match would hold {tried:,} pairs of heads against each other, at most "
            f"{_MOST_PAIRS:,} are: leave it out"
        )
    pairs: list[Pair] = []
    for lefts, rights in groups:
        texts = zip(first.texts, second.texts, strict=True)
        table = sum(_table(a, b, lefts, rights) for a, b in texts)
        pairs += [(lefts[left], rights[right]) for left, right in cheapest_pairs(np.asarray(table))]
    return sorted(pairs)


def _table(a: TextMaps, b: TextMaps, lefts: Sequence[Head], rights: Sequence[Head]) -> Values:
    chosen = np.stack([b.rows[layer][head] for layer, head in rights])
    return np.stack([js_divergence(a.rows[layer][head], chosen).mean(-1) for layer, head in lefts])
