"""All that the panes show, in an immutable view: results of passes, and the user's choices."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np

from attnviz.draw.axes import Axes
from attnviz.draw.labels import token_labels, visible
from attnviz.draw.numbers import NumberScale
from attnviz.draw.scale import signed_limit
from attnviz.engine.generation import Sampling, Step, written
from attnviz.engine.head_run import Head
from attnviz.engine.scan.run import Effects
from attnviz.errors import UsageError
from attnviz.inspect.explore.session import Frame, Mode, unlike
from attnviz.inspect.heads.links import LONGEST, link_names
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import word_spans
from attnviz.records import AttentionRecord, Floats, Tokens

Side = Literal["a", "b", "difference"]
"""Which of two sides is shown: the first, the second, or their difference."""

SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True)
class Written:
    """The text that the model generates in explore, as far as it is done and shown.

    at: how many of them are shown. paused: whether generation waits for a key.
    """

    sampling: Sampling
    steps: tuple[Step, ...] = ()
    at: int = 0
    running: bool = True
    paused: bool = False


@dataclass(frozen=True)
class View:
    """The screen state of explore: everything that the panes draw.

    frame: the result without the removed heads; whole: with all heads. other: the second side, if
        there is one; else, if heads are removed, the whole model is the second side.
    mode: how weights are shown: raw, without the sink or norm-weighted.
    removed: the heads that the user removed; ``frame`` follows when its pass is done.
    effects: the effect of each removal, if known; scanned: the share done of a running measurement.
    written: the text that the model generates after that of ``frame``; its weights are raw.
    """

    frame: Frame
    whole: Frame
    other: Frame | None
    head: Head
    query: int = 0
    key: int = 0
    mode: Mode = "raw"
    side: Side = "a"
    removed: frozenset[Head] = frozenset()
    effects: Effects | None = None
    scanned: float | None = None
    by_effect: bool = False
    written: Written | None = None

    @classmethod
    def of(cls, frame: Frame, other: Frame | None = None) -> View:
        """Return the first screen state for a result: at its most notable head and last token."""
        head = (*frame.report.notable, *frame.heads)[0]
        record, removed = frame.report.record, frame.removed
        view = cls(frame, frame, other, head, removed=removed)
        return view.at(len(record.queries) - 1, len(record.keys) - 1)

    # What is shown ---------------------------------------------------------------------------

    @property
    def against(self) -> Frame | None:
        """Return the result with which the first side is compared, or None if there is none."""
        return self.other or (self.whole if self.frame.removed else None)

    @property
    def shown(self) -> Frame:
        """Return the result of the side that is shown."""
        return self.against or self.frame if self.side == "b" else self.frame

    @property
    def comparable(self) -> bool:
        """Return whether there are two sides whose attention weights can be subtracted."""
        return self.against is not None and not self.unlike

    @property
    def unlike(self) -> str:
        """Return why the two sides cannot be subtracted for this head; empty if they can."""
        return "" if self.against is None else unlike(self.frame, self.against, self.head)

    @property
    def dark(self) -> bool:
        """Return whether the shown head is ablated in the run that is shown, and so drawn dark."""
        gone = self.removed if self.side == "a" else self.shown.removed
        return self.side != "difference" and self.head in gone

    @property
    def step(self) -> Step | None:
        """Return the generation step that is shown; None if the prompt alone is shown."""
        text = self.written
        return text.steps[text.at - 1] if text is not None and text.at else None

    @cached_property
    def record(self) -> AttentionRecord:
        """Return the attention record that is shown; of a growing text the tokens, no weights."""
        record = self.shown.report.record
        if self.written is None or not self.written.at:
            return record
        grown = written(record.queries, self.written.steps[: self.written.at])
        keys = record.keys if record.kind == "cross" else grown
        return replace(record, queries=grown, keys=keys, layers=())

    @cached_property
    def weights(self) -> Floats:
        """Return the attention weights (query, key) of the chosen head, or their difference.

        NaN stands for weights that do not exist yet. Raises UsageError if the mode is not
        available.
        """
        if self.side == "difference" and self.against is not None:
            if self.unlike:
                raise UsageError(self.unlike)
            a, b = (side.weights(self.head, self.mode) for side in (self.frame, self.against))
            return b - a if self.other is not None else a - b
        weights = self.shown.weights(self.head, self.mode)
        if self.written is None or not self.written.at:
            return weights
        grown = np.full((len(self.record.queries), len(self.record.keys)), np.nan)
        grown[: len(weights), : weights.shape[1]] = weights
        layer, head = self.head
        for step in self.written.steps[: self.written.at]:
            row = step.rows[layer][head]
            grown[step.query, : len(row)] = row
        return grown

    def without_sink(self, row: Floats) -> Floats:
        """Return a row of attention weights with zeros for the attention sink."""
        keys = sink_of(self.shown.report.record)[1]
        left = row.copy()
        left[: len(keys)][keys[: len(row)]] = 0.0
        return left

    @property
    def limit(self) -> float:
        """Return the difference that is drawn in the full colour; 0 if weights are shown."""
        if self.side != "difference" or self.against is None:
            return 0.0
        return NumberScale(signed_limit(self.weights)).limit

    def axes(self, encoding: str) -> Axes:
        """Return the axes of the map with their labels."""
        if self.step is not None:
            return _axes(self.record, encoding)
        return _axes_of(self.shown, encoding)

    def names(self, encoding: str) -> tuple[list[str], list[str]]:
        """Return the names of the queries and keys; a repeated token has its index in the name."""
        if self.step is not None:
            return _names(self.record, encoding)
        return _names_of(self.shown, encoding)

    def name(self, head: Head) -> str:
        """Return a head's name, such as ``L2H5``. head: (layer, head) from 0."""
        base = self.shown.report.index_base
        return f"L{head[0] + base}H{head[1] + base}"

    # Changes ---------------------------------------------------------------------------------

    def fitted(self, removed: frozenset[Head] | None = None) -> View:
        """Return the screen state with a head, a cursor and a side that exist in its results."""
        view = self
        if self.against is None or (self.side == "difference" and self.unlike):
            view = replace(self, side="a")
        heads = view.shown.heads
        head = view.head if view.head in heads else heads[0]
        gone = self.frame.removed if removed is None else removed
        return replace(view, head=head, removed=gone).at(view.query, view.key)

    def with_written(self, written: Written) -> View:
        """Return the screen state for a text that is being generated.

        The cursor stands on the newest query and on its key with the largest weight, sinks
        excluded.
        """
        view = replace(self, written=written)
        step, (layer, head) = view.step, view.head
        if step is None:
            return view.at(view.query, view.key)
        return view.at(step.query, int(view.without_sink(step.rows[layer][head]).argmax()))

    def at(self, query: int, key: int) -> View:
        """Return the view with its cursor on a query and a key, or on the nearest that exist."""
        query, key = _within(query, self.record.queries), _within(key, self.record.keys)
        return replace(self, query=query, key=key)

    def found(self, typed: str) -> View:
        """Return the view at the next token that begins the typed text, cyclically.

        The cursor's key moves to this token too, except in cross attention. The view is unchanged
        if the text occurs nowhere.
        """
        places = places_of(self.record.queries, typed)
        if not places:
            return self
        place = next((at for at in places if at > self.query), places[0])
        return self.at(place, self.key if self.record.kind == "cross" else place)

    def with_head(self, head: Head) -> View:
        """Return the view with another head; unchanged if there is no such head."""
        return replace(self, head=head) if head in self.shown.heads else self

    def next_in(self, heads: Sequence[Head], step: int) -> View:
        """Return the view ``step`` heads further in a list, not beyond its ends.

        heads: the list; if the shown head is not in it, its first head is shown.
        """
        place = heads.index(self.head) + step if self.head in heads else 0
        return self.with_head(heads[_within(place, heads)]) if heads else self

    def next_in_layer(self, step: int) -> View:
        """Return the view ``step`` heads further in the same layer; not beyond its ends."""
        return self.next_in([head for head in self.shown.heads if head[0] == self.head[0]], step)

    def next_layer(self, step: int) -> View:
        """Return the view ``step`` layers further, at this head number or the nearest below."""
        heads = self.shown.heads
        layers = list(dict.fromkeys(layer for layer, _ in heads))
        layer = layers[_within(layers.index(self.head[0]) + step, layers)]
        within = [head for head in heads if head[0] == layer]
        return self.with_head(max((h for h in within if h[1] <= self.head[1]), default=within[0]))


