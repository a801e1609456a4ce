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
    count_kept,
)
from attnviz.count.params.counting.cost import Stated, needed_bytes
from attnviz.count.params.counting.storage import Storage, WeightMatrix


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
    matrices: tuple[WeightMatrix, ...] = ()
    limit: int | None = None
    notes: tuple[str, ...] = ()
    way: Literal["building", "header"] = "building"
    storage: Storage | None = None


class BuiltCount(NamedTuple):
    """The counts of a model without a spec: parameters and cache, but no operations.

    name, source, revision: the requested name, where its sizes come from, its commit on the hub.
    made: what was counted. cache: None if unknown. All else is as in ``CostReport``.
    """

    name: str
    source: str
    revision: str | None
    made: MadeModel
    tokens: int
    batch: int
    dtype: str
    cache_dtype: str
    cache: CacheCount | None
    weight_bytes: int | None
    buffer_bytes: int
    others: Mapping[str, int] = NO_OTHERS
    stated: Stated = "option"
    storage: Storage | None = None

    @property
    def total(self) -> int:
        """Return the number of parameters."""
        return self.made.total

    @property
    def needed_bytes(self) -> int | None:
        """Return the bytes of parameters, buffers and cache together; None if nothing tells."""
        return needed_bytes(self.weight_bytes, self.buffer_bytes, self.cache)

    @property
    def limit(self) -> int | None:
        """Return the longest sequence that the positions allow, or None."""
        return self.made.limit

    def cache_at(self, tokens: int, batch: int | None = None) -> CacheCount:
        """Return the cache for another length, and for another batch unless that is None."""
        kept = Counter((kept, tokens) for kept in self.made.kept or ())
        length, many = Lengths(tokens, tokens), batch or self.batch
        return count_kept(kept, length, batch=many, dtype=self.cache_dtype)
