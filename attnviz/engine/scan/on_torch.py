"""Run a torch model with changes, several of them in one pass if the model allows it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnviz.engine.device_sizes import sizes, sizes_on, widest
from attnviz.engine.effects import Positions, ScanOptions, Variant
from attnviz.engine.forward_pass import ends_alike, not_its_own
from attnviz.engine.hook_points import HookedCall
from attnviz.engine.labels import label_places, require_one_choice
from attnviz.engine.likely import ALONE
from attnviz.engine.observer import to_numpy
from attnviz.engine.patchable import Keep, PatchableModel, Untouched, run_pass
from attnviz.engine.patching import Pair, Patch, PatchMetric, PatchOptions, What
from attnviz.engine.replacing import Change, Held, LostTrackError, RowEdit, values_of
from attnviz.engine.scan.expansion import Inside
from attnviz.engine.scan.patching import Measured, Patching, PatchWork
from attnviz.engine.scan.plan import (
    MISFITS,
    ScanPlan,
    Way,
    check_clean_row,
    class_of,
    find_way,
    fused_activations,
    is_no_op,
    make_plan,
    ordered,
    require_own,
    run_alone,
    run_changed,
)
from attnviz.engine.scan.runner import ENDING, ChangedRuns, Ends, Room, SiteRunner, room_for
from attnviz.engine.scan.scan import Scan
from attnviz.engine.scan.unembedding import Unembedding
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.memory import byte_text, free_memory
from attnviz.models.split import least, whole_modules
from attnviz.records import Input, Kind

_ALIVE = 3
"""A pass holds at most this multiple of the count of ``_numbers`` at once."""

_Found = TypeVar("_Found")


class TorchRunner(SiteRunner):
    """Runs a torch model with ablations or patches; its methods are those of ``SiteRunner``.

    probe: an input for a trial of the model.
    positions: which predictions are measured, ``all`` or ``last``.
    max_memory: the most bytes that a pass may use; None takes a share of the free memory.
    """

    def __init__(
        self, model: PatchableModel, probe: Input, positions: Positions, max_memory: int | None
    ) -> None:
        self.model = model
        self.kind, self.heads, self.mask_id = model.kind, model.heads, model.mask_id
        self.name = type(model.root).__name__
        self.rounding = 0.0
        self.notes = []
        self.labels = model.labels
        self.answers = model.answers
        self._probe, self._positions, self._max_memory = probe, positions, max_memory
        self._plan: ScanPlan | None = None
        self._ways: dict[frozenset[What], Way] = {}
        self._rooms: dict[tuple[int, int], Room] = {}
        self._plain: dict[Input, Tensor] = {}
        self._compared: set[int] = set()

    def label_places(self, given: Input) -> tuple[int, ...]:
        return label_places(self.model, given) if self.labels else ()

    @property
    def plan(self) -> ScanPlan:
        """Return the plan for running the model, which is made when it is first opened."""
        assert self._plan is not None, "the model is not open"
        return self._plan

    @property
    def causal(self) -> bool:
        return self.plan.causal

    @property
    def read_out(self) -> Unembedding | None:
        return self.plan.unembedding

    def in_torch(self) -> PatchableModel:
        return self.model

    @contextmanager
    def open(self, *, learning: bool = False) -> Iterator[ScanPlan]:
        """Prepare the model for passes inside this context. learning: True enables gradients."""
        with ExitStack() as opened:
            opened.enter_context(self.model.hook_points.borrowed())
            opened.enter_context(fused_activations(self.model.root))
            if self._plan is None:
                with torch.inference_mode():
                    plan = make_plan(self.model, self._probe, self._positions)
                if plan.unembedding is not None:
                    own = sizes_on(plan.unembedding.weight.device, self._max_memory)
                    plan = replace(plan, unembedding=replace(plan.unembedding, given=own))
                self._plan = plan
                if self._plan.strategy is None:
                    self._note_one_by_one()
            opened.enter_context(torch.enable_grad() if learning else torch.inference_mode())
            yield self._plan

    def size(self, given: Input, wanted: int) -> int:
        tokens = len(given.ids), len(given.target or ())
        if tokens not in self._rooms:
            self._rooms[tokens] = self._room(given, wanted)
        fits = least(self.model.root, self._rooms[tokens].ablations)
        wished = max(1, sizes(self.model.device.type).pass_tokens // sum(tokens))
        return wished if fits is None else min(wished, fits)

    def ordered(self, changes: Sequence[Change]) -> list[int]:
        return ordered(self.model, changes)

    def attempt(self, given: Input, changes: int, found: Callable[[], _Found]) -> _Found:
        try:
            return found()
        except torch.OutOfMemoryError as error:
            room = self._rooms[len(given.ids), len(given.target or ())]
            half = changes // 2
            advice = (
                f"half of them need about {byte_text(room.needed(half))}: pass --max-memory"
                if half
                else "shorten the text"
            )
            raise UsageError(
                f"{self.model.device} has no memory left for {changes} runs at once; {advice}"
            ) from error
        except MISFITS:
            if self.plan.strategy is None:
                raise
        self._plan = replace(self.plan, strategy=None, ends_short=False)
        self._ways = {what: replace(way, strategy=None) for what, way in self._ways.items()}
        self._note_one_by_one()
        return found()

    def outputs(self, given: Input) -> Held:
        keep = Keep(self.kind)
        run_pass(self.model, given, keep)
        return {place: to_numpy(held) for place, held in keep.held.items()}

    def ends(self, runs: ChangedRuns) -> Ends:
        given, changes, last = runs.given, runs.changes, runs.last
        way = self._way(frozenset(site.what for change in changes for site in change.sites))
        short = way.ends_short and last is not None and last <= ENDING < len(given.predicted)
        known = class_of(given)
        plain = self._plain.get(given)
        if plain is None and not (self.model.ours or known in self._compared):
            plain = run_pass(self.model, given, None).hidden
        answer = run_changed(
            self.plan,
            way,
            given,
            changes,
            runs.replaced,
            at_once=self.plan.at_once(given),
            kept=ENDING if short else None,
        )
        if way.strategy is None and known not in self._compared and not self.model.ours:
            require_own(self.model, given)
        elif plain is not None:
            check_clean_row(self.plan, answer.hidden[0], plain[0], short=short)
        self._compared.add(known)
        return Ends(answer.hidden, answer.projected)

    def is_no_op(self, variant: Variant) -> bool:
        return is_no_op(self.plan, variant)

    def sites(self, what: frozenset[What]) -> Mapping[What, Mapping[int, int]]:
        return self._way(what).heads

    def plain(self, given: Input) -> Ends:
        answer = run_pass(self.model, given, None)
        self._plain = {**dict(list(self._plain.items())[-1:]), given: answer.hidden}  # of a pair
        return Ends(answer.hidden, answer.projected)

    def held(self, given: Input, what: frozenset[What]) -> Held:
        if given not in self._plain:
            self.plain(given)
        way = self._way(what)
        keep = Keep(self.kind, way.heads)
        try:
            hidden = run_alone(self.plan, way.inside, given, keep).hidden
        except LostTrackError as error:
            raise not_its_own(self.model.root, str(error)) from error
        if not ends_alike(self.model.root, hidden, self._plain[given], exact=False):
            raise not_its_own(self.model.root, "it ends in other numbers")
        return keep.held

    def logits_alone(
        self, given: Input, position: int, what: frozenset[What], intervention: RowEdit
    ) -> Tensor:
        """Return one position's logits (vocab,) in a pass without further rows, edited."""
        answer = run_alone(self.plan, self._way(what).inside, given, intervention)
        assert answer.projected is not None
        assert self.read_out is not None
        return self.read_out.logits(answer.projected[:, position])[0]

    def _way(self, what: frozenset[What]) -> Way:
        """Return how values of the kinds ``what`` are changed: all in one pass, or one by one."""
        plan = self.plan
        if what not in self._ways:
            if what == {"output"}:  # these were tried when the plan was made
                way = Way(Inside(), {"output": self.heads}, plan.strategy, plan.ends_short)
            else:
                way = find_way(plan, what)
            self._ways[what] = way
            if way.strategy is None and plan.strategy is not None:
                self._note_one_by_one()
        return self._ways[what]

    def _note_one_by_one(self) -> None:
        note = "this model cannot carry all runs in one pass: they ran one at a time"
        if note not in self.notes:
            self.notes.append(note)

    def _room(self, given: Input, wanted: int) -> Room:
        """Return the memory that passes over such texts need; measured unless a bound fits."""
        model, plan = self.model, self.plan
        tokens = len(given.ids) + len(given.target or ())
        unembedding = (
            0 if plan.unembedding is None else plan.unembedding.bytes_for(len(given.predicted))
        )

        def room(row: int) -> Room:
            memory = self._max_memory
            return room_for(row, unembedding, model.device, memory, len(given.predicted))

        if self._max_memory is None:
            free = least(model.root, free_memory(model.device))
            coarse = _ALIVE * _numbers(plan, tokens) * model.itemsize
            if free is not None and unembedding + coarse * (1 + wanted) * 4 < free:
                return room(coarse)
        return room(peak_bytes(lambda: run_pass(model, given, Untouched()), [model.root]))


