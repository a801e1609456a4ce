"""Makes the reports of ``heads``: reads one or several texts, and keeps the weights of every head.

This is the one place that decides whether a text is read as whole maps or, because it is long or
pooled maps were asked for, as sums over rows. The sums give exact pooled maps, scores, the
strongest pairs, and parts in full resolution, see ``measures.reduced``; no whole map exists then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.backend import backend_of
from attnviz.engine.capture import (
    Choice,
    asked,
    attention_kind,
    capture_text,
    encoded,
    reading_segments,
)
from attnviz.engine.device_sizes import sizes
from attnviz.engine.known_labels import known_labels
from attnviz.engine.observer import notes_of_runs, sums_or_maps
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import TextReader, vectors_of
from attnviz.errors import UsageError
from attnviz.inspect.heads.links import DRAWS, pair_links
from attnviz.inspect.heads.report import (
    NOTABLE,
    HeadsReport,
    HeadsView,
    LongHead,
    LongHeads,
    compare_heads,
)
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.measures.labels import KnownLabels
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.reduced import EvenRows, ReducedLayer, summed_parts
from attnviz.measures.regions import RegionSums, region_shares, shares
from attnviz.measures.registry import OF_ONE_TEXT, said_name
from attnviz.measures.rows import Conditions, TextFacts, scores_of
from attnviz.measures.sinks import (
    norm_weighted,
    resting_weight,
    sink_keys,
    sink_of,
    sink_weights,
    without_sink,
)
from attnviz.measures.words import Word, find_in, find_word, joined
from attnviz.models.memory import require_room
from attnviz.models.model import Model
from attnviz.models.own import PADDING, OwnAttention
from attnviz.models.work import ON_TORCH, Work, about_tokens
from attnviz.progress import UNWATCHED, Advance, between_steps, share_read
from attnviz.records import (
    AttentionRecord,
    Floats,
    HeadsRecord,
    HeadVectors,
    Input,
    Kind,
    ModelInfo,
    Score,
    Tokens,
)
from attnviz.regions import region_reader
from attnviz.texts import Texts

Opening = Callable[[dict[str, Any]], Model]
"""Opens the model, with changes to the library's own attention: its mask, its score."""

RequestedRun = tuple[dict[str, Any], Choice]
"""One run: the changes to the library's own attention, and which attention is kept."""

_Name = TypeVar("_Name", bound=str)


def work(text: str | Texts, request: HeadsRequest) -> Work:
    """Return the planned work over a text, from which the loader chooses NumPy or torch."""
    if request.asks_sums:
        return ON_TORCH
    tokens = about_tokens(*([text] if isinstance(text, str) else text.texts))
    return Work(tokens * (1 if request.pair is None else 1 + DRAWS))


def heads(
    model: Model,
    given: str | Texts,
    request: HeadsRequest,
    opening: Opening,
    *,
    vectors: bool = False,
    advance: Advance = UNWATCHED,
) -> HeadsReport | LongHeads:
    """Measure where each head attends: in whole maps, or over a long text in pooled ones.

    model: of the first run. given: a text, or several, which stand side by side. opening: opens the
    model of a further run. vectors: also keep queries, keys and the norms of values, which an
    interactive page shows.

    Raises UsageError if a choice, a word or the text does not fit the model, if two runs are the
    same, or if an option needs maps of another size; UnsupportedError if the attention cannot be
    observed.
    """
    ((changes, choice), *_) = requested_runs(request, of_texts=isinstance(given, Texts))
    if request.compare_mask and request.second is not None:
        return _padded(model, str(given), request, vectors=vectors)

    def in_whole_maps() -> HeadsReport | LongHeads:
        def opened(changed: dict[str, Any]) -> Model:
            return model if changed == changes else opening(changed)

        return whole_maps(opened, given, request, vectors=vectors, advance=advance)

    needs_whole, asked_for = request.needs_whole, request.asks_sums
    if isinstance(given, Texts):
        return in_whole_maps()
    if asked_for and needs_whole:
        raise UsageError(f"{needs_whole} needs whole maps of a short text: leave it out")
    if request.reduce == "full" or needs_whole or not (asked_for or model.info.backend == "torch"):
        return in_whole_maps()
    kind, reader = attention_kind(model, choice), region_reader(model, given, request)
    if not asked_for and kind not in ("self", "encoder"):
        return in_whole_maps()
    text, encode = (given, None) if reader is None else (reader.text, reader.encode)
    tokens = encoded(model, text, request.truncate, encode)
    shown, notes = (given, ()) if reader is None else (reader.shown, reader.notes(tokens))
    return sums_or_maps(
        model.info,
        len(tokens),
        "fused" if asked_for else request.reduce,
        lambda: long_heads(model, tokens, kind, request, advance, text=shown, notes=notes),
        in_whole_maps,
    )


