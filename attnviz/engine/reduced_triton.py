"""Sums over the attention rows of a layer on a GPU, by the kernels of ``sums_kernels``.

No block of weights is ever in memory, and a window skips what it hides. The first layer of each
kind in a pass is compared with the blocks of ``TorchLayer`` in a few rows. Where they differ, or
Triton cannot compile or run the kernels, the process goes on with blocks, and a note says so.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial, wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
import triton
from torch import Tensor

from attnviz.engine.observer import note_of_runs
from attnviz.engine.reduced_torch import TorchLayer
from attnviz.engine.sums_kernels import split_columns, sum_equal, sum_rows, take_single
from attnviz.errors import UsageError
from attnviz.measures.reduced import Equals, Reduced
from attnviz.measures.rows import Columns
from attnviz.models.memory import require_room
from attnviz.progress import current_watch
from attnviz.records import Ints

_BITS = math.log2(math.e)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 256
"""The largest size of a head whose queries and keys fit the memory of a multiprocessor."""

_LEAST_BUCKET = 16
"""A tile has no more keys than a bucket, and a product of tensor cores at least so many."""

_TRIAL_ROWS = 4
"""So many queries at the start, in the middle and at the end are compared with the blocks."""

_TOLERANCE = 2e-4
"""How far the kernel may be from the blocks, as a share of the largest number, or of one."""

_ROUNDING = 2.0**-21
"""Both round scores to float32: so large is the error of a weight, as a share of the score."""

_SLOW = 2.0
"""Seconds after which the compiling of a kernel is mentioned."""

_ERRORS = triton.runtime.errors
_UNFIT = (_ERRORS.OutOfResources, getattr(_ERRORS, "PTXASError", _ERRORS.OutOfResources))
"""What Triton raises if a tile is too large for the card; older releases have one error alone."""

_NO_SCORE = -1e19
"""A sum of logarithms below it is that of a query without keys."""

_NARROW = 128
"""For larger heads, and for float32, the registers do not suffice for the first of the tiles."""


class Tile(NamedTuple):
    """The queries and keys that a program computes at once, and how; see ``triton.Config``.

    registers: the most of a thread; None leaves it to the compiler. With 128, two programs of 8
    warps share a multiprocessor.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


TILES = (Tile(128, 64, 8, 3, 128), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 1))
"""The fastest first, measured on an H200; a card with less shared memory takes a later one."""

EQUAL_TILES = (Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(16, 16, 4, 2))
"""The same for equal tokens."""


_Method = TypeVar("_Method", bound=Callable[..., Any])


class KernelRun:
    """What the layers of one pass share: a cache of facts about the texts, on the GPU.

    tiles, equal_tiles: see ``TILES``; the interpreter takes small ones.
    """

    def __init__(
        self, tiles: Sequence[Tile] = TILES, equal_tiles: Sequence[Tile] = EQUAL_TILES
    ) -> None:
        self.tiles, self.equal_tiles = tiles, equal_tiles
        self._kept: dict[Any, tuple[Any, Any]] = {}

    def kept(self, key: Any, owner: Any, make: Callable[[], Any]) -> Any:
        """Return the cached result of ``make`` for ``key``, computed at the key's first use.

        owner: the object whose ``id`` is in the key, kept alive so that no other gets this id.
        """
        if key not in self._kept:
            self._kept[key] = owner, make()
        return self._kept[key][1]


_refused: list[str] = []
"""Why this process takes blocks where it could have taken the kernels, at most one sentence."""

_trusted: set[Any] = set()
"""The kinds of sums that this process has compared with the blocks."""

_too_large: set[Any] = set()
"""The kinds of sums with tiles that this card has no room for."""


def _or_blocks(method: _Method) -> _Method:
    """Let blocks answer in the place of a ``method`` where the kernels do not run, from then on."""

    @wraps(method)
    def answer(layer: TritonLayer, *given: Any, **options: Any) -> Any:
        if layer._usable:
            try:
                result = method(layer, *given, **options)
                if not _refused:  # meanwhile, by another method
                    return result
            except (torch.OutOfMemoryError, UsageError):
                raise
            except Exception as error:  # noqa: BLE001 - Triton's compiler and driver raise many kinds
                layer._logarithms = None
                if not _refused:
                    line = next(iter(str(error).strip().splitlines()), "")
                    why = f"{type(error).__name__}: {line[:80]}"
                    _refused.append(
                        "attention is summed in blocks, which is slower: the kernel does not run "
                        f"on this device ({why})"
                    )
                    note_of_runs(_refused[0])
        return getattr(TorchLayer, method.__name__)(layer, *given, **options)

    return cast("_Method", answer)


