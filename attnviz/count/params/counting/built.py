"""The counts of a model that no arithmetic describes: it was built, or a file's header was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

from attnviz.count.params.counting.cache import (
    NO_OTHERS,
    CacheCount,
    LayerCache,
    Lengths,
    byte_count,
    count_kept,
)
from attnviz.count.params.counting.cost import DEFAULT_TOKENS, Stated
from attnviz.count.params.counting.storage import Matrix, Storage


class MadeModel(NamedTuple):
    """What building a model without memory, or the header of its file, tells.

    architecture: its class. total: its parameters, with tied ones counted once.
    buffers: numbers that it stores in addition, not part of the total.
    parts: parts of the model in order, such as its direct children, with their parameters;
        parameters that two share count in the first.
    kept: the cache of each layer that has one; None if unknown.
    matrices: those that a format may quantise. limit: the longest sequence that its positions
        allow, or None. notes: sentences on what is not counted. way: how it was counted.
    storage: how its file stores the parameters; None if it was built.
    """

    architecture: str
    total: int
    buffers: int
    parts: tuple[tuple[str, int], ...]
    kept: tuple[LayerCache, ...] | None = None
    matrices: tuple[Matrix, ...] = ()
    limit: int | None = None
    notes: tuple[str, ...] = ()
    way: Literal["building", "header"] = "building"
    storage: Storage | None = None


class BuiltCount(NamedTuple):
    """The counts of a model without a spec: parameters and cache, but no operations.

    name, source, revision: the requested name, where its sizes come from, its commit on the hub.
    made: what was counted. tokens, batch: the lengths for which the cache is counted.
    dtype, cache_dtype: of parameters that are not quantised, and of keys and values.
    others, stated, storage: as in ``CostReport``.
    """

    name: str
    source: str
    revision: str | None
    made: MadeModel
    dtype: str
    cache_dtype: str
    tokens: int = DEFAULT_TOKENS
    batch: int = 1
    others: Mapping[str, int] = NO_OTHERS
    stated: Stated = "option"
    storage: Storage | None = None

    @property
    def total(self) -> int:
        """Return the number of parameters."""
        return self.made.total

    @property
    def weight_bytes(self) -> int | None:
        """Return the bytes of the parameters as they are stored; None if nothing tells."""
        if self.storage is not None:
            return self.storage.bytes
        return byte_count(self.made.total, self.dtype, self.others)

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes of buffers, 0 if the bytes of weights contain them."""
        buffered = self.storage is not None and self.storage.buffered
        return 0 if buffered else byte_count(self.made.buffers, self.dtype)

    @property
    def cache(self) -> CacheCount | None:
        """Return the cache, None if unknown."""
        return None if self.made.kept is None else self.cache_at(self.tokens)

    @property
    def needed_bytes(self) -> int | None:
        """Return the bytes of parameters, buffers and cache together; None if nothing tells."""
        weights, cache = self.weight_bytes, self.cache
        if weights is None or cache is None:
            return None
        return weights + self.buffer_bytes + cache.bytes

    @property
    def limit(self) -> int | None:
        """Return the longest sequence that the positions allow, or None."""
        return self.made.limit

    @property
    def settled(self) -> int:
        """Return a length at which every sliding window is full."""
        return max((kept.window or 1 for kept in self.made.kept or ()), default=1)

    def cache_at(self, tokens: int, batch: int | None = None) -> CacheCount:
        """Return the cache for another length, and for another batch unless that is None."""
        kept = Counter((kept, tokens) for kept in self.made.kept or ())
        length, many = Lengths(tokens, tokens), batch or self.batch
        return count_kept(kept, length, batch=many, dtype=self.cache_dtype)
