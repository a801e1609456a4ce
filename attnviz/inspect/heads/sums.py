"""Reads heads over a long text from sums over attention rows; no whole map exists.

The sums give exact pooled maps, scores, the strongest pairs, and parts in full resolution, see
``measures.reduced``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.backend import backend_of
from attnviz.engine.observer import notes_of_runs
from attnviz.engine.segments import reading_segments
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.heads.report import LongHead, LongHeads
from attnviz.inspect.heads.request import HeadsRequest
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
from attnviz.records import Floats, Input, Kind, ModelInfo, Tokens

_BUCKETS = 64
_CELLS = 2**24
"""The most weights that are in memory at once while a part is read."""

_SHOWN = 3
"""The most heads of which rows and parts are kept if nobody chose heads."""

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

    advance: is called with the share of the layers that is read. Ctrl-C ends the run after a layer,
    and what was read is returned. text, notes: for the report.
    Raises UsageError for a choice that does not fit the text, UnsupportedError if the sums cannot
    be read or the memory is too small.
    """
    if kind not in ("self", "encoder"):
        raise UsageError(f"pooled maps are of one text: leave out --kind {kind}")
    info, began = model.info, time.monotonic()
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, request.index_base)
    word = None if request.token is None else find_in(tokens, request.token)
    if request.token is not None and word is None:
        raise UsageError(f"no token {request.token!r} in the text: give a word of it, or an index")
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
        complete=complete,
        index_base=request.index_base,
        seconds=time.monotonic() - began,
    )


def _part_of(sums: ReducedLayer, queries: range, keys: range) -> Floats:
    """Return the weights (head, query, key) of some queries and keys; NaN for a hidden key."""
    rows = max(1, _CELLS // (sums.heads * len(sums.first)))
    weights = np.concatenate(
        [
            sums.rows(start, min(start + rows, queries.stop))[..., keys.start : keys.stop]
            for start in range(queries.start, queries.stop, rows)
        ],
        axis=1,
    )
    places, of_rows = np.asarray(keys), (slice(queries.start, queries.stop), None)
    seen = (places >= sums.first[of_rows]) & (places < sums.past[of_rows])
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
    numbers = info.heads * size * (2 * info.head_dim + 48) + count * _BUCKETS**2
    numbers += info.heads * rows * size
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
        rows, even = self._rows(sums, layer, kept)
        scores, pooled = scores_of(rows, OF_ONE_TEXT), rows.found.pooled
        assert pooled is not None
        queries = np.bincount(np.arange(len(self.tokens)) // self.bucket)
        pooled = pooled / queries[:, None]
        sink, top = sink_keys(self.tokens, self.causal), self.request.top
        pairs = None if top is None else sums.strongest(top, sink & (self.request.sink is not True))
        part = None if self.part is None else _part_of(sums, *self.part)
        span = None if self.word is None else self.word.span
        row = None if span is None else np.asarray(sums.rows(span.start, span.stop).mean(1))
        for place, head in enumerate(kept):
            values = {name: float(by_head[place]) for name, by_head in scores.items()}
            self.heads.append(
                LongHead(
                    layer,
                    head,
                    {name: None if np.isnan(value) else value for name, value in values.items()},
                    pooled[place],
                    float(even.far().mean()),
                    pairs=() if pairs is None else pairs[head],
                    part=None if part is None else part[head],
                    row=None if row is None else row[head],
                )
            )
        if self.chosen is None:
            self._keep_few(sink)
        self.after(layer)

    def _rows(self, sums: ReducedLayer, layer: int, kept: list[int]) -> tuple[SummedRows, EvenRows]:
        tokens = self.tokens
        facts = TextFacts(tokens, tokens, Conditions(self.kind, self.causal))
        key = sums.first.tobytes() + sums.past.tobytes()
        between = RegionSums(tokens, tokens, sink_keys(tokens, self.causal))
        if key not in self._evens:
            self._evens[key] = EvenRows(facts, sums.first, sums.past)
            if tokens.regions:
                between.add_sums(None, self._evens[key])
            for formula in facts.attention.even_formulas(OF_ONE_TEXT).values():
                formula(self._evens[key])
        even = self._evens[key]
        rows = SummedRows(facts, sums, even, kept, self.bucket)
        if tokens.regions:
            between.add_sums(rows, even)
            self.regions[layer, tuple(kept)] = between.sums()
        return rows, even

    def _keep_few(self, sink: NDArray[np.bool_]) -> None:
        """Keep parts and rows only of the heads with the most weight in them, the sink aside."""
        for name, keys in (("part", self.part[1] if self.part else ()), ("row", None)):
            outside = ~(sink if keys is None else sink[list(keys)])
            weights = {
                place: float(np.nansum(values[..., outside]))
                for place, head in enumerate(self.heads)
                if (values := getattr(head, name)) is not None
            }
            for place in sorted(weights, key=lambda head: -weights[head])[_SHOWN:]:
                dropped: dict[str, Any] = {name: None}
                self.heads[place] = self.heads[place]._replace(**dropped)