def whole_maps(
    opening: Opening,
    given: str | Texts,
    request: HeadsRequest,
    *,
    vectors: bool = False,
    advance: Advance = UNWATCHED,
) -> HeadsReport:
    """Measure where each head attends, in whole maps, in one run or several; see ``heads``."""
    runs, model, opened = list[HeadsReport](), None, None
    texts, watch = ([given], advance) if isinstance(given, str) else (given.texts, UNWATCHED)
    for changes, choice in requested_runs(request, of_texts=isinstance(given, Texts)):
        if model is None or opened != changes:
            model, opened = opening(changes), changes
        for index, text in enumerate(texts):
            try:
                runs.append(_read(model, text, choice, request, vectors, watch))
            except UsageError as error:
                if isinstance(given, str):
                    raise
                raise UsageError(f"{given.name(index)}: {error}") from error
    if isinstance(given, Texts):
        runs[0] = replace(runs[0], reports=(_noted(runs[0].first, given.notes),))
    records = [run.first.record for run in runs]
    ways = {(record.kind, record.causal, record.model.score) for record in records}
    if isinstance(given, str) and len(ways) < len(runs):
        raise UsageError("a single word has no later one to hide: give a text of at least two")
    return _side_by_side(runs)


def _noted(run: HeadsRecord, notes: tuple[str, ...]) -> HeadsRecord:
    info = replace(run.record.model, notes=run.record.model.notes + notes)
    return replace(run, record=replace(run.record, model=info))


def _side_by_side(runs: Sequence[HeadsReport]) -> HeadsReport:
    """Return the report of several runs, given a report of each."""
    views = [run.view for run in runs]
    words, pairs = [*chain(*(own.words for own in views))], [*chain(*(own.pairs for own in views))]
    view = views[0]._replace(words=words, pairs=pairs)
    before = tuple(chain(*(run.before for run in runs)))
    return replace(compare_heads([run.first for run in runs]), view=view, before=before)


def _padded(model: Model, given: str, request: HeadsRequest, *, vectors: bool) -> HeadsReport:
    """Return the maps of the shorter of two texts of a batch, without and with its padding mask.

    Raises UsageError for two texts of one length, and for an option that asks for further runs.
    """
    assert isinstance(model, OwnAttention)
    asked = replace(request, second=None, compare_mask=False)
    (_, choice), *more = requested_runs(asked)
    if more:
        raise UsageError("--compare-mask with --and shows two masks: give one --kind and --score")
    by_length = {len(model.encode(text)): text for text in (given, request.second or "")}
    if len(by_length) == 1:
        raise UsageError("--and: both texts have as many words, so that none is padded")
    short, missing = min(by_length), max(by_length) - min(by_length)
    text = " ".join([by_length[short], *[PADDING] * missing])
    masks = model, model.hiding(missing)
    return _side_by_side([_read(own, text, choice, asked, vectors, UNWATCHED) for own in masks])


