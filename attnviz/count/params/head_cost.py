"""Counts the parameters of one head, and the cache of its keys and values, whole or cut short."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from attnviz.count.params.cache import byte_count, count_cache, kept_by
from attnviz.count.params.cost import CostReport
from attnviz.count.params.params import params
from attnviz.count.params.report import ParamsReport
from attnviz.count.params.request import NamedModel, ParamsRequest
from attnviz.count.params.specs import AttentionSpec
from attnviz.errors import UnsupportedError
from attnviz.records import Kind

_UNKNOWN = "the arithmetic of attnviz params does not know this attention"


class HeadCost(NamedTuple):
    """The parameters of one head, and the cache of its keys and values.

    query, key, value, output: parameters of its projections, without biases. Those of key and value
        belong to all heads in ``group``.
    group: how many query heads share its keys and values, itself counted. cache_bytes: the bytes of
        these keys and values in the cache for each token; 0 if they are not cached.
    dtype: of the cache.
    """

    query: int
    key: int
    value: int
    output: int
    group: int
    cache_bytes: int
    dtype: str

    @property
    def total(self) -> int:
        """Return the number of the head's parameters, including those that other heads share."""
        return self.query + self.key + self.value + self.output


def counted_model(model: Any) -> ParamsReport:
    """Return the counts of a loaded model, as ``attnviz.params`` returns them."""
    return params([NamedModel(model.info.name, loaded=model)], ParamsRequest())


def head_cost(counted: ParamsReport, layer: int, kind: Kind) -> HeadCost:
    """Return the costs of a head of a layer; all heads of a layer cost the same.

    counted: the counts of its model. layer: the index of the layer. kind: of the attention.
    Raises UnsupportedError if the model's class or this layer cannot be counted.
    """
    cost = _counted(counted)
    if (spec := _attention(cost, layer, kind)) is None:
        raise UnsupportedError(_UNKNOWN)
    writes = cost.spec.main.causal or len(cost.spec.stacks) > 1
    group = spec.heads if spec.latent is not None else spec.heads // spec.kv_heads
    kept = kept_by(spec)
    shared = 1 if spec.latent is not None else spec.heads // group
    keeps = writes and kind != "encoder" and kept.kind != "linear"
    numbers = kept.per_token // shared if keeps else 0
    cached = byte_count(numbers, cost.cache_dtype)
    return HeadCost(**spec.per_head, group=group, cache_bytes=cached, dtype=cost.cache_dtype)


SHORT_SINK, SHORT_RECENT = 64, 256
"""The first and the last tokens that a streaming head keeps (Xiao et al. 2024, "DuoAttention")."""


class ShortCache(NamedTuple):
    """The bytes of a cache for one sequence: if all heads keep every token, and if few do.

    tokens: the length. whole, short: bytes. dtype: of the cached numbers.
    """

    tokens: int
    whole: int
    short: int
    dtype: str


def short_cache(
    counted: ParamsReport, tokens: int, kept: Collection[tuple[int, int]]
) -> ShortCache:
    """Return the bytes of a cache in which only some key/value heads keep every token.

    The others keep the first ``SHORT_SINK`` tokens and the last ``SHORT_RECENT``. Latent keys and
    states, which heads share, stay whole.
    counted: the counts of the model. tokens: the length. kept: the (layer, key/value
        head) of those that keep every token.
    Raises UnsupportedError if the model's class cannot be counted.
    """
    cost, saved = _counted(counted), 0
    for layer in range(cost.spec.main.depth):
        attention = _attention(cost, layer, "self")
        cache = None if attention is None else kept_by(attention)
        if attention is None or cache is None or cache.kind not in ("full", "sliding"):
            continue
        held = min(tokens, cache.window or tokens)
        heads = attention.kv_heads
        cut = max(held - SHORT_SINK - SHORT_RECENT, 0)
        others = heads - sum(at == layer for at, _ in kept)
        saved += others * (cache.per_token // heads) * cut
    whole = count_cache(cost.spec, cost.at(tokens), batch=1, dtype=cost.cache_dtype).bytes
    short = whole - byte_count(saved, cost.cache_dtype)
    return ShortCache(tokens, whole, short, cost.cache_dtype)


def _counted(counted: ParamsReport) -> CostReport:
    if (cost := counted.cases[0].cost) is None:
        raise UnsupportedError(_UNKNOWN)
    return cost


def _attention(cost: CostReport, layer: int, kind: Kind) -> AttentionSpec | None:
    """Return a layer's attention of a kind; None if it is not counted."""
    stacks = cost.spec.stacks
    named = [stack for stack in stacks if (stack.name == "encoder") == (kind == "encoder")]
    for stack in [cost.spec.main] if kind == "self" else named:
        for group in stack.groups:
            if group.indices is None or layer in group.indices:
                matching = [a for a in group.layer.attentions if a.cross == (kind == "cross")]
                return matching[0] if matching else None
    return None