def _numbers(plan: ScanPlan, tokens: int) -> int:
    """Return about how many numbers a row takes: outputs outside blocks and in the largest one."""
    model = plan.model
    blocks = {id(call.block): call.block for call in plan.calls}.values()
    inside = {id(part) for block in blocks for part in block.modules()}
    outside = [part for part in model.root.modules() if id(part) not in inside]
    widths = sum(_width(part) for part in outside if part is not model.head)
    widths += max((sum(map(_width, block.modules())) for block in blocks), default=0)
    widths += len(plan.calls) * plan.hidden.shape[-1]
    heads = max(point.heads for point in model.hook_points.found)
    return tokens * widths + heads * tokens * tokens


def _width(module: nn.Module) -> int:
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    return sum(max(weight.shape) for weight in module.parameters(recurse=False) if weight.ndim)


def _estimated(runner: TorchRunner, work: PatchWork, patches: Sequence[Patch]) -> Measured:
    """Return M + ⟨∂M/∂z, z of the other run − z⟩ (patch,) for each metric M."""
    zeros = _Zeros(runner.kind, work.what)
    with runner.open(learning=True), whole_modules(runner.model.root):
        logits = runner.logits_alone(work.base.given, work.base.position, work.what, zeros)
        return _first_order(work, patches, widest(logits), zeros.added)