def _read(
    model: Model,
    given: str,
    choice: Choice,
    request: HeadsRequest,
    vectors: bool,
    advance: Advance,
) -> HeadsReport:
    """Return the maps of one run over one text, and what is asked of a word or a pair in it."""
    reader, text = region_reader(model, given, request), given
    if reader is not None:
        text, choice = reader.text, replace(choice, encode=reader.encode)
    info, removed, norms = model.info, set[tuple[int, int]](), None
    if request.ablate or request.norm_weighted:
        chosen = choose_heads(None, request.ablate, info.layers, info.heads, choice.index_base)
        removed = {(layer, head) for layer, some in (chosen or {}).items() for head in some}
        wanted, text_reader = asked(model, text, choice), TextReader(model)
        record, selected = text_reader.read(wanted, removed).record, wanted.heads is not None
        norms = text_reader.norms(wanted, removed) if request.norm_weighted else None
    else:
        record, selected = capture_text(model, text, choice, advance)
    kept = vectors_of(model, asked(model, text, choice), removed) if vectors else None

    def scored(record: AttentionRecord, **changed: Any) -> HeadsRecord:
        return heads_report(
            record,
            selected,
            index_base=choice.index_base,
            sort=request.sort,
            smallest_first=request.reverse,
            text=given if reader is None else reader.shown,
            target=choice.target,
            sink=request.sink is not False,
            known=known_labels(model, record.kind, ignored=choice.no_known_labels),
            **changed,
        )

    before: tuple[HeadsRecord, ...] = ()
    maps = scored(record, ablated=removed, norms=norms, vectors=kept)
    if reader is not None:
        maps = _noted(maps, reader.notes(record.keys))
    if vectors and request.ablate and not request.norm_weighted:
        whole = TextReader(model).read(wanted).record
        before = (scored(whole, vectors=vectors_of(model, wanted)),)
    pairs, words = [], [] if request.token is None else [find_word(maps.record, request.token)]
    if request.pair is not None:
        first, second = (find_word(record, word) for word in request.pair)
        tokens = encoded(model, text, choice.truncate, choice.encode)
        pairs.append(pair_links(model, record, (first, second), tokens))
    view = HeadsView(request.values, request.top, words, pairs, bool(request.sink))
    return HeadsReport((maps,), (None,), view, before)


# The runs of a request -----------------------------------------------------------------------


def requested_runs(request: HeadsRequest, of_texts: bool = False) -> tuple[RequestedRun, ...]:
    """Return the requested runs: one for each kind and score, and for each mask if compared.

    A causal mask is for self-attention: cross attention next to it has none. The target is only
    for the kinds that have one.

    Raises UsageError if a name is unknown or given twice, if masks of cross attention are compared,
    or if an option does not go with several texts.
    """
    if of_texts and (named := request.regions_given):
        raise UsageError(f"{named[0]} names regions of one text: leave out --texts")
    kinds: tuple[Kind, ...] = _chosen("--kind", request.kind, get_args(Kind))
    scores: tuple[Score, ...] = _chosen("--score", request.score, get_args(Score))
    if request.compare_mask and "cross" in kinds:
        raise UsageError(
            "--compare-mask hides the later words of one text, cross attention has two: leave "
            "out --kind cross"
        )
    choice = Choice(
        request.layer,
        request.head,
        request.index_base,
        truncate=request.truncate,
        no_known_labels=request.no_known_labels,
    )
    runs, several = list[RequestedRun](), len(kinds) > 1
    masks = (False, True) if request.compare_mask else (None,)
    for kind, score, causal in product(kinds or (None,), scores or (None,), masks):
        changes = {"score": score, "causal": False if several and kind == "cross" else causal}
        target = None if several and kind not in ("decoder", "cross") else request.target
        given = {name: value for name, value in changes.items() if value is not None}
        runs.append((given, replace(choice, kind=kind, target=target)))
    if of_texts and len(runs) > 1:
        raise UsageError("--texts takes one run of each text: give one --kind and one --score")
    return tuple(runs)


def _chosen(option: str, typed: str | None, known: tuple[_Name, ...]) -> tuple[_Name, ...]:
    """Return the names between the commas of an option's value."""
    names = [] if typed is None else [name.strip() for name in typed.split(",")]
    for at, name in enumerate(names):
        if name not in known:
            expected = ", ".join(map(repr, known))
            raise UsageError(f"{option}: {name!r} is not one of {expected}")
        if name in names[:at]:
            raise UsageError(f"{option} {name} is given twice: there is one run of each")
    return tuple(known[known.index(name)] for name in names)


