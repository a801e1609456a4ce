"""Run NumPy models with changes: stacks of layers, and the library's own attention.

A stack runs in blocks of rows that fit a cache, each block to its end. The own attention is one
layer without a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from attnviz.attention.functional import Floats
from attnviz.attention.growing import GrowingRun
from attnviz.engine.effects import Variant
from attnviz.engine.patching import SITES, WHOLE_LAYER, Patch, Site, What
from attnviz.engine.replacing import Change, Held, Point, Replace
from attnviz.engine.scan.runner import UNLIKE, ChangedRuns, Ends, Room, Runner, SiteRunner, room_for
from attnviz.engine.scan.unembedding import Unembedding
from attnviz.errors import UsageError
from attnviz.models.memory import free_memory
from attnviz.models.own import OwnAttention
from attnviz.models.pool import spread
from attnviz.models.stack_model import StackModel
from attnviz.models.threads import workers
from attnviz.records import Input, Kind

if TYPE_CHECKING:  # torch only where needed
    from attnviz.engine.patchable import PatchableModel


_BLOCK = 512
"""The tokens in a block of rows, whose numbers inside a layer stay in a cache."""

_TOKENS = 1 << 15
"""The tokens in a pass, over all rows."""

_KNOWN = 1 << 25
"""The bytes of the runs of other texts that are kept."""

_ROUNDINGS = 8
"""The allowed rounding errors between equal values of texts that are run together."""

_PROBE = 5
"""The number of tokens in a trial."""

_PAST: frozenset[What] = frozenset({"key", "value"})


class NumpyRunner(SiteRunner):
    """Runs a NumPy model with ablations or patches; its methods are those of ``SiteRunner``.

    in_torch: opens the model for gradients. texts: later inputs; those of one length run together.
    max_memory: the most bytes that a pass may use; None takes a share of the free memory.
    """

    kind: Kind = "self"
    threaded = True

    def __init__(
        self,
        model: StackModel,
        in_torch: Callable[[], PatchableModel],
        max_memory: int | None,
        texts: Collection[Input] = (),
    ) -> None:
        self._model, self._stack, self._in_torch = model, model.stack, in_torch
        self.rounding = _ROUNDINGS * float(np.finfo(model.stack.dtype).eps)
        self._max_memory = max_memory
        self._waiting = dict.fromkeys(texts)
        shape = self._stack.shape
        self.heads = dict.fromkeys(range(shape.layers), shape.heads)
        self.name, self.mask_id = model.info.architecture, model.mask_id
        self.notes = []
        self._runs: dict[Input, tuple[frozenset[What], GrowingRun]] = {}
        self._lock = Lock()
        self._rooms: dict[int, Room] = {}
        free = free_memory()
        if free is not None:  # each block of rows needs every tensor again
            self._stack.tensors.keep(free // 4)

    @property
    def causal(self) -> bool:
        return self._model.causal

    def in_torch(self) -> PatchableModel:
        return self._in_torch()

    @cached_property
    def read_out(self) -> Unembedding | None:
        return Unembedding(*self._stack.unembedding) if self._model.has_head else None

    def open(self) -> AbstractContextManager[Any]:
        return np.errstate(over="ignore", invalid="ignore")

    def size(self, given: Input, wanted: int) -> int:
        tokens = len(given.ids)
        if tokens not in self._rooms:
            self._rooms[tokens] = self._room(tokens)
        fits, wished = self._rooms[tokens].ablations, max(1, _TOKENS // tokens)
        return wished if fits is None else min(wished, fits)

    def ordered(self, changes: Sequence[Change]) -> list[int]:
        return sorted(range(len(changes)), key=lambda at: changes[at].layers[0])

    def outputs(self, given: Input) -> Held:
        return self.held(given, frozenset({"output"}))

    def ends(self, runs: ChangedRuns) -> Ends:
        given, changes, replaced = runs.given, runs.changes, runs.replaced
        tokens = len(given.ids)
        later = self.causal and runs.last and any(runs.starts)
        first = runs.starts if later else [0] * len(changes)
        run = self._run(given, _PAST if any(first) else frozenset())
        last = None if runs.last is None else min(runs.last, tokens)
        ends = np.empty((1 + len(changes), *run.end[0, -(last or 0) :].shape), run.end.dtype)
        ends[0] = run.end[0, -(last or 0) :]

        def go_on(block: list[int]) -> None:
            some = [changes[at] for at in block]
            begin = min(change.layers[0] for change in some)
            grown, rows = forks(some, begin, self._stack.shape.layers)
            edits = {layer: replaced(fork.patches) for layer, fork in enumerate(grown, begin)}

            def edit(what: Any, layer: int, rows: Floats) -> Floats:
                return edits[layer].edit_rows(Point(self.kind, what, layer), rows, 0)

            sorts: dict[int, set[What]] = {}
            for site in (site for change in some for site in change.sites):
                sorts.setdefault(site.layer, set()).add(site.what)
            found = run.ends(
                begin,
                [fork.sources for fork in grown],
                sorts,
                edit,
                start=min(first[at] for at in block),
                last=last,
            )
            ends[[1 + at for at in block]] = found[rows]

        work = self._model.sizes.changed(tokens, [each.layers[0] for each in changes], 0)
        spread(go_on, _blocks(changes, first, tokens), work)
        hidden = self._stack.hidden(ends)
        read = None if self.read_out is None else self._stack.unembedded(hidden)
        return Ends(hidden, read)

    def is_no_op(self, variant: Variant) -> bool:
        shape = self._stack.shape
        probe = Input.of_ids(range(min(_PROBE, shape.context, shape.vocabulary)))
        held = self.outputs(probe).items()
        unlike = {place: np.full((1, *values.shape[1:]), UNLIKE) for place, values in held}
        ends = self.ends(
            ChangedRuns(probe, [variant], lambda rows: Replace(self.kind, rows, unlike))
        )
        return bool(np.array_equal(*ends.hidden))

    def sites(self, what: frozenset[What]) -> Mapping[What, Mapping[int, int]]:
        shape = self._stack.shape

        def heads(each: What) -> int:
            if each in WHOLE_LAYER:
                return 1
            return shape.kv_heads if SITES[each].shared else shape.heads

        return {each: dict.fromkeys(range(shape.layers), heads(each)) for each in sorted(what)}

    def plain(self, given: Input) -> Ends:
        hidden = self._stack.hidden(self._run(given, _PAST).end)
        return Ends(hidden, None if self.read_out is None else self._stack.unembedded(hidden))

    def held(self, given: Input, what: frozenset[What]) -> Held:
        run = self._run(given, what)
        return {
            (each, layer): run.held[each, layer][0]
            for layer in range(self._stack.shape.layers)
            for each in what
        }

    def _run(self, given: Input, keep: frozenset[What]) -> GrowingRun:
        """Return the recorded run of a text, with its values; recent runs are reused."""
        with self._lock:
            kept, run = self._runs.pop(given, (frozenset[What](), None))
            texts = self._together(given)
        found = {given: run}
        if run is None or not keep - {"residual", "output"} <= kept:
            kept |= keep
            runs = GrowingRun(self._stack, [text.ids for text in texts], kept).by_text()
            found = dict(reversed(list(zip(texts, runs, strict=True))))
            run = runs[0]
            self._stack.finite = self._stack.finite and bool(np.isfinite(run.end).all())
        with self._lock:
            self._runs |= {text: (kept, each) for text, each in found.items() if each is not None}
            for text in list(self._runs)[: -max(2, _KNOWN // run.bytes)]:
                del self._runs[text]
        return run

    def _together(self, given: Input) -> list[Input]:
        """Return a text, and the waiting texts of its length that can run together with it."""
        if given not in self._waiting:
            return [given]
        tokens = len(given.ids)
        alike = [text for text in self._waiting if len(text.ids) == tokens and text != given]
        texts = [given, *alike[: _BLOCK // tokens]]
        for text in texts:
            del self._waiting[text]
        return texts

    def _room(self, tokens: int) -> Room:
        sizes, itemsize = self._model.sizes, self._stack.dtype.itemsize
        threads = workers()
        texts = 1 if self._max_memory is not None else threads
        inside = sizes.numbers_inside(tokens, max(1, _BLOCK // tokens))
        fixed = int(threads * inside + texts * sizes.numbers_kept(tokens)) * itemsize
        if self.read_out is not None:
            fixed += texts * self.read_out.bytes_for(tokens)
        row = texts * 4 * tokens * sizes.width * itemsize
        return room_for(row, fixed, None, self._max_memory, tokens)


def _blocks(changes: Sequence[Change], first: Sequence[int], tokens: int) -> Collection[list[int]]:
    """Return blocks of indices into ``changes``; changes that begin alike share a block."""
    sites = [[(site.layer, site.head or 0) for site in change.sites] for change in changes]
    order = sorted(range(len(changes)), key=lambda at: (first[at], sites[at]))
    blocks = []
    while order:
        size = max(1, _BLOCK // (tokens - first[order[0]]))
        blocks.append(order[:size])
        order = order[size:]
    return blocks


@dataclass(frozen=True)
class Fork:
    """A layer's rows: the row before that each continues (−1: the text), and its sites."""

    sources: tuple[int, ...]
    patches: dict[int | None, Patch]


