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

All take first: queries and keys, a bias of each key or None, their strides over heads and tokens,
how many queries, keys, and heads that share keys there are, the scale of the scores, and the scale
inside a softcap's tanh, or None. D is the size of a head, WIDE filled up to a power of two.
"""

# ruff: noqa: N803 - what is known at compile time is written in capitals

from __future__ import annotations

import math

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from attnviz.measures.rows import Columns

_BITS = tl.constexpr(math.log2(math.e))
_NATURAL = tl.constexpr(math.log(2))
_UP = tl.constexpr(32768.0)
_HIDDEN = tl.constexpr(-1e30)
_NO_SCORE = tl.constexpr(-1e20)  # below every score, far above that of a hidden key
_FAR = tl.constexpr(2**30)

PLACE, NEXT, RESERVED = 0, 1, 2
"""Two columns that ``sum_rows`` needs: a key's place in its tile of keys, and 1.0 where it is in
the bucket after the one that its tile begins in. The caller's columns start at RESERVED."""

MOST_PARTS = 64 - RESERVED
"""The parts of columns in one sweep over the keys; more have no room in the registers."""

_PAD = 128
"""The keys of parts are filled up to a multiple of this, which every tile of keys divides."""


@triton.jit
def _vectors(ptr, token, step, there, D: tl.constexpr, WIDE: tl.constexpr):
    """Return the queries or keys of some tokens, (token, WIDE); zeros where none is ``there``."""
    d = tl.arange(0, WIDE)
    at = ptr + token[:, None].to(tl.int64) * step + d[None, :]
    return tl.load(at, mask=there[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _capped(s, cap):
    """Return tanh(s · cap), by which the scale of a capped score is multiplied; s without a cap."""
    if cap is not None:
        s = 1.0 - 2.0 / (1.0 + tl.exp2(s * (2.0 * cap * _BITS)))
    return s


@triton.jit
def _scores(q, k, b_ptr, key, keys, cap, IN: tl.constexpr):
    """Return scores (query, key) that the caller multiplies with its scale.

    key: the indices of the keys. cap: the scale inside tanh. IN: the precision of the product;
    ``up`` in the interpreter, whose products do not know bfloat16.
    """
    if IN == "up":
        s = tl.dot(q.to(tl.float32), k.to(tl.float32))
    else:
        s = tl.dot(q, k, input_precision=IN)
    s = _capped(s, cap)
    if b_ptr is not None:
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
    MASKED: tl.constexpr, ALIGNED: tl.constexpr, FAR: tl.constexpr, IN: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Return the sums after one more tile of keys, which begins at ``start``.

    MASKED: whether some query of the tile does not see some key of it.
    """
    key = start + tl.arange(0, KEYS)
    d = tl.arange(0, WIDE)
    address = k_ptr + key.to(tl.int64)[None, :] * k_step + d[:, None]
    if MASKED:
        k = tl.load(address, mask=(key < keys)[None, :] & (d < D)[:, None], other=0.0)
    elif WIDE != D:
        k = tl.load(address, mask=(d < D)[:, None], other=0.0)
    else:
        k = tl.load(address)
    s = _scores(q, k, b_ptr, key, keys, cap, IN=IN)
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
    if log_ptr is not None:
        ends = start + KEYS >= (open_bucket + 1) * bucket  # the bucket ends in this tile
        if ALIGNED:
            later = tl.zeros_like(r)
        else:
            later = tl.sum(tl.where(tl.arange(0, COLUMNS)[None, :] == 1, part, 0.0), 1)
        in_bucket = in_bucket * fade + (r - later)
        if ends:  # as a logarithm, which a larger score later does not change
            log = _logarithm(in_bucket) + (best - 15.0)
            tl.store(log_ptr + open_bucket.to(tl.int64) * queries + rows, log, mask=there)
        in_bucket = tl.where(ends, later, in_bucket)
        open_bucket += ends.to(tl.int32)
    return open_bucket, best, mass, heat, mixed, in_bucket, ahead, far


@triton.jit(do_not_specialize=["queries", "keys", "groups", "bucket", "begin"])
def sum_rows(
    q_ptr, k_ptr, b_ptr, q_head, q_step, k_head, k_step, queries, keys, groups, scale, cap,
    c_ptr, first_ptr, past_ptr, sink_ptr,
    lse_ptr, total_ptr, entropy_ptr, largest_ptr, signed_ptr, far_ptr, mixed_ptr, log_ptr, pool_ptr,
    bucket, begin,
    ALIGNED: tl.constexpr, LEFT: tl.constexpr, IN: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, OF_QUERIES: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the sums over the rows of some heads; the grid is (tiles of queries, heads).

    begin: the first of the heads. LEFT: whether a query does not see key 0. OF_QUERIES: the most
    buckets of queries in a tile. QUERIES, KEYS: in a tile; no more keys than a bucket has.
    A pointer is None where there are no sinks, or where no buckets or distances are asked for.
    Of the heads of this call alone: log_ptr (head, bucket, query), for the kernel's own use;
    mixed_ptr (head, query, column); pool_ptr (head, tile, bucket of queries, bucket).
    """
    tiles, buckets = tl.cdiv(queries, QUERIES), tl.cdiv(keys, bucket)
    tile = tiles - 1 - tl.program_id(0)  # of causal attention the longest first
    slot = tl.program_id(1).to(tl.int64)
    head = begin + slot
    rows = tile * QUERIES + tl.arange(0, QUERIES)
    there = rows < queries
    first = tl.load(first_ptr + rows, mask=there, other=0)
    past = tl.load(past_ptr + rows, mask=there, other=0)
    start = tl.min(tl.where(there, first, _FAR), 0) // KEYS
    end = tl.cdiv(tl.max(past, 0), KEYS)
    seen_from = tl.minimum(tl.cdiv(tl.max(first, 0), KEYS), end)  # by all queries of the tile
    seen_to = tl.maximum(tl.min(tl.where(there, past, _FAR), 0) // KEYS, seen_from)
    q = _vectors(q_ptr + head * q_head, rows, q_step, there, D=D, WIDE=WIDE)
    k_ptr += (head // groups) * k_head
    if b_ptr is not None:
        b_ptr += head * keys
    if log_ptr is not None:
        log_ptr += slot * buckets * queries

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
            low, high = start, seen_from
        elif phase == 1:
            low, high = seen_from, seen_to
        else:
            low, high = seen_to, end
        for j in range(low, high):
            open_bucket, most, mass, heat, mixed, in_bucket, ahead, far = _add_tile(
                j * KEYS, open_bucket, most, mass, heat, mixed,
                in_bucket=in_bucket, ahead=ahead, far=far,
                q=q, first=first, past=past, rows=rows, there=there,
                k_ptr=k_ptr, k_step=k_step, c_ptr=c_ptr, b_ptr=b_ptr, log_ptr=log_ptr,
                queries=queries, keys=keys, bucket=bucket, scale=scale, cap=cap,
                MASKED=phase != 1, ALIGNED=ALIGNED, FAR=far_ptr is not None, IN=IN,
                D=D, WIDE=WIDE, COLUMNS=COLUMNS, KEYS=KEYS,
            )  # fmt: skip

    mass, heat, mixed = mass / _UP, heat / _UP, mixed / _UP
    if sink_ptr is not None:
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
    if far_ptr is not None:
        tl.store(far_ptr + at, far / _UP / every, mask=there)
    mixed_at = mixed_ptr + (slot * queries + rows)[:, None] * COLUMNS + column
    tl.store(mixed_at, mixed / every[:, None], mask=there[:, None])
    if log_ptr is not None:
        log = _logarithm(in_bucket) + (most - 15.0)
        if open_bucket < buckets:  # otherwise the last bucket ended with a tile
            tl.store(log_ptr + open_bucket.to(tl.int64) * queries + rows, log, mask=there)
        tl.debug_barrier()
        of_row = rows // bucket - (tile * QUERIES) // bucket
        pool_ptr += (slot * tiles + tile) * OF_QUERIES * buckets
        first_bucket = (start * KEYS) // bucket
        log_at = log_ptr + first_bucket.to(tl.int64) * queries + rows
        for b in range(first_bucket, tl.minimum(open_bucket + 1, buckets)):
            weight = tl.exp2(tl.load(log_at, mask=there, other=float("-inf")) - lse)
            log_at += queries
            for part in tl.static_range(OF_QUERIES):
                in_part = tl.sum(tl.where(there & (of_row == part), weight, 0.0), 0)
                tl.store(pool_ptr + part * buckets + b, in_part)


@triton.jit(do_not_specialize=["queries", "keys", "groups", "orders"])
def sum_equal(
    q_ptr, k_ptr, b_ptr, q_head, q_step, k_head, k_step, queries, keys, groups, scale, cap,
    lse_ptr, first_ptr, past_ptr, sorted_ptr, begin_ptr, out_ptr, orders,
    IN: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write to out_ptr (head, 2, order, query) each query's weight on earlier equal tokens.

    The second of the two is the weight on the tokens just after those. The grid is (tiles of
    queries, orders, heads). sorted_ptr, begin_ptr: (order, query), see ``Equals.sorted``.
    """
    order, head = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    there = i < queries
    sorted_ptr += order * queries
    query = tl.load(sorted_ptr + i, mask=there, other=0)
    begin = tl.load(begin_ptr + order * queries + i, mask=there, other=_FAR)
    low = tl.min(begin, 0)
    high = tl.max(tl.where(begin < i, i, 0), 0)
    own = tl.zeros([QUERIES], tl.float32)
    after = tl.zeros([QUERIES], tl.float32)
    if high > 0:  # some token of the tile has an earlier one that equals it
        first = tl.load(first_ptr + query)
        past = tl.load(past_ptr + query)
        lse = tl.load(lse_ptr + head * queries + query)
        q = _vectors(q_ptr + head * q_head, query, q_step, there, D=D, WIDE=WIDE)
        d = tl.arange(0, WIDE)
        k_ptr += (head // groups) * k_head
        if b_ptr is not None:
            b_ptr += head * keys
        for start in range(low, high, KEYS):
            j = start + tl.arange(0, KEYS)
            earlier = tl.load(sorted_ptr + j, mask=j < high, other=_FAR)
            same = (j[None, :] >= begin[:, None]) & (j[None, :] < i[:, None])
            for shift in tl.static_range(2):
                key = earlier + shift
                k_at = k_ptr + key[None, :].to(tl.int64) * k_step + d[:, None]
                k = tl.load(k_at, mask=(key < keys)[None, :] & (d < D)[:, None], other=0.0)
                s = _scores(q, k, b_ptr, key, keys, cap, IN=IN) * scale - lse[:, None]
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
    q_ptr, k_ptr, b_ptr, q_head, q_step, k_head, k_step, queries, keys, groups, scale, cap,
    lse_ptr, key_ptr, out_ptr,
    D: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Write to out_ptr (head, query) each query's weight on the key in key_ptr (query,).

    The grid is (tiles of queries, heads).
    """
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    there = rows < queries
    key = tl.load(key_ptr + rows, mask=there, other=0)
    q = _vectors(q_ptr + head * q_head, rows, q_step, there, D=D, WIDE=WIDE)
    k = _vectors(k_ptr + (head // groups) * k_head, key, k_step, there, D=D, WIDE=WIDE)
    s = _capped(tl.sum(q.to(tl.float32) * k.to(tl.float32), 1), cap)
    if b_ptr is not None:
        s += tl.load(b_ptr + head * keys + key)
    at = head * queries + rows
    lse = tl.load(lse_ptr + at, mask=there, other=0.0)
    tl.store(out_ptr + at, tl.exp2(s * scale - lse), mask=there)


def split_columns(
    columns: Columns, bucket: int | None, tile: int
) -> list[tuple[NDArray[np.float16], NDArray[np.float32]]]:
    """Return columns (key, column) as Σ parts @ weights, a pair for each sweep over the keys.

    Parts are float16 (key, part), behind two of the kernel's own; weights are float32 (part,
    column). A column of zeros and ones is one part, others are up to three (33 bits). bucket: keys
    in a bucket of the sums over buckets, or None. tile: keys in a tile.
    """
    keys, many = columns.shape
    parts: list[tuple[int, float, NDArray[np.float16]]] = []
    for at in range(many if keys else 0):
        rest = columns[:, at].astype(np.float64)
        unit = 2.0 ** (np.ceil(np.log2(np.abs(rest).max().clip(1e-300))) - 10)  # up to 1,024 units
        unit = max(unit, 1.0) if (rest == np.rint(rest)).all() else unit
        for _ in range(3):
            if rest.any():
                part = (rest / unit).astype(np.float16)
                parts.append((at, unit, part))
                rest -= part.astype(np.float64) * unit
                unit /= 2**11
    sweeps, token = [], np.arange(-(-keys // _PAD) * _PAD)
    for begin in range(0, max(len(parts), 1), MOST_PARTS):
        some = parts[begin : begin + MOST_PARTS]
        # There is room for one more column, so that a trial's has the same variant of the kernel.
        wide = min(64, max(16, triton.next_power_of_2(RESERVED + len(some) + 1)))
        table = np.zeros((len(token), wide), np.float16)
        weights = np.zeros((wide, many), np.float32)
        table[:, PLACE] = token % tile
        if bucket is not None:
            table[:, NEXT] = token // bucket != (token - token % tile) // bucket
        for number, (at, unit, part) in enumerate(some, RESERVED):
            table[:keys, number], weights[number, at] = part, unit
        sweeps.append((table, weights))
    return sweeps