# Scores --------------------------------------------------------------------------------------


def heads_report(
    record: AttentionRecord,
    selected: bool,
    index_base: int = 0,
    sort: str | None = None,
    smallest_first: bool = False,
    *,
    text: str = "",
    target: str | None = None,
    sink: bool = True,
    known: KnownLabels | None = None,
    ablated: Collection[tuple[int, int]] = (),
    norms: Mapping[int, NDArray[np.floating]] | None = None,
    vectors: HeadVectors | None = None,
) -> HeadsRecord:
    """Return the report of the record's heads, sorted by the measure ``sort`` if it is given.

    selected: whether the heads were chosen. index_base: 0 or 1, of their names.
    text, target: the texts as given; a target that the model generated is taken from the record.
    sink: False leaves the attention sink out of the reported weights; scores are always computed on
        the model's own attention weights.
    ablated: (layer, head) whose outputs were set to zero. norms: by layer, (head, key): the norms
        of the moved values, by which the kept weights are multiplied.

    Raises UsageError if this text or model has no such measure, or no sink to leave out.
    """
    scores, regions = head_scores(record, known), region_shares(record)
    queries, keys = sink_of(record)
    sinks = dict[tuple[int, int], float]()
    for layer in record.layers if keys.any() and not queries.all() else ():
        weights = sink_weights(layer.weights, queries, keys).tolist()
        sinks |= {(layer.layer, head): own for head, own in zip(layer.heads, weights, strict=True)}
    if sort is not None:
        measured = [entry for entry in scores if entry.scores[sort] is not None]
        if not measured:
            raise UsageError(
                f"{said_name(sort)} cannot be measured here: the text repeats no token, or this "
                "kind of attention has none; choose another --sort"
            )
        measured.sort(key=lambda entry: entry.scores[sort] or 0.0, reverse=not smallest_first)
        scores = (*measured, *(entry for entry in scores if entry.scores[sort] is None))
    leading = tuple(entry.place for entry in scores[:NOTABLE])
    if target is None and text and record.kind in ("decoder", "cross"):
        target = joined(record.queries)
    if not sink and not keys.any():
        raise UsageError(
            "--no-sink: there is no attention sink here, neither a special token nor a first "
            "one of causal attention"
        )
    layers = []
    for layer in record.layers:
        kept = layer.weights
        if norms is not None:
            kept = norm_weighted(kept, norms[layer.layer][list(layer.heads)])
        kept = kept if sink else without_sink(kept, keys)
        layers.append(replace(layer, weights=kept))
    record = replace(record, layers=tuple(layers))
    return HeadsRecord(
        record=record,
        heads=scores,
        notable=leading if sort is not None else notable_heads(scores, NOTABLE),
        selected=selected,
        index_base=index_base,
        sorted_by=sort,
        text=text,
        target=target,
        sinks=sinks,
        resting=resting_weight(record),
        sink=sink,
        ablated=tuple(sorted(ablated)),
        norm_weighted=norms is not None,
        vectors=vectors,
        regions=regions,
    )


# A long text, from sums over attention rows ----------------------------------------------------


_BUCKETS = 64
_CELLS = 2**24  # the most weights that are in memory at once while a part is read
_SHOWN = 3  # the most heads of which rows and parts are kept if nobody chose heads
Chosen = Mapping[int, Any]
"""The heads that are read, by layer."""


