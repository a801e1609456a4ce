"""Heads over a long text: exact pooled maps, scores, strongest pairs, and parts in full resolution.

Everything is read from sums over attention rows, see ``measures.reduced``; no whole map exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.regions import region_facts, share_facts
from attnviz.draw.report import Report
from attnviz.draw.values import json_number, model_facts, table_of, token_facts
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import attention_kind, encoded
from attnviz.engine.observer import reads_sums
from attnviz.engine.segments import reading_segments
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.heads.heads import Opening, heads
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.heads.runs import requested_runs
from attnviz.interrupts import between_steps
from attnviz.measures.reduced import EvenRows, ReducedLayer, SummedRows
from attnviz.measures.regions import RegionSums, shares
from attnviz.measures.registry import OF_ONE_TEXT
from attnviz.measures.rows import Conditions, TextFacts, scores_of
from attnviz.measures.sinks import sink_keys
from attnviz.measures.words import Word, find_in
from attnviz.models.memory import require_room
from attnviz.models.model import Model
from attnviz.progress import Advance, share_read
from attnviz.records import Floats, Input, Kind, ModelInfo, Provenance, RegionShares, Tokens
from attnviz.regions import region_reader

if TYPE_CHECKING:
    from attnviz.draw.document import Document


Keep = Callable[[int, ReducedLayer], None]

_BUCKETS = 64
_CELLS = 2**24
"""The most weights that are in memory at once while a part is read."""

_SHOWN = 3
"""The most heads of which rows and parts are kept if nobody chose heads."""


class LongHead(NamedTuple):
    """The scores and the pooled weights of one head over a long text.

    scores: by measure; None if the text has no case of it. pooled: (query bucket, key bucket), the
    mean over the queries of the sum of the weights. even: the mean distance of uniform attention
    over the keys that its layer lets a query see. pairs: (weight, query, key), strongest first.
    part: weights of the requested queries and keys. row: mean weights of the requested word's rows.
    """

    layer: int
    head: int
    scores: Mapping[str, float | None]
    pooled: Floats
    even: float
    pairs: Sequence[tuple[float, int, int]] = ()
    part: Floats | None = None
    row: Floats | None = None


@dataclass(frozen=True, repr=False, kw_only=True)
class LongHeads(Provenance, Report):
    """The attention of heads over a long text, pooled.

    model, kind, causal, tokens: what was read. heads: those that were read, in order. bucket: the
        tokens that a cell of ``pooled`` stands for, on both axes.
    regions: the attention between the regions of the text; None without regions.
    part: the queries and keys that are shown in full; None without. word: the one whose rows are
        shown; None without. sorted_by: the measure by which heads are ordered, largest first.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    tokens: Tokens
    heads: tuple[LongHead, ...]
    bucket: int
    regions: RegionShares | None = None
    part: tuple[range, range] | None = None
    word: Word | None = None
    sorted_by: str | None = None

    command = "heads"
    lists = ("heads",)

    def data(self) -> dict[str, Any]:
        return {
            "schema": "attnviz.heads-long/1",
            "model": model_facts(self.model),
            "kind": self.kind,
            "causal": self.causal,
            "complete": self.complete,
            "notes": list(self.notes),
            "seconds": self.seconds,
            **token_facts(self.tokens),
            **({"regions": region_facts(self.tokens)} if self.regions is not None else {}),
            "bucket": self.bucket,
            "heads": [self._entry(head) for head in self.heads],
        }

    def _entry(self, head: LongHead) -> dict[str, Any]:
        scores = {name: json_number(value) for name, value in head.scores.items()}
        found = {"layer": head.layer, "head": head.head, **scores, "pooled": _listed(head.pooled)}
        if head.pairs:
            found["pairs"] = [list(pair) for pair in head.pairs]
        if head.part is not None and self.part is not None:
            found["queries"], found["keys"] = ([one.start, one.stop] for one in self.part)
            found["weights"] = _listed(head.part)
        if self.regions is not None:
            found["regions"] = share_facts(self.regions, (head.layer, head.head))
        if head.row is not None:
            found["row"] = _listed(head.row)
        return found

    def rows(self) -> Iterator[tuple[object, ...]]:
        names = ("layer", "head", *(self.heads[0].scores if self.heads else ()))
        return table_of(names, map(self._entry, self.heads))

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.heads.long_document import long_document

        return long_document(self).shown(explain=explain, hints=hints)


def _listed(values: Floats) -> Any:
    return [_listed(row) for row in values] if values.ndim > 1 else list(map(json_number, values))


