"""Sums over the attention rows of a layer, computed where the attention is, without its weights.

Scores are computed for some queries at a time, and each block of weights is reduced while it is in
the processor's cache: maximum, normaliser, entropy, and products with columns. On a processor this
takes less time than fused attention calls with the columns in the place of the values: those would
compute the scores again in each call, and give neither the normaliser nor the largest weight.

Scores are logarithms of weights to base 2: torch's ``exp`` takes forty times as long where it
underflows, as it does for hidden keys, and ``exp2`` does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.engine.attention_calls import HIDING, AttentionCall, IncompleteError
from attnviz.engine.device_sizes import sizes_on
from attnviz.measures.reduced import EqualGroups, Equals, Reduced
from attnviz.measures.rows import Columns, Weights
from attnviz.records import Ints

_HIDDEN = -1e30
"""The score of a hidden key: its weight is zero, and the product of both is as well."""

_WIDTH = 16
"""Weights are multiplied with so many columns, or with twice as many: a product with 6 to 10 takes
a processor three times as long as one with 16."""

_BITS = math.log2(math.e)
"""A natural logarithm times this is one to base 2."""

SINKS = "s_aux"
"""The option with the score of a learned sink of each head, as gpt_oss has it."""

SOFTCAP = "softcap"
"""The option with the cap of scores, c · tanh(score / c), as Gemma 2 has it."""

Ranges = tuple[Ints, Ints]
"""The first key that each query sees, and the one after the last, both (query,)."""

Masked = tuple[Ranges, Tensor | None]
"""What a mask lets queries see, and what it adds to the scores of each key: (head, key), or one row
for all heads; None for nothing."""


class TorchLayer:
    """The attention of one layer over one text; its methods are those of ``ReducedLayer``.

    query: (head, query, dim). key: (key/value head, key, dim). first, past: the keys that each
    query sees. sink: (head,), the score of a learned sink; None without sinks. cap: the softcap of
    the scores, or None. bias: (head, key) or (1, key), added to the score of each key, such as by
    ALiBi (Press et al. 2022), or None. output: (query, head, dim) before sinks take their share;
    None once the layer has run. Numbers in half precision are computed in float32.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        scale: float,
        *,
        ranges: Ranges,
        sink: Any = None,
        cap: float | None = None,
        bias: Tensor | None = None,
    ) -> None:
        self.first, self.past = ranges
        self.heads = len(query)
        self._alike: Callable[..., TorchLayer] = TorchLayer  # makes a layer of this kind
        self._given = query, key, scale, sink, cap, bias
        shape = len(key), len(query) // len(key)
        self._wide = wide = torch.promote_types(query.dtype, torch.float32)
        self._query, self._scale, self._given_key = query.unflatten(0, shape), scale * _BITS, key
        self._logarithms: Tensor | None = None
        self.output: Tensor | None = None
        self._sink = None if sink is None else sink.to(wide).reshape(*shape, 1, 1) * _BITS
        self._cap = None if cap is None else cap * _BITS
        self._bias: Tensor | None = None
        if bias is not None:
            self._bias = (bias.to(wide) * _BITS).expand(len(query), -1).unflatten(0, shape)
        self._at_once = sizes_on(query.device)
        self._most_cells, self._most_rows = self._at_once.cells, self._at_once.rows
        self._on_gpu = query.device.type != "cpu"

    def parts(self, numbers: int) -> Iterator[tuple[Sequence[int], TorchLayer]]:
        shared, groups, *_ = self._query.shape
        of_head = 4 * numbers * max(len(self.first), self._given_key.shape[1])
        many = max(1, self._at_once.sum_bytes // of_head)
        if many >= self.heads:
            yield range(self.heads), self
            return
        keys = max(1, many // groups)
        step = keys * groups if many >= groups else many
        for first in range(0, shared * groups, keys * groups):
            last = min(first + keys * groups, self.heads)
            for start in range(first, last, step):
                heads = range(start, min(start + step, last))
                yield heads, self._of(heads, self._alike)

    def _of(self, heads: range, make: Callable[..., TorchLayer], rows: Any = ...) -> TorchLayer:
        """Return the layer that ``make`` makes of neighbouring heads, and of some rows."""
        query, key, scale, sink, cap, bias = self._given
        groups, some = self._query.shape[1], slice(heads.start, heads.stop)
        return make(
            query[some] if rows is ... else query[some, rows],
            key[heads.start // groups : (heads.stop - 1) // groups + 1],
            scale,
            ranges=(self.first[rows], self.past[rows]),
            sink=None if sink is None else sink[some],
            cap=cap,
            bias=bias if bias is None or len(bias) == 1 else bias[some],
        )

    @cached_property
    def _key(self) -> Tensor:
        return self._given_key.to(self._wide)

    def _room(self, queries: int) -> Tensor | None:
        """Return memory for all blocks on a GPU; torch would keep that of each width."""
        if not self._on_gpu:
            return None
        size = min(self._most_cells, self.heads * queries * self._given_key.shape[1])
        return torch.empty(size, dtype=self._wide, device=self._query.device)

    def _new(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._wide, device=self._query.device)

    def reduced(
        self,
        columns: Columns,
        buckets: int | None = None,
        equals: Equals | None = None,
        *,
        far: bool = False,
    ) -> Reduced:
        queries, keys = self._query.shape[2], self._given_key.shape[1]
        positions, many = np.arange(keys), columns.shape[1] + 1
        mixing = pad(self._tensor(np.column_stack([positions, columns])), (0, -many % _WIDTH))
        before = self._tensor(np.stack([positions, np.ones(keys)], 1)) if far else None
        shape = (*self._query.shape[:2], queries)
        mixed = self._new(*shape, many - 1)
        position, total, entropy, largest, logs = (self._new(*shape) for _ in range(5))
        early = self._new(*shape, 2 if far else 0)
        pooled = equal = None
        if equals is not None:
            equal = self._new(*shape[:2], 2 * equals.orders, queries)
        if buckets is not None:
            pooled = self._new(*shape[:2], -(-queries // buckets), -(-keys // buckets))
        room = self._room(queries)
        for heads, start, stop, low, scores in self._blocks(buckets or 1):
            rows = (heads, slice(None), slice(start, stop))
            best = most = scores.amax(-1, keepdim=True)
            if self._sink is not None:
                most = torch.maximum(best, self._sink[heads])
            shifted = scores.sub_(most)
            raised = torch.exp2(shifted, out=_part(room, *shifted.shape))
            own = raised.sum(-1, keepdim=True)
            every = own if self._sink is None else own + (self._sink[heads] - most).exp2()
            share, logs[rows] = own / every, (most + every.log2())[..., 0]
            surprise = -shifted.mul_(raised).sum(-1, keepdim=True) / every
            total[rows] = share[..., 0]
            entropy[rows] = (surprise + share * every.log2())[..., 0] / _BITS
            largest[rows] = ((best - most).exp2() / every)[..., 0]
            seen = slice(low, low + raised.shape[-1])
            sums = (raised @ mixing[seen])[..., :many] / every
            position[rows], mixed[rows] = sums[..., 0], sums[..., 1:]
            if pooled is not None and buckets is not None:
                sums = _bucket_sums(raised, buckets) / every
                of_rows = torch.arange(start, stop, device=sums.device) // buckets
                of_keys = slice(low // buckets, low // buckets + sums.shape[-1])
                pooled[heads][..., of_keys].index_add_(2, of_rows, sums)
            if equals is not None and equal is not None:
                mass = self._on_pairs(raised, equals, start, low) / every.transpose(-1, -2)
                equal[rows[0], :, :, start:stop] = mass
            if before is not None:
                raised = raised.tril_(start - low)
                early[rows] = (raised @ before[seen]) / every
        self._logarithms = logs
        if equals is not None and equal is not None:
            self._add_groups(equal.unflatten(2, (2, -1)), equals.groups)
        numbers, own_positions, own_early = map(_flat, (total, position, early))
        at = np.arange(queries)
        signed = own_positions - at * numbers
        return Reduced(
            _flat(mixed),
            numbers,
            np.maximum(_flat(entropy), 0) + 0.0,  # against rounding, and the sign of zero
            _flat(largest),
            signed,
            far=signed + 2 * (at * own_early[..., 1] - own_early[..., 0]) if far else None,
            pooled=None if pooled is None else _flat(pooled),
            equal=None if equal is None else _flat(equal.unflatten(2, (2, -1))),
        )

    def rows(self, start: int, stop: int) -> Weights:
        return _flat(self._weights(start, stop))

    def _weights(self, start: int, stop: int) -> Tensor:
        """Return the weights of some queries, (key/value head, group, rows, key)."""
        rows = self._new(*self._query.shape[:2], stop - start, self._given_key.shape[1])
        for heads, begin, end, low, scores in self._blocks(1, start, stop):
            high = low + scores.shape[-1]
            if self._sink is not None:
                edge = self._sink[heads].expand(-1, -1, end - begin, 1)
                scores = torch.cat([scores, edge], -1)
            weights = scores.div_(_BITS).softmax(-1)[..., : high - low]
            rows[heads, :, begin - start : end - start, low:high] = weights
        return rows

    def outputs(self, queries: Sequence[int]) -> Weights:
        assert self.output is not None
        outputs, kept = self.output[list(queries)], self.kept()
        outputs = outputs * (kept if self._sink is None else kept[list(queries)])
        return _numpy(outputs.to(self._wide).transpose(0, 1))

    def strongest(self, number: int, hidden: Any) -> list[list[tuple[float, int, int]]]:
        left_out, every = self._index(hidden), self._given_key.shape[1]
        largest = self._new(*self._query.shape[:2], 0)
        cells = torch.empty(largest.shape, dtype=torch.int64, device=largest.device)
        for heads, start, _, low, weights in self._weight_blocks():
            keys = weights.shape[-1]
            weights.masked_fill_(left_out[low : low + keys], 0)
            best = weights.flatten(2)
            values, at = best.topk(min(number, best.shape[2]))
            if heads.start == 0:  # room for what the block's queries have, of all heads
                more = (0, values.shape[2])
                largest, cells = pad(largest, more), pad(cells, more)
            largest[heads, :, -values.shape[2] :] = values
            cells[heads, :, -at.shape[2] :] = (start + at // keys) * every + low + at % keys
            if heads.stop >= len(largest):
                order = largest.argsort(dim=-1, descending=True, stable=True)[..., :number]
                largest, cells = largest.gather(2, order), cells.gather(2, order)
        by_head = (tensor.flatten(0, 1).tolist() for tensor in (largest, cells))
        return [
            [(own, cell // every, cell % every) for own, cell in zip(*head, strict=True) if own > 0]
            for head in zip(*by_head, strict=True)
        ]

    def single(self, keys: Ints) -> Weights:
        chosen = self._key[:, self._index(keys)]
        scores = torch.einsum("kgqd,kqd->kgq", self._scaled(self._query), chosen)
        scores = self._scored(scores, slice(None), keys)
        return _numpy((scores - self._log_sums).exp2().flatten(0, 1))

    def sources(self, shares: Weights) -> Weights:
        given = self._tensor(shares)
        total = given.new_zeros(len(shares), self._given_key.shape[1])
        for _, start, stop, low, weights in self._weight_blocks():
            whole = weights.flatten(0, 1).sum(0)
            total[:, low : low + whole.shape[-1]] += given[:, start:stop] @ whole
        return _numpy(total / self.heads)

    def kept(self) -> Tensor:
        """Return the share (query, head, 1) of attention that keys get, and no learned sink."""
        if self._sink is None:
            return torch.ones((), device=self._query.device)
        share: Tensor = 1 - (self._sink[..., 0] - self._log_sums).exp2()
        return share.flatten(0, 1).T[..., None]

    def _on_pairs(self, weights: Tensor, equals: Equals, start: int, low: int) -> Tensor:
        """Return a block's sums over pairs of equal tokens, (…, group, 2 · orders, row)."""
        rows, keys = weights.shape[2:]
        ends = np.searchsorted(equals.pairs[0], np.array([start, start + rows], np.int32))
        query, key, order = equals.pairs[:, slice(*ends)].astype(np.int64)
        query -= start
        shape = *weights.shape[:2], len(query)
        cells = self._index(query * keys + key - low).expand(shape)
        into = self._index(order * rows + query).expand(shape)
        sums = weights.new_zeros(*shape[:2], 2 * equals.orders * rows)
        sums.scatter_add_(2, into, weights.flatten(2).gather(2, cells))
        return sums.unflatten(2, (-1, rows))

    def _add_groups(self, sums: Tensor, groups: Sequence[EqualGroups]) -> None:
        """Write the sums over large groups, (key/value head, group, 2, order, query)."""
        ends = self._given_key.shape[1] - 1
        for order, tokens in groups:
            size = tokens.shape[1]
            many = max(1, self._most_cells // (2 * self.heads * size**2))
            rows = max(1, self._most_cells // (2 * self.heads * size))
            for group in range(0, len(tokens), many):
                of_group = tokens[group : group + many]
                known = np.where(of_group < 0, ends + 1, of_group)
                keys = np.hstack([known, known + 1])
                key = self._at(self._key, 1, np.minimum(keys, ends)).transpose(-1, -2)
                for row in range(0, size, rows):
                    queries = of_group[:, row : row + rows]
                    shown = np.maximum(queries, 0)
                    scores = self._scaled(self._at(self._query, 2, shown)) @ key[:, None]
                    scores = self._scored(scores, slice(None), np.minimum(keys, ends)[:, None])
                    first = self.first[shown][..., None]
                    seen = (keys[:, None] < queries[..., None]) & (keys[:, None] >= first)
                    scores -= self._at(self._log_sums, 2, shown)[..., None]
                    scores.masked_fill_(~self._index(seen), _HIDDEN)
                    mass = scores.exp2_().unflatten(-1, (2, size)).sum(-1).movedim(-1, 2)
                    there = np.nonzero(queries >= 0)
                    at = self._index(order[group : group + many][there[0]])
                    sums[:, :, :, at, self._index(queries[there])] = mass[(..., *there)]

    def mixed(self, value: Tensor) -> Tensor:
        """Return the heads' outputs (query, head, dim) of values (key/value head, key, dim)."""
        wide = value.to(self._wide)
        outputs = wide.new_empty(*self._query.shape[:3], value.shape[-1])
        for heads, start, stop, low, weights in self._weight_blocks():
            seen = wide[heads, None, low : low + weights.shape[-1]]
            outputs[heads, :, start:stop] = weights @ seen
        return outputs.flatten(0, 1).transpose(0, 1).to(value.dtype)

    def _scaled(self, queries: Tensor) -> Tensor:
        """Return queries whose products with keys are logarithms to base 2."""
        return queries.to(self._wide) * self._scale

    def _scored(self, products: Tensor, heads: slice, keys: Any) -> Tensor:
        """Return scores from scaled products of queries and keys: capped, with each key's bias."""
        if self._cap is not None:
            products = products.div_(self._cap).tanh_().mul_(self._cap)
        if self._bias is None:
            return products
        if isinstance(keys, slice):
            return products.add_(self._bias[heads, :, None, keys])
        return products.add_(self._at(self._bias[heads], 2, keys))

    @property
    def _log_sums(self) -> Tensor:
        """Return each row's normaliser as a logarithm, (key/value head, group, query)."""
        if self._logarithms is None:
            logs = self._new(*self._query.shape[:3])
            for heads, start, stop, _, scores in self._blocks(1):
                most = scores.amax(-1, keepdim=True)
                sums = scores.sub_(most).exp2_().sum(-1, keepdim=True)
                logs[heads, :, start:stop] = (most + sums.log2())[..., 0]
            if self._sink is not None:
                logs = torch.logaddexp2(logs, self._sink[..., 0])
            self._logarithms = logs
        return self._logarithms

    def _blocks(
        self, buckets: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[slice, int, int, int, Tensor]]:
        """Yield (key/value heads, first query, past, first key, scores (heads, group, rows, keys)).

        buckets: the first key of a block is a multiple of it. start, stop: of the queries.
        """
        stop = len(self.first) if stop is None else stop
        groups, room = self._query.shape[1], self._room(stop - start)
        while start < stop:
            ends = np.maximum.accumulate(self.past[start : start + self._most_rows])
            wide = ends - self.first[start]
            area = groups * wide * np.arange(1, len(wide) + 1)
            rows = np.searchsorted(area, self._most_cells, "right")
            end = min(start + max(int(rows), 1), stop)
            first, past = self.first[start:end], self.past[start:end]
            low, high = int(first.min()) // buckets * buckets, int(past.max())
            edges = [slice(0, int(first.max()) - low), slice(int(past.min()) - low, high - low)]
            hidden = []
            for edge in edges:
                keys = np.arange(low + edge.start, low + edge.stop)
                unseen = (keys < first[:, None]) | (keys >= past[:, None])
                hidden.append((edge, self._index(unseen)))
            most = groups * (end - start)
            if self._on_gpu:  # the keys of a block are copied, too
                most = max(most, self._given_key.shape[2])
            several = max(1, self._most_cells // (most * (high - low)))
            for head in range(0, len(self._given_key), several):
                heads = slice(head, head + several)
                asking = self._scaled(self._query[heads, :, start:end]).flatten(1, 2)
                key = (self._given_key if self._on_gpu else self._key)[heads, low:high]
                out = _part(room, len(key), asking.shape[1], high - low)
                scores = torch.matmul(asking, key.to(self._wide).transpose(-1, -2), out=out)
                scores = scores.unflatten(1, (groups, end - start))
                scores = self._scored(scores, heads, slice(low, high))
                for edge, mask in hidden:
                    scores[..., edge].masked_fill_(mask, _HIDDEN)
                yield heads, start, end, low, scores
            start = end

    def _weight_blocks(self) -> Iterator[tuple[slice, int, int, int, Tensor]]:
        """Yield what ``_blocks`` does, with attention weights in place of scores."""
        logs = self._log_sums
        for heads, start, stop, low, scores in self._blocks(1):
            yield heads, start, stop, low, scores.sub_(logs[heads, :, start:stop, None]).exp2_()

    def _at(self, tensor: Tensor, axis: int, indices: Ints) -> Tensor:
        """Return the numbers at some indices of an axis, which gets the shape of ``indices``."""
        flat = tensor.index_select(axis, self._index(indices.ravel()))
        return flat.unflatten(axis, indices.shape)

    def _tensor(self, columns: Columns) -> Tensor:
        wide = np.float64 if self._wide == torch.float64 else np.float32
        return self._index(columns.astype(wide, copy=False))

    def _index(self, array: Any) -> Tensor:
        device = self._query.device
        return torch.from_numpy(array).to(device, non_blocking=device.type == "cuda")


def _part(room: Tensor | None, *shape: int) -> Tensor | None:
    """Return a tensor of this shape in some memory; None without it, or if it is too small."""
    size = math.prod(shape)
    return None if room is None or size > len(room) else room[:size].view(shape)


def _bucket_sums(weights: Tensor, size: int) -> Tensor:
    """Return the sums of weights (..., key) over each ``size`` keys; the last may be fewer."""
    whole = weights.shape[-1] // size * size
    sums: Tensor = weights[..., :whole].unflatten(-1, (-1, size)).sum(-1)
    if whole == weights.shape[-1]:
        return sums
    return torch.cat([sums, weights[..., whole:].sum(-1, keepdim=True)], -1)


def _numpy(tensor: Tensor) -> Weights:
    return tensor.cpu().numpy()


def _flat(sums: Tensor) -> Weights:
    """Return sums (key/value head, group, …) by head."""
    return _numpy(sums.flatten(0, 1))


def layer_of(
    call: AttentionCall,
    text: int,
    allowed: set[str],
    known: MutableMapping[Tensor, Masked],
    make: Callable[..., TorchLayer],
) -> TorchLayer:
    """Return the attention of one text in an attention call, for sums over its rows.

    text: its index in the call. allowed: the options that keep attention a plain softmax. known:
    a cache of the masks read so far. make: makes a ``TorchLayer`` or a layer of a subclass.
    Raises IncompleteError if the call does more than a softmax over ranges of keys.
    """
    extra = {name for name, value in call.options.items() if value is not None} - allowed
    heads, queries, width = call.query.shape[1:]
    shared, keys = call.key.shape[1:3]
    if extra - {SINKS, SOFTCAP} or heads % shared:
        raise IncompleteError
    bias = None
    if call.is_causal or call.mask is None:
        ranges = every_key(queries, keys, causal=call.is_causal)
    else:
        ranges, bias = read_mask(call.mask, queries, keys, known)
    scale = call.options.get("scaling")
    return make(
        call.query[text],
        call.key[text],
        width**-0.5 if scale is None else float(scale),
        ranges=ranges,
        sink=call.options.get(SINKS),
        cap=call.options.get(SOFTCAP),
        bias=bias,
    )


def every_key(queries: int, keys: int, *, causal: bool) -> Ranges:
    """Return the range of keys that each query sees without a mask: all, or if causal no later."""
    end = np.arange(1, queries + 1) if causal else np.full(queries, keys)
    return np.zeros(queries, np.int64), np.minimum(end, keys)


def read_mask(
    mask: Tensor, queries: int, keys: int, known: MutableMapping[Tensor, Masked]
) -> Masked:
    """Return the ranges of keys that a mask lets each query see, and what it adds to their scores.

    mask: (text, head, query, key), boolean, or added to the scores. Raises IncompleteError if the
    mask differs between texts, if it adds something else than a number for each head and key, if
    its heads see other keys, or the keys of some query are no range.
    """
    if mask not in known:
        if mask.ndim != 4 or mask.shape[3] < keys:
            raise IncompleteError
        if mask.shape[0] > 1 and not torch.equal(mask, mask[:1].expand_as(mask)):
            raise IncompleteError
        known[mask] = _masked(mask[0, ..., :keys].expand(-1, queries, -1))
    return known[mask]


def _masked(mask: Tensor) -> Masked:
    """Return the ranges of a mask that all texts share, and each key's bias for its last query."""
    heads, queries, keys = mask.shape
    first, past = np.empty(queries, np.int64), np.empty(queries, np.int64)
    rows = max(1, 2**24 // (heads * keys))
    adds = mask.dtype != torch.bool
    bias = torch.zeros(heads, keys, dtype=mask.dtype if adds else None, device=mask.device)
    for stop in range(queries, 0, -rows):
        start = max(stop - rows, 0)
        part = mask[:, start:stop]
        seen = part > HIDING if adds else part
        low = seen[0].int().argmax(-1)
        high = keys - seen[0].flip(-1).int().argmax(-1)
        is_range = torch.equal(seen[0].sum(-1), high - low)
        if not is_range or not torch.equal(seen, seen[:1].expand_as(seen)):
            raise IncompleteError
        if adds and stop == queries:  # keys that this row does not see get theirs below
            bias = torch.where(seen[:, -1], part[:, -1], 0)
        if adds and bool((seen & (part != bias[:, None])).any()):
            raise IncompleteError
        first[start:stop], past[start:stop] = low.cpu(), high.cpu()
    return (first, past), bias if bool(bias.any()) else None