def long_heads(
    model: Model,
    tokens: Tokens,
    kind: Kind,
    request: HeadsRequest,
    advance: Advance,
    *,
    text: str,
    notes: tuple[str, ...] = (),
) -> LongHeads:
    """Return where heads attend over a text, in pooled maps.

    Ctrl-C ends the run after a layer, and what was read is returned.
    Raises UsageError for a choice that does not fit the text, UnsupportedError if the sums cannot
    be read or the memory is too small.
    """
    if kind not in ("self", "encoder"):
        raise UsageError(f"pooled maps are of one text: leave out --kind {kind}")
    info, began = model.info, time.monotonic()
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, request.index_base)
    word = None if request.token is None else find_in(tokens, request.token)
    if request.token is not None and word is None:
        raise UsageError(f"no token {request.token!r} in the text: give a word in it, or an index")
    queries, keys = request.queries or request.keys, request.keys or request.queries
    part = None  # if only one is given, it serves as both
    if queries is not None and keys is not None:
        part = _range(queries, len(tokens)), _range(keys, len(tokens))
    _require_room(info, len(tokens), chosen, word, part)
    wanted = range(info.layers) if chosen is None else sorted(chosen)
    with between_steps() as stopped:

        def after(layer: int) -> None:
            advance(share_read(layer, wanted))
            if stopped():
                raise KeyboardInterrupt

        reading = _Reading(tokens, kind, request, after, chosen=chosen, word=word, part=part)
        early: tuple[str, ...] = ()
        try:
            with reading_segments(model, tokens):
                backend_of(model).read_sums(reading, [Input(tokens)])
        except KeyboardInterrupt:
            if not reading.heads:
                raise
            layers = len({head.layer for head in reading.heads})
            early = (f"interrupted after {layers} of {len(wanted)} layers",)
    order = sorted(reading.heads, key=lambda head: head[:2])
    if (sort := request.sort) is not None:
        order.sort(key=lambda head: head.scores[sort] or 0.0, reverse=not request.reverse)
    return LongHeads(
        model=replace(info, notes=info.notes + model.notes_for(tokens) + notes_of_runs()),
        kind=kind,
        causal=reading.causal,
        tokens=tokens,
        heads=tuple(order),
        bucket=reading.bucket,
        regions=shares(tokens, tokens, reading.regions) if reading.regions else None,
        part=part,
        word=word,
        sorted_by=request.sort,
        text=text,
        notes=notes + early,
        complete=not early,
        index_base=request.index_base,
        seconds=time.monotonic() - began,
    )


def _part_of(sums: ReducedLayer, queries: range, keys: range) -> Floats:
    """Return the weights (head, query, key) of some queries and keys; NaN for a hidden key."""
    rows = max(1, _CELLS // (sums.heads * len(sums.first)))
    starts = range(queries.start, queries.stop, rows)
    blocks = (sums.rows(start, min(start + rows, queries.stop)) for start in starts)
    weights = np.concatenate([block[..., keys.start : keys.stop] for block in blocks], axis=1)
    columns, of_rows = np.asarray(keys), (slice(queries.start, queries.stop), None)
    seen = (columns >= sums.first[of_rows]) & (columns < sums.past[of_rows])
    return np.where(seen, weights, np.float32(np.nan))


def _require_room(
    info: ModelInfo,
    size: int,
    chosen: Chosen | None,
    word: Word | None,
    part: tuple[range, range] | None,
) -> None:
    """Raise UnsupportedError if the sums of a text of ``size`` tokens do not fit the memory."""
    count = info.layers * info.heads if chosen is None else sum(map(len, chosen.values()))
    kept = count if chosen is not None else _SHOWN + info.heads
    rows = max(len(part[0]) if part else 0, len(word.span) if word else 0)
    numbers = info.heads * rows * size + count * _BUCKETS**2
    if info.device == "cpu":  # otherwise the pass asks for the memory of its device
        numbers += info.heads * size * 2 * info.head_dim
        numbers += min(info.heads * size * 48, sizes("cpu").sum_bytes)
    numbers += kept * ((len(part[0]) * len(part[1]) if part else 0) + size)
    require_room(
        f"the sums of {count:,} heads over {size:,} tokens take beside the model",
        4 * numbers,
        "shorten the text or the parts of it, or choose fewer heads",
    )


def _range(typed: str, size: int) -> range:
    """Return the tokens from the first to the last of ``A-B``, or one token ``A``."""
    ends = typed.split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() and len(end) < 12 for end in ends):
        raise UsageError(f"expected tokens such as 8000-8050, got {typed!r}")
    first, last = int(ends[0]), int(ends[-1])
    if not first <= last < size:
        raise UsageError(f"expected tokens from 0 to {size - 1}, first to last, got {typed!r}")
    return range(first, last + 1)


