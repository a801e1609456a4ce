"""Run a torch model with changes, several of them in one pass if it allows that; estimate heads.

The estimate is the slope of the loss with respect to a gate on each head's output. Michel et al.
2019, "Are Sixteen Heads Really Better than One?", section 4.1: a gate ξ_h = 1 multiplies z_h; a
head's importance is |∂loss/∂ξ_h|, averaged over texts. One forward and one backward pass serve all
heads. It is a first-order hint about which heads to measure.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnviz.engine.device_sizes import sizes, sizes_on, widest
from attnviz.engine.effects import Positions, ScanOptions, Variant
from attnviz.engine.forward_pass import ends_alike, not_its_own
from attnviz.engine.hook_points import HookedCall
from attnviz.engine.likely import ALONE
from attnviz.engine.observer import to_numpy
from attnviz.engine.patchable import (
    Keep,
    PatchableModel,
    Untouched,
    label_places,
    probe_of,
    require_one_choice,
    run_pass,
)
from attnviz.engine.patching import Pair, Patch, PatchMetric, PatchOptions, Site, What
from attnviz.engine.replacing import Change, Held, LostTrackError, values_of
from attnviz.engine.scan.expansion import Inside
from attnviz.engine.scan.patching import Measured, Patching, PatchWork
from attnviz.engine.scan.plan import (
    MISFITS,
    ScanPlan,
    Way,
    class_of,
    find_way,
    fused_activations,
    is_causal,
    is_no_op,
    make_plan,
    ordered,
    require_own,
    run_alone,
    run_changed,
)
from attnviz.engine.scan.runner import (
    ENDING,
    ChangedRuns,
    Ends,
    Room,
    SiteRunner,
    require_two,
    room_for,
    words_to_mask,
)
from attnviz.engine.scan.scan import Scan
from attnviz.engine.scan.unembedding import Unembedding
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.memory import byte_text, free_memory
from attnviz.models.split import least, whole_modules
from attnviz.records import Input, Kind

_ALIVE = 3
"""A pass holds at most this multiple of the count of ``_numbers`` at once."""

_Result = TypeVar("_Result")


class TorchRunner(SiteRunner):
    """Runs a torch model with ablations or patches; its methods are those of ``SiteRunner``.

    probe: an input for a trial of the model.
    positions: which predictions are measured, ``all`` or ``last``.
    max_memory: the most bytes that a pass may use; None takes a share of the free memory.
    """

    def __init__(
        self, model: PatchableModel, probe: Input, positions: Positions, max_memory: int | None
    ) -> None:
        self.model, self.name, self.answers = model, type(model.root).__name__, model.answers
        self.kind, self.heads, self.mask_id = model.kind, model.heads, model.mask_id
        self.labels, self.rounding, self.notes = model.labels, 0.0, []
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

    def importance(self) -> Callable[..., dict[tuple[int, int], float]]:
        return partial(gradient_importance, self.model)

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

    def attempt(self, given: Input, changes: int, run: Callable[[], _Result]) -> _Result:
        try:
            return run()
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
        self._ways = {sorts: replace(way, strategy=None) for sorts, way in self._ways.items()}
        self._note_one_by_one()
        return run()

    def outputs(self, given: Input) -> Held:
        keep = Keep(self.kind)
        run_pass(self.model, given, keep)
        return {key: to_numpy(values) for key, values in keep.held.items()}

    def ends(self, runs: ChangedRuns) -> Ends:
        given, changes, last = runs.given, runs.changes, runs.last
        way = self._way(frozenset(site.sort for change in changes for site in change.sites))
        short = way.ends_short and last is not None and last <= ENDING < len(given.predicted)
        known = class_of(given)
        plain = self._plain.get(given)
        if plain is None and not (self.model.ours or known in self._compared):
            plain = run_pass(self.model, given, None).hidden
        kept = ENDING if short else None
        answer = run_changed(self.plan, way, given, changes, runs.replaced, kept=kept)
        if way.strategy is None and known not in self._compared and not self.model.ours:
            require_own(self.model, given)
        elif plain is not None:
            read = slice(-ENDING if short else None, None)
            own, expected = answer.hidden[0, read], plain[0, read]
            if not ends_alike(self.model.root, own, expected, exact=False):
                raise LostTrackError("a grown batch ends in other numbers than the text alone")
        self._compared.add(known)
        return Ends(answer.hidden, answer.projected)

    def is_no_op(self, variant: Variant) -> bool:
        return is_no_op(self.plan, variant)

    def sites(self, sorts: frozenset[What]) -> Mapping[What, Mapping[int, int]]:
        return self._way(sorts).heads

    def plain(self, given: Input) -> Ends:
        answer = run_pass(self.model, given, None)
        self._plain = {**dict(list(self._plain.items())[-1:]), given: answer.hidden}  # of a pair
        return Ends(answer.hidden, answer.projected)

    def held(self, given: Input, sorts: frozenset[What]) -> Held:
        if given not in self._plain:
            self.plain(given)
        way = self._way(sorts)
        keep = Keep(self.kind, way.heads)
        try:
            hidden = run_alone(self.plan, way.inside, given, keep).hidden
        except LostTrackError as error:
            raise not_its_own(self.model.root, str(error)) from error
        if not ends_alike(self.model.root, hidden, self._plain[given], exact=False):
            raise not_its_own(self.model.root, "it ends in other numbers")
        return keep.held

    def estimated(self, work: PatchWork, patches: Sequence[Patch]) -> Measured:
        """Return M + ⟨∂M/∂z, z of the other run − z⟩ (patch,) for each metric M."""
        zeros, base = _Zeros(self.kind, work.sorts), work.base
        with self.open(learning=True) as plan, whole_modules(self.model.root):
            inside = self._way(work.sorts).inside
            answer = run_alone(plan, inside, base.given, zeros)
            assert answer.projected is not None
            assert plan.unembedding is not None
            logits = plan.unembedding.logits(answer.projected[:, base.position])[0]
            return _first_order(work, patches, widest(logits), zeros.added)

    def _way(self, sorts: frozenset[What]) -> Way:
        """Return how values of these sorts are changed: all in one pass, or one by one."""
        plan = self.plan
        if sorts not in self._ways:
            if sorts == {"output"}:  # these were tried when the plan was made
                way = Way(Inside(), {"output": self.heads}, plan.strategy, plan.ends_short)
            else:
                way = find_way(plan, sorts)
            self._ways[sorts] = way
            if way.strategy is None and plan.strategy is not None:
                self._note_one_by_one()
        return self._ways[sorts]

    def _note_one_by_one(self) -> None:
        note = "this model cannot carry all runs in one pass: they ran one at a time"
        if note not in self.notes:
            self.notes.append(note)

    def _room(self, given: Input, wanted: int) -> Room:
        """Return the memory that passes over such texts need; measured unless a bound fits."""
        model, plan, memory = self.model, self.plan, self._max_memory
        tokens, read = len(given.ids) + len(given.target or ()), len(given.predicted)
        fixed = 0 if plan.unembedding is None else plan.unembedding.bytes_for(read)
        row = None
        if memory is None and (free := least(model.root, free_memory(model.device))) is not None:
            coarse = _ALIVE * _numbers(plan, tokens) * next(model.root.parameters()).element_size()
            row = coarse if fixed + coarse * (1 + wanted) * 4 < free else None
        if row is None:
            row = peak_bytes(lambda: run_pass(model, given, Untouched()), [model.root])
        return room_for(row, fixed, model.device, memory, read)


def _numbers(plan: ScanPlan, tokens: int) -> int:
    """Return about how many numbers a row takes: outputs outside blocks and in the largest one."""
    model = plan.model
    blocks = {id(call.block): call.block for call in plan.calls}.values()
    inside = {id(part) for block in blocks for part in block.modules()}
    outside = [part for part in model.root.modules() if id(part) not in inside]
    widths = sum(_width(part) for part in outside if part is not model.head)
    widths += max((sum(map(_width, block.modules())) for block in blocks), default=0)
    widths += len(plan.calls) * plan.hidden.shape[-1]
    heads = max(point.heads for point in model.hook_points.calls)
    return tokens * widths + heads * tokens * tokens


def _width(module: nn.Module) -> int:
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    return sum(max(weight.shape) for weight in module.parameters(recurse=False) if weight.ndim)


def _first_order(
    work: PatchWork, patches: Sequence[Patch], logits: Tensor, zeros: dict[tuple[What, int], Tensor]
) -> Measured:
    scores = logits.log_softmax(-1)
    clean = torch.from_numpy(work.clean.logits).to(logits.device).log_softmax(-1)
    divergence = (clean.exp() * (clean - scores)).sum()
    measures: dict[PatchMetric, Tensor] = {"log_prob": scores[work.answer], "kl": divergence}
    if work.foil is not None:
        measures["logit_diff"] = logits[work.answer] - logits[work.foil]
    slopes: dict[tuple[What, int], Tensor] = {}

    def moved(site: Site) -> Tensor:
        change = values_of(work.held, site) - values_of(work.own, site)
        return (values_of(slopes, site) * change).double().sum()

    measured, added = Measured(), list(zeros.values())
    for name, measure in measures.items():
        of_zeros = torch.autograd.grad(measure, added, retain_graph=True, allow_unused=True)
        for (key, zero), slope in zip(zeros.items(), of_zeros, strict=True):
            slopes[key] = torch.zeros_like(zero[0]) if slope is None else slope[0]
        changes = [torch.as_tensor(sum(map(moved, patch.sites))) for patch in patches]
        measured[name] = work.plain(work.base)[name] + torch.stack(changes).cpu().numpy()
    return measured


class _Zeros(Untouched):
    """Adds zeros (1, token, head, dim) to values of a run, by which metrics are differentiated."""

    def __init__(self, kind: Kind, sorts: Collection[What]) -> None:
        self._kind, self._sorts = kind, sorts
        self.added: dict[tuple[What, int], Tensor] = {}

    def edit_rows(self, point: HookedCall, outputs: Tensor, first: int) -> Tensor:
        if point.kind != self._kind or point.sort not in self._sorts:
            return outputs
        zeros = self.added[point.sort, point.layer] = torch.zeros_like(outputs, requires_grad=True)
        return outputs + zeros


STARTS = (
    "answer and foil are tokens of the context: their logits are those of the answer's start there"
)
"""The note on what is predicted of a model that answers questions."""


def torch_scan(
    model: PatchableModel, inputs: Sequence[Input], options: ScanOptions, others: Sequence[Input]
) -> Scan:
    """Return what ablates heads of a torch model over ``inputs``, with values of ``others``."""
    runner = TorchRunner(model, inputs[0], options.positions, options.max_memory)
    return Scan(runner, inputs, options, others)


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
    estimate = runner.estimated if options.method == "gradient" else None
    return Patching(runner, pairs, options, estimate)


# The memory of a pass -----------------------------------------------------------------------------


def peak_bytes(run: Callable[[], object], owned: Collection[nn.Module]) -> int:
    """Return the most bytes of tensors that ``run`` makes, but for parameters of ``owned``."""
    with _Watch(owned) as watch:
        run()
    return watch.peak


class _Watch(TorchDispatchMode):
    """Measures the peak of the memory that tensors use while it is active."""

    def __init__(self, owned: Collection[nn.Module]) -> None:
        TorchDispatchMode.__init__(self)
        self._alive = self.peak = 0
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
            storage: Any = output.untyped_storage() if isinstance(output, Tensor) else None
            if storage is not None and storage not in self._known:
                self._known.add(storage)
                self._alive += storage.nbytes()
                self.peak = max(self.peak, self._alive)
                weakref.finalize(storage, self._free, storage.nbytes())
        return outputs

    def _free(self, size: int) -> None:
        self._alive -= size


# Gradient importance ------------------------------------------------------------------------------


_IGNORED = -100
"""The label of a position that predicts no token."""


def gradient_importance(
    model: PatchableModel,
    inputs: Sequence[Input],
    *,
    replacements: Held | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> dict[tuple[int, int], float]:
    """Return the gradient importance |∂loss/∂ξ| of each (layer, head), in nats per token.

    ξ, a gate, multiplies the head's output and is 1 in the model. replacements: the outputs at a
    gate of zero; None means zero. enough: called after each text; True ends. Raises UsageError
    without a loss.
    """
    if model.head is None:
        raise UsageError("this model has no language-model head: there is no loss to differentiate")
    total: Tensor | None = None
    done = 0
    for done, given in enumerate(inputs, start=1):
        if not model.ours:
            with torch.inference_mode(), model.hook_points.borrowed():
                require_own(model, given)
        gradient = _gradient(model, given, replacements).abs()
        total = gradient if total is None else total + gradient
        if on_progress is not None:
            on_progress(done, len(inputs))
        if enough():
            break
    if total is None:
        raise UsageError("no text to take a gradient over: expected at least one")
    heads = [(layer, head) for layer, count in model.heads.items() for head in range(count)]
    return dict(zip(heads, (total / done).tolist(), strict=True))


def _gradient(model: PatchableModel, given: Input, replacements: Held | None) -> Tensor:
    """Return ∂loss/∂ξ (head,) over a text: at a gate ξ of zero a head puts out ``replacements``."""
    gates = _Gates(model, replacements)
    runs = _runs(model, given)
    total = torch.zeros(sum(model.heads.values()), dtype=torch.float64)
    with (
        model.hook_points.borrowed(),
        whole_modules(model.root),
        fused_activations(model.root),
        torch.enable_grad(),
        model.hook_points.intervening(gates),
    ):
        for run, at, wanted in runs:
            logits = model.run(run)
            if logits is None:
                raise UsageError("this model returns no logits: there is no loss")
            rows = logits.flatten(0, 1)
            rows = rows if rows.dtype == torch.float64 else rows.float()
            # Choosing rows by their index would copy them, and fill a gradient of all with zeros.
            words = torch.full((len(rows),), _IGNORED, device=rows.device)
            words[at] = torch.tensor(wanted, device=rows.device)
            loss = functional.cross_entropy(rows, words, ignore_index=_IGNORED)
            slopes = torch.autograd.grad(loss, gates.all, allow_unused=True)
            pairs = zip(gates.all, slopes, strict=True)
            known = [torch.zeros_like(gate) if own is None else own for gate, own in pairs]
            total += torch.cat(known).cpu()
    return total / len(runs)


def _runs(model: PatchableModel, given: Input) -> list[tuple[Input, list[int], list[int]]]:
    """Return the passes (input, predicting positions, token ids): one, or one for each mask."""
    read = given.predicted.ids
    with torch.inference_mode(), model.hook_points.borrowed():
        causal = is_causal(model, probe_of(given))
    if causal:
        require_two(given)
        words = [(at, own) for at, own in enumerate(given.predicted.predictable[1:]) if own >= 0]
        return [(given, [at for at, _ in words], [own for _, own in words])]
    mask = model.mask_id
    if mask is None:
        raise UsageError("this model is bidirectional and has no mask token: there is no loss")
    return [(given.masked(at, mask), [at], [read[at]]) for at in words_to_mask(given, mask)]


class _Gates:
    """Multiplies each head's output in a pass by its gate, which is one."""

    def __init__(self, model: PatchableModel, replacements: Held | None) -> None:
        self._kind, self._replacements = model.kind, replacements
        self._gates = {
            layer: torch.ones(heads, device=model.device, requires_grad=True)
            for layer, heads in model.heads.items()
        }
        self.all = list(self._gates.values())

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        if point.kind != self._kind:
            return outputs
        gate = self._gates[point.layer][:, None].to(outputs.dtype)
        if self._replacements is None:
            return outputs * gate
        replacement = torch.as_tensor(self._replacements["output", point.layer]).to(outputs)
        return replacement + (outputs - replacement) * gate
