"""Triton kernels that sum over the rows of attention while its weights are in registers.

Each runs in Triton's interpreter too (``TRITON_INTERPRET=1`` before this module is imported), on a
processor and slowly. ``reduced_triton`` calls them and says what the sums are.

``sum_rows``    One sweep over the keys of a tile of queries, like flash attention (Dao et al. 2022)
                whose values are columns: the largest score so far, the normaliser, the entropy,
                products with columns, distances, and sums over buckets of keys.
``sum_equal``   The weight of each query on earlier tokens that equal it, and on those after them,
                in several orders of the tokens. Both axes are sorted by token, so that only tiles
                with equal tokens are computed.
``take_single`` The weight of each query on one key of its own.

Scores are to base 2. A weight that is not divided by the normaliser yet is e = 2^(s − m) ≤ 1, for
the largest score m so far. A product with columns takes e · 2^15 as two numbers of float16, a high
and a low part, which have 22 bits together; columns are parts in float16 as well.
"""

# ruff: noqa: N803 - what is known at compile time is written in capitals

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BITS = tl.constexpr(math.log2(math.e))
_NATURAL = tl.constexpr(math.log(2))
_UP = tl.constexpr(32768.0)
_HIDDEN = tl.constexpr(-1e30)
_NO_SCORE = tl.constexpr(-1e20)  # below every score, far above that of a hidden key
_FAR = tl.constexpr(2**30)

PLACE, NEXT, RESERVED = 0, 1, 2
"""Two columns that ``sum_rows`` needs: a key's place in its tile of keys, and 1.0 where it is in
the bucket after the one that its tile begins in. The caller's columns start at RESERVED."""

_MOST_PARTS = 64 - RESERVED
"""The parts of columns in one sweep over the keys; more have no room in the registers."""

_AT_ONCE = 8
"""So many columns are split at once: in float64 they would fill the memory of a long text."""

_PAD = 128
"""The keys of parts are filled up to a multiple of this, which every tile of keys divides."""


class ColumnParts(NamedTuple):
    """Some columns as parts @ weights, to be added to what other parts of them give.

    parts: float16 (key, part). weights: float32 (part, column). columns: which these are.
    """

    parts: Tensor
    weights: Tensor
    columns: slice


@triton.jit
def _scores(q, k, b_ptr, key, keys, cap, CAP: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr):
    """Return scores (query, key) that the caller multiplies with its scale.

    key: the indices of the keys. cap: the scale inside tanh. IN: the precision of the product;
    ``up`` in the interpreter, whose products do not know bfloat16.
    """
    if IN == "up":
        s = tl.dot(q.to(tl.float32), k.to(tl.float32))
    else:
        s = tl.dot(q, k, input_precision=IN)
    if CAP:  # tanh; the scale is then that of the capped score
        s = 1.0 - 2.0 / (1.0 + tl.exp2(s * (2.0 * cap * _BITS)))
    if BIAS:
        s += tl.load(b_ptr + key, mask=key < keys, other=0.0)[None, :]
    return s


@triton.jit
def _logarithm(x):
    """Return log2(x), −inf where rounding left nothing or less; NaN stays NaN."""
    return tl.where(x <= 0, float("-inf"), tl.log2(tl.where(x <= 0, 1.0, x)))