@dataclass
class _Reading:
    """Reads the heads of each layer from its sums."""

    tokens: Tokens
    kind: Kind
    request: HeadsRequest
    after: Callable[[int], None]
    chosen: Chosen | None
    word: Word | None
    part: tuple[range, range] | None
    heads: list[LongHead] = field(default_factory=list)
    causal: bool = True
    regions: dict[tuple[int, tuple[int, ...]], NDArray[np.float64]] = field(default_factory=dict)
    _evens: dict[bytes, EvenRows] = field(default_factory=dict)

    @property
    def bucket(self) -> int:
        return -(-len(self.tokens) // _BUCKETS)

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self.kind and (self.chosen is None or layer in self.chosen)

    def sums(self, text: int, kind: Kind, layer: int, sums: ReducedLayer) -> None:
        chosen = range(sums.heads) if self.chosen is None else self.chosen[layer]
        kept = [head for head in range(sums.heads) if head in chosen]
        self.causal &= bool((sums.past <= np.arange(len(sums.past)) + 1).all())
        facts = TextFacts(self.tokens, self.tokens, Conditions(self.kind, self.causal))
        sink, even = sink_keys(self.tokens, self.causal), self._even(facts, sums)
        queries = np.bincount(np.arange(len(self.tokens)) // self.bucket)
        hidden, top = sink & (self.request.sink is not True), self.request.top
        for heads, some, rows in summed_parts(facts, sums, even, kept, self.bucket):
            scores, pooled = scores_of(rows, OF_ONE_TEXT), rows.sums.pooled
            assert pooled is not None
            if self.tokens.regions:
                between = RegionSums(self.tokens, self.tokens, sink)
                between.add_sums(rows, even)
                self.regions[layer, tuple(heads.values())] = between.sums()
            pairs = None if top is None else some.strongest(top, hidden)
            part = None if self.part is None else _part_of(some, *self.part)
            row = None
            if self.word is not None:
                row = np.asarray(some.rows(self.word.span.start, self.word.span.stop).mean(1))
            for number, (at, head) in enumerate(heads.items()):
                values = {name: float(by_head[number]) for name, by_head in scores.items()}
                kept_head = LongHead(
                    layer,
                    head,
                    {name: None if np.isnan(value) else value for name, value in values.items()},
                    pooled[number] / queries[:, None],
                    float(even.far().mean()),
                    pairs=() if pairs is None else pairs[at],
                    part=None if part is None else part[at],
                    row=None if row is None else row[at],
                )
                self.heads.append(kept_head)
            if self.chosen is None:
                self._keep_few(sink)
        self.after(layer)

    def _even(self, facts: TextFacts, sums: ReducedLayer) -> EvenRows:
        """Return uniform attention over the same keys, which knows all columns that are needed."""
        key = sums.first.tobytes() + sums.past.tobytes()
        if key not in self._evens:
            even = self._evens[key] = EvenRows(facts, sums.first, sums.past)
            if self.tokens.regions:
                sink = sink_keys(self.tokens, self.causal)
                RegionSums(self.tokens, self.tokens, sink).add_sums(None, even)
            for formula in facts.attention.even_formulas(OF_ONE_TEXT).values():
                formula(even)
        return self._evens[key]

    def _keep_few(self, sink: NDArray[np.bool_]) -> None:
        """Keep parts and rows only of the heads with the most weight in them, the sink aside."""
        for name, keys in (("part", self.part[1] if self.part else ()), ("row", None)):
            outside = ~(sink if keys is None else sink[list(keys)])
            weights = {
                at: float(np.nansum(values[..., outside]))
                for at, head in enumerate(self.heads)
                if (values := getattr(head, name)) is not None
            }
            for at in sorted(weights, key=lambda head: -weights[head])[_SHOWN:]:
                dropped: dict[str, Any] = {name: None}
                self.heads[at] = self.heads[at]._replace(**dropped)