def _within(place: int, among: Sized) -> int:
    return min(max(place, 0), max(len(among) - 1, 0))


def places_of(tokens: Tokens, typed: str) -> tuple[int, ...]:
    """Return the indices of the tokens at which the typed text begins, ignoring case.

    The text may extend over several tokens; if it is found nowhere, its words are searched.
    """
    wanted = typed.casefold()
    if not wanted.strip():
        return ()
    starts, folded = [], ""
    for text in tokens.texts:
        starts.append(len(folded))
        folded += text.casefold()
    places, at = [], folded.find(wanted)
    while at >= 0:
        places.append(max(place for place, start in enumerate(starts) if start <= at))
        at = folded.find(wanted, at + 1)
    return tuple(dict.fromkeys(places)) or tuple(span.start for span in word_spans(tokens, typed))


def _axes(record: AttentionRecord, encoding: str) -> Axes:
    queries = token_labels(record.queries, encoding)
    same = record.keys is record.queries
    keys = queries if same else token_labels(record.keys, encoding)
    regions = record.queries.regions, record.keys.regions
    return Axes(queries, keys, record.causal, query_regions=regions[0], key_regions=regions[1])


def _names(record: AttentionRecord, encoding: str) -> tuple[list[str], list[str]]:
    both = link_names(replace(record, layers=()), LONGEST)
    queries, keys = ([visible(name, encoding) for name in names] for names in both)
    return queries, keys


@lru_cache(maxsize=4)
def _axes_of(frame: Frame, encoding: str) -> Axes:
    return _axes(frame.report.record, encoding)


@lru_cache(maxsize=4)
def _names_of(frame: Frame, encoding: str) -> tuple[list[str], list[str]]:
    return _names(frame.report.record, encoding)
