"""A long text in explore: pooled maps of all heads, and windows of them in full resolution.

No whole map is in memory. One pass gives the pooled maps, and leaves the queries and keys of each
layer, from which a window is computed; if those are too large, a window takes another pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from attnviz.draw.labels import numbered, token_labels, visible
from attnviz.engine.backend import backend_of
from attnviz.engine.segments import reading_segments
from attnviz.inspect.heads.report import NOTABLE
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.heads.sentences import long_finding
from attnviz.inspect.heads.sums import long_heads, part_of
from attnviz.measures.labels import KnownLabels
from attnviz.measures.one_text import notable_heads, plain_label
from attnviz.measures.reduced import ReducedLayer
from attnviz.models.model import Model
from attnviz.progress import Advance
from attnviz.records import (
    AttentionRecord,
    HeadScores,
    HeadsRecord,
    Input,
    Kind,
    LayerWeights,
    Tokens,
)

_SIDE = 256
"""The most queries and keys of a window."""

_CELLS = 2**26
"""The most weights of a window, over all heads."""

_HELD = 2 * 10**9
"""The most bytes of queries and keys that are held."""


@dataclass(frozen=True, eq=False)
class LongPart:
    """What is shown of a long text: all of it in pooled maps, or a window of it.

    text: reads other parts. report: the pooled weights, or those of the window.
    queries, keys: the tokens of both axes; of a pooled map the first token of each cell.
    pooled: whether it is the pooled map.
    """

    text: LongText
    report: HeadsRecord
    queries: range
    keys: range
    pooled: bool

    @property
    def size(self) -> int:
        """Return how many tokens the text has."""
        return len(self.text.tokens)

    @property
    def said(self) -> str:
        """Return in words what a cell stands for, or where the window is."""
        if self.pooled:
            return f"a cell: {self.queries.step:,} × {self.keys.step:,} tokens"
        first, second = (f"{each[0]:,}–{each[-1]:,}" for each in (self.queries, self.keys))
        return f"queries {first}, keys {second}"

    def place(self, query: int, key: int) -> tuple[int, int]:
        """Return the tokens (query, key) of a cell that may lie beyond the edge of a window.

        query, key: its indices on the axes. Of a pooled cell it is the middle.
        """
        middle = self.queries.step // 2
        query = min(max(self.queries.start + query * self.queries.step + middle, 0), self.size - 1)
        key = self.keys.start + key * self.keys.step + middle
        return query, min(max(key, 0), query if self.text.causal else self.size - 1)

    def cell(self, query: int, key: int) -> tuple[int, int] | None:
        """Return the indices of a query and key of the text on the axes; None if outside."""
        row = (query - self.queries.start) // self.queries.step
        column = (key - self.keys.start) // self.keys.step
        inside = 0 <= row < len(self.queries) and 0 <= column < len(self.keys)
        return (row, column) if inside else None

    def names(self, encoding: str) -> tuple[list[str], list[str]]:
        """Return the names of the queries and keys, with their index in the text.

        encoding: of the terminal, for characters that it cannot draw.
        """
        queries, keys = (
            [visible(name, encoding) for name in self._names(axis)]
            for axis in (self.queries, self.keys)
        )
        return queries, keys

    def _names(self, axis: range) -> Iterable[str]:
        if not self.pooled:
            return map(numbered, token_labels(self.text.tokens.taken(axis)), axis)
        return (f"{at:,}–{min(at + axis.step, self.size) - 1:,}" for at in axis)


class LongText:
    """Reads parts of the attention over one long text.

    kind: of the attention. known: labels that were measured before. base: 0 or 1, the first number
    of heads. given: the text as it is shown. advance: is given the share of the pass that is done.
    causal: whether no query sees a later key.
    """

    def __init__(
        self,
        model: Model,
        tokens: Tokens,
        kind: Kind,
        *,
        known: KnownLabels | None,
        base: int,
        given: str,
        advance: Advance = lambda done: None,
    ) -> None:
        self.tokens, self.kind = tokens, kind
        self._model, self._held = model, dict[int, ReducedLayer]()
        info = model.info
        held = 2 * 4 * info.layers * info.heads * info.head_dim * len(tokens)
        request = HeadsRequest(index_base=base)
        keep = self._held.__setitem__ if held <= _HELD else None
        sums = long_heads(model, tokens, kind, request, advance, text=given, keep=keep)
        self.finding, self.causal = long_finding(sums), sums.causal
        named = {} if known is None else known.named()
        heads = []
        pooled: dict[int, dict[int, np.ndarray]] = {}
        for entry in sums.heads:
            layer, head = entry.layer, entry.head
            label = plain_label(entry.scores, named.get((layer, head)))
            heads.append(HeadScores(layer, head, entry.scores, label))
            weights = np.array(entry.pooled, np.float32)
            if self.causal:
                weights[np.triu_indices(len(weights), 1)] = np.nan
            pooled.setdefault(layer, {})[head] = weights
        layers = tuple(
            LayerWeights(layer, tuple(of_heads), np.stack([*of_heads.values()]))
            for layer, of_heads in sorted(pooled.items())
        )
        cells = range(0, len(tokens), sums.bucket)
        axis = tokens.taken(cells)
        record = AttentionRecord(sums.model, kind, False, axis, axis, layers)
        notable = notable_heads(tuple(heads), NOTABLE)
        report = HeadsRecord(record, tuple(heads), notable, False, base, text=given)
        self.overview = LongPart(self, report, cells, cells, pooled=True)

    def around(self, query: int, key: int) -> LongPart:
        """Return the window around a query and a key of the text, in full resolution."""
        info = self._model.info
        side = min(_SIDE, max(int((_CELLS / (info.layers * info.heads)) ** 0.5), 1))
        starts = (max(min(at - side // 2, len(self.tokens) - side), 0) for at in (query, key))
        queries, keys = (range(at, min(at + side, len(self.tokens))) for at in starts)
        reader = _WindowReader(self.kind, queries, keys)
        if self._held:
            for layer, found in self._held.items():
                reader.sums(0, self.kind, layer, found)
        else:
            with reading_segments(self._model, self.tokens):
                backend_of(self._model).read_sums(reader, [Input(self.tokens)])
        report = self.overview.report
        record = replace(
            report.record,
            queries=self.tokens.taken(queries),
            keys=self.tokens.taken(keys),
            layers=tuple(reader.layers),
        )
        return LongPart(self, replace(report, record=record), queries, keys, pooled=False)


class _WindowReader:
    """Reads a window of each layer's weights."""

    def __init__(self, kind: Kind, queries: range, keys: range) -> None:
        self._kind, self._queries, self._keys = kind, queries, keys
        self.layers: list[LayerWeights] = []

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def sums(self, text: int, kind: Kind, layer: int, found: ReducedLayer) -> None:
        weights = part_of(found, self._queries, self._keys)
        self.layers.append(LayerWeights(layer, tuple(range(found.heads)), weights))