def forks(changes: Sequence[Change], first: int, layers: int) -> tuple[list[Fork], list[int]]:
    """Return each layer's rows from ``first`` on, and each change's row; equal ones share one."""
    sites: list[dict[int, tuple[Site, ...]]] = [{} for _ in changes]  # of each layer
    for some, change in zip(sites, changes, strict=True):
        for site in change.sites:
            some[site.layer] = (*some.get(site.layer, ()), site)
    ends, found = [-1] * len(changes), []
    for layer in range(first, layers):
        keys = [(end, some.get(layer, ())) for end, some in zip(ends, sites, strict=True)]
        begun = (key for key in dict.fromkeys(keys) if key != (-1, ()))
        rows = {key: row for row, key in enumerate(begun)}
        patches: dict[int | None, Patch] = {
            row: Patch(here) for (_, here), row in rows.items() if here
        }
        found.append(Fork(tuple(source for source, _ in rows), patches))
        ends = [rows.get(key, -1) for key in keys]
    return found, ends


# The own attention ------------------------------------------------------------------------------


class OwnRunner(Runner):
    """Ablates heads of the library's own attention block; its methods are those of ``Runner``."""

    kind: Kind = "self"
    causal = False
    read_out = None

    def __init__(self, model: OwnAttention) -> None:
        self._model, self.name = model, model.info.architecture
        self.heads = {0: model.info.heads}
        self.notes = []

    def open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def size(self, given: Input, wanted: int) -> int:
        return 1 << 10

    def ordered(self, changes: Sequence[Change]) -> list[int]:
        return list(range(len(changes)))

    def outputs(self, given: Input) -> Held:
        return {("output", 0): self._model.head_outputs(given.text).swapaxes(0, 1)}

    def ends(self, runs: ChangedRuns) -> Ends:
        outputs = np.repeat(self.outputs(runs.given)["output", 0][None], 1 + len(runs.changes), 0)
        edits = runs.replaced(dict(enumerate(runs.changes, start=1)))
        edits.edit_rows(Point(self.kind, "output", 0), outputs, 0)
        hidden = [self._model.attention.joined(row.swapaxes(0, 1)) for row in outputs]
        return Ends(np.stack(hidden), None)

    def is_no_op(self, variant: Variant) -> bool:
        attention = self._model.attention
        return not any(attention.output_by_head[:, head].any() for _, head in variant.heads)

    def in_torch(self) -> NoReturn:
        raise UsageError(
            f"{self._model.info.name!r} predicts no words: it has no loss to differentiate"
        )