@triton.jit
def _add_tile(
    start, open_bucket, most, mass, heat, mixed, in_bucket, ahead, far,
    q, first, past, rows, there,
    k_ptr, k_step, c_ptr, b_ptr, log_ptr, queries, keys, bucket, scale, cap,
    MASKED: tl.constexpr, POOL: tl.constexpr, ALIGNED: tl.constexpr, FAR: tl.constexpr,
    CAP: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Return the sums after one more tile of keys, which begins at ``start``.

    MASKED: whether some query of the tile does not see some key of it.
    """
    key = start + tl.arange(0, KEYS)
    d = tl.arange(0, WIDE)
    address = k_ptr + key.to(tl.int64)[None, :] * k_step + d[:, None]
    if MASKED and WIDE != D:
        k = tl.load(address, mask=(key < keys)[None, :] & (d < D)[:, None], other=0.0)
    elif MASKED:
        k = tl.load(address, mask=(key < keys)[None, :], other=0.0)
    elif WIDE != D:
        k = tl.load(address, mask=(d < D)[:, None], other=0.0)
    else:
        k = tl.load(address)
    s = _scores(q, k, b_ptr, key, keys, cap, CAP=CAP, BIAS=BIAS, IN=IN)
    if MASKED:
        s = tl.where((key[None, :] >= first[:, None]) & (key[None, :] < past[:, None]), s, _HIDDEN)
    best = tl.maximum(most, tl.max(s, 1) * scale)
    x = s * scale - (best - 15.0)[:, None]
    big = tl.exp2(x)  # times 2^15, so that the low part of a weight is a normal number too
    r = tl.sum(big, 1)
    fade = tl.exp2(most - best)
    heat = fade * (heat + mass * (most - best)) + tl.sum(big * x, 1) - 15.0 * r
    mass = mass * fade + r
    high = big.to(tl.float16)
    c = tl.load(c_ptr + key[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    part = tl.dot(high, c)
    low = (big - high.to(tl.float32)).to(tl.float16)
    part = tl.dot(low, c, part)
    mixed = mixed * fade[:, None] + part
    # Distances are summed as such: in sums of positions, rounding hides the short ones.
    ahead = ahead * fade + (start - rows).to(tl.float32) * r
    if FAR:
        gap = tl.abs((key[None, :] - rows[:, None]).to(tl.float32))
        far = far * fade + tl.sum(big * gap, 1)
    if POOL:
        ends = start + KEYS >= (open_bucket + 1) * bucket  # the bucket ends in this tile
        if ALIGNED:
            later = tl.zeros_like(r)
        else:
            later = tl.sum(tl.where(tl.arange(0, COLUMNS)[None, :] == 1, part, 0.0), 1)
        in_bucket = in_bucket * fade + (r - later)
        if ends:  # as a logarithm, which a larger score later does not change
            log = _logarithm(in_bucket) + (best - 15.0)
            tl.store(log_ptr + open_bucket * queries + rows, log, mask=there)
        in_bucket = tl.where(ends, later, in_bucket)
        open_bucket += ends.to(tl.int32)
    return open_bucket, best, mass, heat, mixed, in_bucket, ahead, far


@triton.jit(do_not_specialize=["queries", "keys", "groups", "tiles", "bucket", "buckets", "begin"])
def sum_rows(
    q_ptr, k_ptr, c_ptr, first_ptr, past_ptr, sink_ptr, b_ptr,
    lse_ptr, total_ptr, entropy_ptr, largest_ptr, signed_ptr, far_ptr, mixed_ptr, log_ptr, pool_ptr,
    q_head, q_step, k_head, k_step, queries, keys, groups,
    tiles, bucket, buckets, begin, scale, cap,
    POOL: tl.constexpr, ALIGNED: tl.constexpr, FAR: tl.constexpr, SINK: tl.constexpr,
    LEFT: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, OF_QUERIES: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the sums over the rows of some heads; the grid is (tiles of queries, heads).

    begin: the first of the heads. groups: the heads that share keys. LEFT: whether a query does not
    see key 0. D: the size of a head, WIDE: filled up. OF_QUERIES: the most buckets of queries in a
    tile. QUERIES, KEYS: in a tile; no more keys than a bucket has.
    Of the heads of this call alone: log_ptr (head, bucket, query), for the kernel's own use;
    mixed_ptr (head, query, column); pool_ptr (head, tile, bucket of queries, bucket).
    """
    tile = tiles - 1 - tl.program_id(0)  # of causal attention the longest first
    place = tl.program_id(1).to(tl.int64)
    head = begin + place
    rows = tile * QUERIES + tl.arange(0, QUERIES)
    there = rows < queries
    first = tl.load(first_ptr + rows, mask=there, other=0)
    past = tl.load(past_ptr + rows, mask=there, other=0)
    start = tl.min(tl.where(there, first, _FAR), 0) // KEYS
    end = tl.cdiv(tl.max(past, 0), KEYS)
    seen_from = tl.minimum(tl.cdiv(tl.max(first, 0), KEYS), end)  # by all queries of the tile
    seen_to = tl.maximum(tl.min(tl.where(there, past, _FAR), 0) // KEYS, seen_from)
    d = tl.arange(0, WIDE)
    q_at = q_ptr + head * q_head + rows[:, None].to(tl.int64) * q_step + d[None, :]
    q = tl.load(q_at, mask=there[:, None] & (d < D)[None, :], other=0.0)
    k_ptr += (head // groups) * k_head
    b_ptr += head * keys
    log_ptr += place * buckets * queries

    most = tl.full([QUERIES], _NO_SCORE, tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    heat = tl.zeros([QUERIES], tl.float32)
    ahead = tl.zeros([QUERIES], tl.float32)
    far = tl.zeros([QUERIES], tl.float32)
    in_bucket = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, COLUMNS], tl.float32)
    open_bucket = (start * KEYS) // bucket
    for phase in tl.static_range(1 - LEFT, 3):
        if phase == 0:
            one, other = start, seen_from
        elif phase == 1:
            one, other = seen_from, seen_to
        else:
            one, other = seen_to, end
        for j in range(one, other):
            open_bucket, most, mass, heat, mixed, in_bucket, ahead, far = _add_tile(
                j * KEYS, open_bucket, most, mass, heat, mixed,
                in_bucket=in_bucket, ahead=ahead, far=far,
                q=q, first=first, past=past, rows=rows, there=there,
                k_ptr=k_ptr, k_step=k_step, c_ptr=c_ptr, b_ptr=b_ptr, log_ptr=log_ptr,
                queries=queries, keys=keys, bucket=bucket, scale=scale, cap=cap,
                MASKED=phase != 1, POOL=POOL, ALIGNED=ALIGNED, FAR=FAR, CAP=CAP, BIAS=BIAS, IN=IN,
                D=D, WIDE=WIDE, COLUMNS=COLUMNS, KEYS=KEYS,
            )  # fmt: skip

    mass, heat, mixed = mass / _UP, heat / _UP, mixed / _UP
    if SINK:
        sink = tl.load(sink_ptr + head)
        above = tl.maximum(most, sink)
        fade = tl.exp2(most - above)
        heat = fade * (heat + mass * (most - above))
        mass, ahead, far = mass * fade, ahead * fade, far * fade
        mixed = mixed * fade[:, None]
        every = mass + tl.exp2(sink - above)
        lse = above + tl.log2(every)
    else:
        every = tl.where(mass == 0, 1.0, mass)
        lse = most + tl.log2(every)
    column = tl.arange(0, COLUMNS)[None, :]
    ahead = ahead / _UP + tl.sum(tl.where(column == 0, mixed, 0.0), 1)
    entropy = (mass * tl.log2(every) - heat) / every * _NATURAL
    at = head * queries + rows
    tl.store(lse_ptr + at, lse, mask=there)
    tl.store(total_ptr + at, mass / every, mask=there)
    tl.store(entropy_ptr + at, tl.where(entropy <= 0, 0.0, entropy), mask=there)
    largest = tl.where(mass == 0, 0.0, tl.exp2(most - lse))  # a query that sees no key has none
    tl.store(largest_ptr + at, largest, mask=there)
    tl.store(signed_ptr + at, ahead / every, mask=there)
    if FAR:
        tl.store(far_ptr + at, far / _UP / every, mask=there)
    mixed_at = mixed_ptr + (place * queries + rows)[:, None] * COLUMNS + column
    tl.store(mixed_at, mixed / every[:, None], mask=there[:, None])
    if POOL:
        log = _logarithm(in_bucket) + (most - 15.0)
        if open_bucket < buckets:  # otherwise the last bucket ended with a tile
            tl.store(log_ptr + open_bucket * queries + rows, log, mask=there)
        tl.debug_barrier()
        of_row = rows // bucket - (tile * QUERIES) // bucket
        pool_ptr += (place * tiles + tile) * OF_QUERIES * buckets
        for b in range((start * KEYS) // bucket, tl.minimum(open_bucket + 1, buckets)):
            log = tl.load(log_ptr + b * queries + rows, mask=there, other=float("-inf"))
            weight = tl.exp2(log - lse)
            for part in tl.static_range(OF_QUERIES):
                in_part = tl.sum(tl.where(there & (of_row == part), weight, 0.0), 0)
                tl.store(pool_ptr + part * buckets + b, in_part)


@triton.jit(do_not_specialize=["queries", "keys", "groups", "orders"])
def sum_equal(
    q_ptr, k_ptr, b_ptr, lse_ptr, first_ptr, past_ptr, sorted_ptr, begin_ptr, out_ptr,
    q_head, q_step, k_head, k_step, queries, keys, groups, orders, scale, cap,
    CAP: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write to out_ptr (head, 2, order, query) each query's weight on earlier equal tokens.

    The second of the two is the weight on the tokens just after those. The grid is (tiles of
    queries, orders, heads). sorted_ptr, begin_ptr: (order, query), see ``Equals.sorted``.
    """
    order, head = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    there = i < queries
    query = tl.load(sorted_ptr + order * queries + i, mask=there, other=0)
    begin = tl.load(begin_ptr + order * queries + i, mask=there, other=_FAR)
    low = tl.min(begin, 0)
    high = tl.max(tl.where(begin < i, i, 0), 0)
    own = tl.zeros([QUERIES], tl.float32)
    after = tl.zeros([QUERIES], tl.float32)
    at = head * queries + query
    if high > 0:  # some token of the tile has an earlier one that equals it
        d = tl.arange(0, WIDE)
        first = tl.load(first_ptr + query)
        past = tl.load(past_ptr + query)
        lse = tl.load(lse_ptr + at)
        q_at = q_ptr + head * q_head + query[:, None].to(tl.int64) * q_step + d[None, :]
        q = tl.load(q_at, mask=there[:, None] & (d < D)[None, :], other=0.0)
        k_ptr += (head // groups) * k_head
        b_ptr += head * keys
        for start in range(low, high, KEYS):
            j = start + tl.arange(0, KEYS)
            earlier = tl.load(sorted_ptr + order * queries + j, mask=j < high, other=_FAR)
            same = (j[None, :] >= begin[:, None]) & (j[None, :] < i[:, None])
            for shift in tl.static_range(2):
                key = earlier + shift
                k_at = k_ptr + key[None, :].to(tl.int64) * k_step + d[:, None]
                k = tl.load(k_at, mask=(key < keys)[None, :] & (d < D)[:, None], other=0.0)
                s = _scores(q, k, b_ptr, key, keys, cap, CAP=CAP, BIAS=BIAS, IN=IN)
                s = s * scale - lse[:, None]
                seen = same & (key[None, :] < query[:, None])
                seen = seen & (key[None, :] >= first[:, None]) & (key[None, :] < past[:, None])
                weight = tl.sum(tl.exp2(tl.where(seen, s, _HIDDEN)), 1)
                if shift == 0:
                    own += weight
                else:
                    after += weight
    out_ptr += (head * 2 * orders + order) * queries
    tl.store(out_ptr + query, own, mask=there)
    tl.store(out_ptr + orders * queries + query, after, mask=there)


@triton.jit(do_not_specialize=["queries", "keys", "groups"])
def take_single(
    q_ptr, k_ptr, b_ptr, lse_ptr, key_ptr, out_ptr,
    q_head, q_step, k_head, k_step, queries, keys, groups, scale, cap,
    CAP: tl.constexpr, BIAS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr,
):  # fmt: skip
    """Write to out_ptr (head, query) each query's weight on the key in key_ptr (query,).

    The grid is (tiles of queries, heads).
    """
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    there = rows < queries
    d = tl.arange(0, WIDE)
    some = there[:, None] & (d < D)[None, :]
    key = tl.load(key_ptr + rows, mask=there, other=0)
    q_at = q_ptr + head * q_head + rows[:, None].to(tl.int64) * q_step + d[None, :]
    k_at = k_ptr + (head // groups) * k_head + key[:, None].to(tl.int64) * k_step + d[None, :]
    q = tl.load(q_at, mask=some, other=0.0).to(tl.float32)
    s = tl.sum(q * tl.load(k_at, mask=some, other=0.0).to(tl.float32), 1)
    if CAP:
        s = 1.0 - 2.0 / (1.0 + tl.exp2(s * (2.0 * cap * _BITS)))
    if BIAS:
        s += tl.load(b_ptr + head * keys + key)
    at = head * queries + rows
    lse = tl.load(lse_ptr + at, mask=there, other=0.0)
    tl.store(out_ptr + at, tl.exp2(s * scale - lse), mask=there)


def split_columns(columns: Tensor, bucket: int | None, tile: int) -> list[ColumnParts]:
    """Return columns (key, column) split into float16 parts, in batches for one kernel call each.

    A column is the sum of its parts: one for zeros and ones, up to three (33 bits) for others. A
    batch has at most ``_MOST_PARTS``, behind columns of the kernel's own. tile: keys in a tile.
    bucket: keys in a bucket of the sums over buckets, or None.
    """
    keys, many = columns.shape
    parts: list[tuple[int, float, Tensor]] = []
    for start in range(0, many if keys else 0, _AT_ONCE):
        rest = columns[:, start : start + _AT_ONCE].double()
        largest = rest.abs().amax(0).clamp(min=1e-300)
        unit = torch.exp2(torch.ceil(torch.log2(largest)) - 10)  # parts are at most 1,024
        whole = (rest == rest.round()).all(0)
        unit = torch.where(whole, unit.clamp(min=1.0), unit)
        for _ in range(3):
            part = (rest / unit).to(torch.float16)
            for column in part.any(0).nonzero()[:, 0].tolist():
                parts.append((start + column, float(unit[column]), part[:, column].clone()))
            rest = rest - part.double() * unit
            unit = unit * 2.0**-11
    parts.sort(key=lambda part: part[0])
    rows, sweeps, low = -(-keys // _PAD) * _PAD, [], 0
    place = torch.arange(rows, device=columns.device)
    for begin in range(0, max(len(parts), 1), _MOST_PARTS):
        some, others = parts[begin : begin + _MOST_PARTS], parts[begin + _MOST_PARTS :]
        high = some[-1][0] + 1 if others else many
        wide = max(16, triton.next_power_of_2(RESERVED + len(some)))
        found = torch.zeros(rows, wide, dtype=torch.float16, device=columns.device)
        mix = torch.zeros(wide, high - low, device=columns.device)
        found[:, PLACE] = (place % tile).half()
        if bucket is not None:
            begins = place - place % tile
            found[:, NEXT] = (place // bucket != begins // bucket).half()
        for at, (column, weight, part) in enumerate(some, RESERVED):
            found[:keys, at] = part
            mix[at, column - low] = weight
        sweeps.append(ColumnParts(found, mix, slice(low, high)))
        low = min(high, others[0][0]) if others else high
    return sweeps