def heads_of_any_length(
    model: Model,
    opening: Opening,
    given: str,
    request: HeadsRequest,
    *,
    vectors: bool = False,
    advance: Advance = lambda done: None,
) -> HeadsReport | LongHeads:
    """Return where heads attend: in whole maps, or over a long text in pooled ones.

    model: of the first run. opening, given, vectors: see ``heads``. advance: called with the share
        of the layers that is read. Ctrl-C ends the run over a long text after a layer, and what was
        read is returned.
    Raises what ``heads`` raises, and UsageError if an option needs whole maps.
    """
    runs = requested_runs(request)
    asked, whole = request.asks_sums, request.needs_whole
    if asked and whole:
        raise UsageError(f"{whole} needs whole maps of a short text: leave it out")
    if request.reduce != "full" and not whole and (asked or model.info.backend == "torch"):
        kind = attention_kind(model, runs[0][1])
        tokens, text, notes = _read(model, given, request)
        long = reads_sums(model.info, len(tokens), request.reduce)
        if asked or (long and kind in ("self", "encoder")):
            try:
                return long_heads(model, tokens, kind, request, advance, text=text, notes=notes)
            except UnsupportedError:
                if asked:
                    raise
    first = runs[0][0]
    return heads(
        lambda changes: model if changes == first else opening(changes),
        given,
        request,
        vectors=vectors,
        advance=advance,
    )


def _read(model: Model, given: str, request: HeadsRequest) -> tuple[Tokens, str, tuple[str, ...]]:
    """Return the tokens of the text, the text as it is shown, and notes on its regions."""
    reader = region_reader(model, given, request)
    if reader is None:
        return encoded(model, given, request.truncate), given, ()
    tokens = encoded(model, reader.text, request.truncate, reader.encode)
    return tokens, reader.shown, tuple(reader.notes(tokens))


def long_heads(
    model: Model,
    tokens: Tokens,
    kind: Kind,
    request: HeadsRequest,
    advance: Advance,
    *,
    text: str,
    notes: tuple[str, ...] = (),
    keep: Keep | None = None,
) -> LongHeads:
    """Return where heads attend over a text, in pooled maps.

    text, notes: for the report. keep: is given each layer, and may keep it to read parts later.
    Raises what ``heads_of_any_length`` raises.
    """
    if kind not in ("self", "encoder"):
        raise UsageError(f"pooled maps are of one text: leave out --kind {kind}")
    info, began = model.info, time.monotonic()
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, request.index_base)
    word = None if request.token is None else find_in(tokens, request.token)
    if request.token is not None and word is None:
        raise UsageError(f"no token {request.token!r} in the text: give a word of it, or an index")
    part = _part(request, len(tokens))
    count = info.layers * info.heads if chosen is None else sum(map(len, chosen.values()))
    kept = count if chosen is not None else _SHOWN + info.heads
    needed = 4 * info.heads * len(tokens) * (2 * info.head_dim + 48) + 4 * count * _BUCKETS**2
    asked = max(len(part[0]) if part else 0, len(word.span) if word else 0)
    needed += 4 * info.heads * asked * len(tokens)
    needed += 4 * kept * ((len(part[0]) * len(part[1]) if part else 0) + len(tokens))
    require_room(
        f"the sums of {count:,} heads over {len(tokens):,} tokens take beside the model",
        needed,
        "shorten the text or the parts of it, or choose fewer heads",
    )
    wanted = range(info.layers) if chosen is None else sorted(chosen)
    with between_steps() as stopped:

        def after(layer: int) -> None:
            advance(share_read(layer, wanted))
            if stopped():
                raise KeyboardInterrupt

        reading = _Reading(tokens, kind, request, after, chosen=chosen, word=word, part=part)
        reading.keep = keep
        complete = True
        try:
            with reading_segments(model, tokens):
                backend_of(model).read_sums(reading, [Input(tokens)])
        except KeyboardInterrupt:
            if not reading.heads:
                raise
            complete = False
    layers = len({head.layer for head in reading.heads})
    early = () if complete else (f"interrupted after {layers} of {len(wanted)} layers",)
    order = reading.heads
    if request.sort is not None:
        sort, sign = request.sort, 1 if request.reverse else -1
        order = sorted(order, key=lambda head: sign * (head.scores[sort] or 0.0))
    return LongHeads(
        model=replace(info, notes=info.notes + model.notes_for(tokens)),
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
        complete=complete,
        index_base=request.index_base,
        seconds=time.monotonic() - began,
    )


def part_of(found: ReducedLayer, queries: range, keys: range) -> Floats:
    """Return the weights (head, query, key) of some queries and keys; NaN for a hidden key."""
    rows = max(1, _CELLS // (found.heads * len(found.first)))
    weights = np.concatenate(
        [
            found.rows(start, min(start + rows, queries.stop))[..., keys.start : keys.stop]
            for start in range(queries.start, queries.stop, rows)
        ],
        axis=1,
    )
    places, of_rows = np.asarray(keys), (slice(queries.start, queries.stop), None)
    first, past = found.first[of_rows], found.past[of_rows]
    return np.where((places >= first) & (places < past), weights, np.float32(np.nan))


def _part(request: HeadsRequest, size: int) -> tuple[range, range] | None:
    """Return the queries and keys to show in full; if only one is given, it serves as both."""
    given = request.queries or request.keys, request.keys or request.queries
    if given[0] is None or given[1] is None:
        return None
    ranges = [_range(each, size) for each in given if each is not None]
    return ranges[0], ranges[1]


def _range(typed: str, size: int) -> range:
    """Return the tokens from the first to the last of ``A-B``, or one token ``A``."""
    ends = typed.split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() and len(end) < 12 for end in ends):
        raise UsageError(f"expected tokens such as 8000-8050, got {typed!r}")
    first, last = int(ends[0]), int(ends[-1])
    if not first <= last < size:
        raise UsageError(f"expected tokens from 0 to {size - 1}, first to last, got {typed!r}")
    return range(first, last + 1)