def _first_order(
    work: PatchWork, patches: Sequence[Patch], logits: Tensor, zeros: dict[tuple[What, int], Tensor]
) -> Measured:
    scores = logits.log_softmax(-1)
    clean = torch.from_numpy(work.clean.logits).to(logits.device).log_softmax(-1)
    measures: dict[PatchMetric, Tensor] = {
        "log_prob": scores[work.answer],
        "kl": (clean.exp() * (clean - scores)).sum(),
    }
    if work.foil is not None:
        measures["logit_diff"] = logits[work.answer] - logits[work.foil]
    found: Measured = {}
    for name, value in measures.items():
        slope = torch.autograd.grad(
            value, list(zeros.values()), retain_graph=True, allow_unused=True
        )
        of = {
            place: torch.zeros_like(zero[0]) if each is None else each[0]
            for (place, zero), each in zip(zeros.items(), slope, strict=True)
        }
        changes = [
            torch.as_tensor(
                sum(
                    (values_of(of, site) * (values_of(work.held, site) - values_of(work.own, site)))
                    .double()
                    .sum()
                    for site in patch.sites
                )
            )
            for patch in patches
        ]
        found[name] = work.plain(work.base)[name] + torch.stack(changes).cpu().numpy()
    return found


class _Zeros(Untouched):
    """Adds zeros (1, token, head, dim) to values of a run, by which metrics are differentiated."""

    def __init__(self, kind: Kind, what: Collection[What]) -> None:
        self._kind, self._what = kind, what
        self.added: dict[tuple[What, int], Tensor] = {}

    def edit_rows(self, point: HookedCall, outputs: Tensor, first: int) -> Tensor:
        if point.kind != self._kind or point.what not in self._what:
            return outputs
        zeros = self.added[point.what, point.layer] = torch.zeros_like(outputs, requires_grad=True)
        return outputs + zeros


STARTS = (
    "answer and foil are tokens of the context: their logits are those of the answer's start there"
)
"""The note on what is predicted of a model that answers questions."""


def torch_scan(
    model: PatchableModel,
    inputs: Sequence[Input],
    options: ScanOptions,
    references: Sequence[Input],
) -> Scan:
    """Return what ablates heads of a torch model over ``inputs``, with values of ``references``."""
    runner = TorchRunner(model, inputs[0], options.positions, options.max_memory)
    return Scan(runner, inputs, options, references)


def torch_patching(model: PatchableModel, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
    """Return an object that puts values of one prompt into a torch model's run of the other."""
    require_one_choice(model)
    if model.answers and options.method == "gradient":
        raise UnsupportedError(
            f"{type(model.root).__name__} chooses the start of an answer among tokens: patch them "
            "with --method exact"
        )
    runner = TorchRunner(model, pairs[0].corrupt, "last", options.max_memory)
    if model.answers:
        alone = not all(pair.corrupt.text.joined for pair in pairs)
        runner.notes += [STARTS, *([ALONE] if alone else [])]
    estimate = partial(_estimated, runner) if options.method == "gradient" else None
    return Patching(runner, pairs, options, estimate)


# The memory of a pass -----------------------------------------------------------------------------


def peak_bytes(run: Callable[[], object], owned: Collection[nn.Module]) -> int:
    """Return the most bytes of tensors that ``run`` makes, but for parameters of ``owned``."""
    watch = _Watch(owned)
    with watch:
        run()
    return watch.peak


class _Watch(TorchDispatchMode):
    """Measures the peak of the memory that tensors use while it is active."""

    def __init__(self, owned: Collection[nn.Module]) -> None:
        TorchDispatchMode.__init__(self)
        self._alive = 0
        self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        for module in owned:
            for tensor in (*module.parameters(), *module.buffers()):
                self._known.add(tensor.untyped_storage())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that torch does not load its compiler first, which takes a second."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._count(output.untyped_storage())
        return outputs

    def _count(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._alive += size
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._alive -= size