class TritonLayer(TorchLayer):
    """The attention of one layer over one text on a GPU; the arguments are those of ``TorchLayer``.

    run: is shared by the layers of one pass. The sums stay on the GPU, all but the pooled ones.
    """

    def __init__(
        self, query: Tensor, key: Tensor, scale: float, *, run: KernelRun, **options: Any
    ) -> None:
        super().__init__(query, key, scale, **options)
        self._run, self._alike = run, partial(TritonLayer, run=run)
        *_, sink, cap, bias = self._given
        # A head's vector must be one stretch of memory.
        self._asking, self._given_key = (
            given if given.stride(-1) == 1 else given.contiguous() for given in (query, key)
        )
        # With a cap c, a score is c · tanh(q·k · scale / c): the kernel's scale is then c.
        outer = float(scale if cap is None else cap)
        self._factors = outer * _BITS, None if cap is None else float(scale) / outer
        self._sinks = None if sink is None else (sink.float().reshape(-1) * _BITS).contiguous()
        self._biases: Tensor | None = None
        if bias is not None:
            self._biases = (bias.float().expand(self.heads, -1) / outer).contiguous()
        narrow = query.dtype in _DTYPES and query.dtype == key.dtype
        self._fits = narrow and query.shape[-1] <= _WIDEST and outer > 0

    @_or_blocks
    def reduced(
        self,
        columns: Columns,
        buckets: int | None = None,
        equals: Equals | None = None,
        *,
        far: bool = False,
    ) -> Reduced:
        if buckets is not None and buckets < _LEAST_BUCKET:
            self._fits = False  # the layer's other answers are arrays, too
            return super().reduced(columns, buckets, equals, far=far)
        kind = (self._kind, columns.shape[1], buckets, equals is None, far)
        if kind in _trusted:
            return self._summed(columns, buckets, equals, far)
        columns = np.column_stack([columns, np.ones(len(columns))])
        sums = self._summed(columns, buckets, equals, far)
        self._compare(sums, columns, buckets, equals)
        _trusted.add(kind)
        return sums._replace(mixed=sums.mixed[..., :-1])

    @_or_blocks
    def single(self, keys: Ints) -> Any:
        logs = self._log_sums
        weights = torch.empty(self.heads, len(keys), device=logs.device)
        chosen = keys.astype(np.int32)
        key = (chosen.tobytes(), logs.device)
        indices = self._run.kept(key, None, lambda: self._index(chosen))
        grid = -(-len(keys) // 32), self.heads
        self._launch(take_single, grid, logs, indices, weights, QUERIES=32, num_warps=4)
        return weights

    @_or_blocks
    def strongest(self, number: int, hidden: Any) -> list[list[tuple[float, int, int]]]:
        """Return each head's largest weights as (weight, query, key), the largest first.

        number: how many. hidden: (key,), keys to leave out. Only the ``number`` rows of a head with
        the largest maxima are computed, since no others can have one of these weights.
        """
        logs = self._log_sums.flatten(0, 1)
        query, key, scale, sink, cap, bias = self._given
        none = logs.new_zeros(1, len(hidden)) if bias is None else bias.float()
        shown: Any = self._alike(
            query,
            key,
            scale,
            ranges=(self.first, self.past),
            sink=sink,
            cap=cap,
            bias=none.masked_fill(self._index(hidden), -1e30),
        )
        largest = shown._summed(np.empty((len(hidden), 0)), None, None, False).largest
        largest *= (shown._log_sums.flatten(0, 1) - logs).exp2()
        rows = largest.topk(min(number, largest.shape[1]), -1).indices.sort(-1).values.cpu().numpy()
        by_head: list[list[tuple[float, int, int]]] = []
        for head, at in enumerate(rows):
            (pairs,) = self._of(range(head, head + 1), TorchLayer, at).strongest(number, hidden)
            by_head.append([(weight, int(at[row]), key) for weight, row, key in pairs])
        return by_head

    @property
    def _usable(self) -> bool:
        return self._fits and not _refused

    @property
    def _log_sums(self) -> Tensor:
        if self._logarithms is None and self._usable:
            self.reduced(np.empty((self._given_key.shape[1], 0)))
        return super()._log_sums

    # How the kernels are called ------------------------------------------------------------------

    @cached_property
    def _kind(self) -> tuple[Any, ...]:
        """Return what decides which variant of the kernels runs."""
        given = self._query.dtype, self._query.shape[-1], self._query.shape[1]
        marks = self._sinks is None, self._cap is None, self._biases is None
        return (*given, *marks, self._ranges[2], self._query.device)

    @cached_property
    def _ranges(self) -> tuple[Tensor, Tensor, bool]:
        """Return the first key of each query, and the one past the last, both int32 on the GPU.

        The third says whether some query does not see key 0.
        """

        def make() -> tuple[Tensor, Tensor, bool]:
            ends = (self._index(end.astype(np.int32)) for end in (self.first, self.past))
            return next(ends), next(ends), bool(self.first.any())

        device = self._query.device
        key = (device, self.first.tobytes(), self.past.tobytes())
        return self._run.kept(key, None, make)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
        """Run a kernel on the card of the queries; mention it if it is compiled for long.

        given: the kernel's own arguments, behind those that all have.
        """
        query, key, groups = self._asking, self._given_key, self._query.shape[1]
        dim, device = query.shape[2], query.device
        options |= {"D": dim, "WIDE": max(16, triton.next_power_of_2(dim))}
        steps = *query.stride()[:2], *key.stride()[:2]
        sizes = *steps, query.shape[1], key.shape[1], groups, *self._factors
        on_card = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with on_card, _mentioned((kernel, self._kind, *options.values())):
            kernel[grid](query, key, self._biases, *sizes, *given, **options)

    def _by_tiles(self, tile: Tile) -> dict[str, Any]:
        """Return the compile-time constants of a kernel that computes tiles."""
        hip, device = bool(torch.version.hip), self._query.device.type
        narrow = self._query.dtype != torch.float32
        options: dict[str, Any] = {"QUERIES": tile.queries, "KEYS": tile.keys}
        options |= {"num_warps": tile.warps, "num_stages": tile.stages}
        options["IN"] = "up" if device == "cpu" else "ieee" if narrow or hip else "tf32x3"
        if tile.registers and device == "cuda" and not hip:
            options["maxnreg"] = tile.registers
        return options

    def _fitting(self, of: Any, tiles: Sequence[Tile], run: Callable[[Tile], Any]) -> Any:
        """Return what ``run`` returns for the first tile that fits the card's memory and registers.

        A tile that does not is not tried again: ptxas takes seconds to refuse one. of: the kernel,
        with the compile-time constants that its registers depend on.
        """
        if self._query.dtype == torch.float32 or self._asking.shape[2] > _NARROW:
            tiles = tiles[1:] or tiles
        for tile in tiles[:-1]:
            if (of, self._kind, tile) not in _too_large:
                try:
                    return run(tile)
                except _UNFIT:
                    _too_large.add((of, self._kind, tile))
        return run(tiles[-1])

    def _summed(
        self, columns: Columns, bucket: int | None, equals: Equals | None, far: bool
    ) -> Reduced:
        """Return the sums by the kernels, without a comparison."""
        tiles = self._run.tiles
        # A tile has no more keys than a bucket.
        most = tiles[0].keys if bucket is None else 1 << bucket.bit_length() - 1
        sums: Reduced = self._fitting(
            ("rows", columns.shape[1]),
            [tile._replace(keys=min(tile.keys, most)) for tile in tiles],
            lambda tile: self._of_rows(columns, bucket, far, tile),
        )
        if equals is None:
            return sums
        run = partial(self._on_equal, equals)
        return sums._replace(equal=self._fitting("equal", self._run.equal_tiles, run))

    def _of_rows(self, columns: Columns, bucket: int | None, far: bool, tile: Tile) -> Reduced:
        heads, queries, _ = self._asking.shape
        keys, device = self._given_key.shape[1], self._query.device
        of = id(columns) if columns.shape[1] else -keys
        sweeps: list[tuple[Tensor, Tensor]] = self._run.kept(
            (of, bucket, tile.keys, device),
            columns,
            lambda: [
                (self._index(parts), self._index(weights))
                for parts, weights in split_columns(columns, bucket, tile.keys)
            ],
        )
        require_room(  # a text of code has hundreds of kinds of marks
            f"sums over the attention of {heads} heads with {columns.shape[1]} columns take",
            2 * 4 * heads * queries * columns.shape[1],  # what is read of them is a copy
            "shorten the text",
            device,
        )
        new = partial(torch.zeros if device.type == "cpu" else torch.empty, device=device)
        logs, total, entropy, largest, signed = (new(heads, queries) for _ in range(5))
        farther = new(heads, queries) if far else None
        mixed = torch.zeros(heads, queries, columns.shape[1], device=device)
        count, buckets, of_queries = -(-queries // tile.queries), 0, 1
        if bucket is not None:
            buckets = -(-keys // bucket)
            # A power of two, so that few variants of the kernel are compiled.
            of_queries = triton.next_power_of_2((tile.queries - 1) // bucket + 2)
        width = sweeps[0][0].shape[1]
        many = max(1, self._at_once.sum_bytes // (4 * queries * (width + buckets)))
        first, past, left = self._ranges
        pooled = []
        for begin in range(0, heads, many):
            some = min(many, heads - begin)
            for at, (parts, weights) in enumerate(sweeps):
                raw, scratch, in_tiles = new(some, queries, parts.shape[1]), None, None
                if bucket is not None and at == 0:  # the other sweeps add to the columns alone
                    scratch = new(some, buckets, queries)
                    in_tiles = torch.zeros(some, count, of_queries, buckets, device=device)
                self._launch(
                    sum_rows,
                    (count, some),
                    *(parts, first, past, self._sinks, logs, total, entropy, largest, signed),
                    *(farther, raw, scratch, in_tiles, bucket or 1, begin),
                    ALIGNED=bucket is None or bucket % tile.keys == 0,
                    LEFT=int(left),
                    COLUMNS=parts.shape[1],
                    OF_QUERIES=of_queries,
                    **self._by_tiles(tile),
                )
                mixed[begin : begin + some] += raw @ weights
                if bucket is not None and in_tiles is not None:
                    pooled.append(_pooled(in_tiles, bucket, tile.queries, queries))
        self._logarithms = logs.unflatten(0, self._query.shape[:2])
        whole = torch.cat(pooled).cpu().numpy() if pooled else None
        sums: list[Any] = [mixed, total, entropy, largest, signed, farther, whole]
        return Reduced(*sums)

    def _on_equal(self, equals: Equals, tile: Tile) -> Any:
        heads, queries, _ = self._asking.shape
        device, logs = self._query.device, self._log_sums
        places, begins = self._run.kept(
            (id(equals), device),
            equals,
            lambda: tuple(self._index(own.astype(np.int32)) for own in equals.sorted),
        )
        sums = torch.empty(heads, 2, equals.orders, queries, device=device)
        self._launch(
            sum_equal,
            (-(-queries // tile.queries), equals.orders, heads),
            *(logs, *self._ranges[:2], places, begins, sums, equals.orders),
            **self._by_tiles(tile),
        )
        return sums

    # The comparison ------------------------------------------------------------------------------

    def _compare(
        self, reduced: Reduced, columns: Columns, bucket: int | None, equals: Equals | None
    ) -> None:
        """Raise ArithmeticError unless some rows of the sums are those of the blocks.

        columns: the last is one of ones, whose product is the total in all rows.
        """
        queries, keys = self._asking.shape[1], self._given_key.shape[1]
        mixing, places = self._tensor(columns), self._index(np.arange(keys))
        logs, tokens, last = self._log_sums, max(queries, keys), self.past - 1
        scores = logs.abs().nan_to_num(0)
        rounding = _ROUNDING * torch.where(scores < -_NO_SCORE, scores, 0).amax().clamp(min=2)
        usual = rounding.clamp(min=_TOLERANCE)
        sums: Any = reduced
        single, excess = self.single(last), [_excess(sums.mixed[..., -1], sums.total, usual)]
        for middle in {0, queries // 2, queries - 1}:
            start = max(min(middle, queries - _TRIAL_ROWS), 0)
            rows = slice(start, min(start + _TRIAL_ROWS, queries))
            weights = self._weights(rows.start, rows.stop).flatten(0, 1)
            own = self._index(np.arange(rows.start, rows.stop))[:, None]
            of_last = self._index(last[rows])[None, :, None].expand(len(weights), -1, 1)
            pairs = [
                (sums.mixed, weights @ mixing),
                (sums.total, weights.sum(-1)),
                (sums.entropy, -torch.xlogy(weights, weights).sum(-1)),
                (sums.largest, weights.amax(-1)),
                (single, weights.gather(2, of_last)[..., 0]),
            ]
            excess += [_excess(ours[:, rows], theirs, usual) for ours, theirs in pairs]
            gaps = places - own
            for ours, gap in ((sums.signed, gaps), (sums.far, gaps.abs())):
                if ours is not None:  # as shares of the text
                    theirs = (weights * gap).sum(-1)
                    excess.append(_excess(ours[:, rows] / tokens, theirs / tokens, rounding))
            for order, ids in enumerate([] if equals is None else self._index(equals.ids)):
                for after in range(2):
                    same = (ids[own] == ids.roll(after)) & (places >= after) & (places < own)
                    theirs = (weights * same).sum(-1)
                    excess.append(_excess(sums.equal[:, after, order, rows], theirs, usual))
        if bucket is not None:
            excess += self._of_pooled(sums, bucket, usual)
        if not float(torch.stack(excess).amax()) <= 1:
            raise ArithmeticError("it gives other sums than the blocks")

    def _of_pooled(self, sums: Any, bucket: int, tolerance: Tensor) -> list[Tensor]:
        """Compare pooled sums with those of the rows: their weight, and where it stands."""
        pooled, own = map(self._index, (sums.pooled, np.arange(sums.total.shape[1])))
        by_row = torch.stack([sums.total, sums.signed + own * sums.total]).double()
        whole = by_row.new_zeros(2, *pooled.shape[:2]).index_add_(2, own // bucket, by_row)
        starts = (pooled.double() * own[: pooled.shape[2]] * bucket).sum(-1)
        inside = (whole[1] - starts) / (whole[0] * bucket)  # 0 to 1: where in the mean bucket
        beyond = ((inside < -_TOLERANCE) | (inside > 1)).any()
        return [_excess(pooled.sum(-1), whole[0], tolerance), 2 * beyond.to(tolerance)]


def _excess(ours: Tensor, theirs: Tensor, tolerance: Tensor) -> Tensor:
    """Return the largest distance in tolerances, which are a share of the largest number or of one.

    It stays on the device. It is NaN where one alone is.
    """
    if not theirs.numel():
        return tolerance.new_zeros(())
    apart = (ours - theirs).masked_fill_(ours.isnan() & theirs.isnan(), 0).abs_().amax()
    return apart / (tolerance * theirs.nan_to_num(0).abs_().amax().clamp(min=1))


def _pooled(in_tiles: Tensor, bucket: int, tile: int, queries: int) -> Tensor:
    """Return sums by bucket of queries, from sums (head, tile, bucket of queries, bucket)."""
    _, tiles, parts, _ = in_tiles.shape
    device = in_tiles.device
    begins = torch.arange(tiles, device=device) * tile // bucket
    of_queries = (begins[:, None] + torch.arange(parts, device=device)).flatten()
    places = torch.arange(-(-queries // bucket), device=device)
    chosen, flat = (of_queries == places[:, None]).float(), in_tiles.flatten(1, 2)
    lost = flat.isnan()  # which must not reach other buckets: zero times NaN is NaN
    return (chosen @ flat.masked_fill(lost, 0)).masked_fill(chosen @ lost.float() > 0, torch.nan)


_compiled: set[Any] = set()


@contextmanager
def _mentioned(variant: Any) -> Iterator[None]:
    """Mention on the progress line the first call of a variant if it takes long: it is compiled."""
    if variant in _compiled:
        yield
        return
    watch = current_watch()
    timer = threading.Timer(_SLOW, watch.aside, ["compiling the kernel for this card, once"])
    timer.daemon = True
    timer.start()
    try:
        yield
        _compiled.add(variant)
    finally:
        timer.cancel()
