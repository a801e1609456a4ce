"""Everything that a design costs, counted for one length, batch and dtype."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.params.accounts.parameters import ParameterCount
from attnviz.params.accounts.running import CacheCount, FlopCount, MapCount
from attnviz.params.specs import ModelSpec

__all__ = ["CostReport"]


@dataclass(frozen=True)
class CostReport:
    """What a design costs.

    design: what was counted.
    tokens, source_tokens, batch: the lengths that cache, arithmetic and maps were counted for.
    dtype, cache_dtype: of the weights and maps, and of keys and values; a number of the weights
        takes ``bits``.
    parameters, cache, flops, maps: the counts.
    weight_bytes: the parameters at ``dtype``; buffers apart in ``buffer_bytes``.
    """

    spec: ModelSpec
    tokens: int
    source_tokens: int
    batch: int
    dtype: str
    cache_dtype: str
    bits: int
    parameters: ParameterCount
    cache: CacheCount
    flops: FlopCount
    maps: MapCount
    weight_bytes: int
    buffer_bytes: int