class _Reading:
    """Reads the heads of each layer from its sums.

    after: called after each layer. chosen: the heads by layer; None for all. word, part: see
    ``LongHeads``.
    """

    def __init__(
        self,
        tokens: Tokens,
        kind: Kind,
        request: HeadsRequest,
        after: Callable[[int], None],
        *,
        chosen: Mapping[int, Any] | None,
        word: Word | None,
        part: tuple[range, range] | None,
    ) -> None:
        self.heads: list[LongHead] = []
        self.keep: Keep | None = None
        self.causal = True
        self.bucket = -(-len(tokens) // _BUCKETS)
        self._tokens, self._kind, self._chosen = tokens, kind, chosen
        self._after = after
        self._word, self._part, self._request = word, part, request
        self.regions: dict[tuple[int, tuple[int, ...]], NDArray[np.float64]] = {}
        self._evens: dict[bytes, EvenRows] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind and (self._chosen is None or layer in self._chosen)

    def sums(self, text: int, kind: Kind, layer: int, found: ReducedLayer) -> None:
        kept = [
            head
            for head in range(found.heads)
            if self._chosen is None or head in self._chosen[layer]
        ]
        self.causal &= bool((found.past <= np.arange(len(found.past)) + 1).all())
        facts = TextFacts(self._tokens, self._tokens, Conditions(self._kind, self.causal))
        key = found.first.tobytes() + found.past.tobytes()
        between = RegionSums(self._tokens, self._tokens, sink_keys(self._tokens, self.causal))
        if key not in self._evens:
            self._evens[key] = EvenRows(facts, found.first, found.past)
            if self._tokens.regions:
                between.add_sums(None, self._evens[key])
            for formula in facts.attention.even_formulas(OF_ONE_TEXT).values():
                formula(self._evens[key])
        rows = SummedRows(facts, found, self._evens[key], kept, self.bucket)
        if self._tokens.regions:
            between.add_sums(rows, self._evens[key])
            self.regions[layer, tuple(kept)] = between.sums()
        scores = scores_of(rows, OF_ONE_TEXT)
        pooled = rows.found.pooled
        assert pooled is not None
        queries = np.bincount(np.arange(len(self._tokens)) // self.bucket)
        pooled = pooled / queries[:, None]
        pairs = self._pairs(found)
        part, row = self._of_part(found), self._of_word(found)
        even = float(self._evens[key].far().mean())
        for place, head in enumerate(kept):
            values = {name: float(each[place]) for name, each in scores.items()}
            self.heads.append(
                LongHead(
                    layer,
                    head,
                    {name: None if one != one else one for name, one in values.items()},
                    pooled[place],
                    even,
                    pairs=pairs[head] if pairs else (),
                    part=None if part is None else part[head],
                    row=None if row is None else row[head],
                )
            )
        if self._chosen is None:
            self._keep_few()
        if self.keep is not None:
            self.keep(layer, found)
        self._after(layer)

    def _pairs(self, found: ReducedLayer) -> Sequence[Sequence[tuple[float, int, int]]]:
        if self._request.top is None:
            return ()
        sink = sink_keys(self._tokens, self.causal) & (self._request.sink is not True)
        return found.strongest(self._request.top, sink)

    def _of_part(self, found: ReducedLayer) -> Floats | None:
        if self._part is None:
            return None
        return part_of(found, *self._part)

    def _of_word(self, found: ReducedLayer) -> Floats | None:
        if self._word is None:
            return None
        return np.asarray(found.rows(self._word.span.start, self._word.span.stop).mean(1))

    def _keep_few(self) -> None:
        """Keep parts and rows only of the heads with the most weight in them, the sink aside."""
        sink = sink_keys(self._tokens, self.causal)
        for name, keys in (("part", self._part[1] if self._part else ()), ("row", None)):
            outside = ~(sink if keys is None else sink[list(keys)])
            weights = {
                place: float(np.nansum(values[..., outside]))
                for place, head in enumerate(self.heads)
                if (values := getattr(head, name)) is not None
            }
            for place in sorted(weights, key=lambda each: -weights[each])[_SHOWN:]:
                dropped: dict[str, Any] = {name: None}
                self.heads[place] = self.heads[place]._replace(**dropped)
