"""How a model can be scanned, found out on a few tokens before the scan.

Every shortcut is tried against the plain way, and taken only where the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnviz.engine.effects import Positions, Variant
from attnviz.engine.hook_points import LostTrackError, hooked
from attnviz.engine.patchable import ForwardOutput, PatchableModel, Untouched, probe_of, run_pass
from attnviz.engine.plain_pass import ends_alike, length_class, nearly_equal, not_its_own
from attnviz.engine.replacing import Change, Held, Replace, RowEdit
from attnviz.engine.scan.blocks import BlockCall, RecordBlocks
from attnviz.engine.scan.expansion import (
    STRATEGIES,
    BatchExpansion,
    Inside,
    Strategy,
)
from attnviz.engine.scan.memory import rows_at_once
from attnviz.engine.scan.runner import ENDING
from attnviz.engine.scan.unembedding import Unembedding
from attnviz.errors import LoadError
from attnviz.records import Input, Kind

# What a batch of another shape may raise in a model that is not made for it.
MISFITS = (LostTrackError, LoadError, RuntimeError, ValueError, IndexError, TypeError)

_UNLIKE = 8.0
"""What takes the place of an ablated head in a trial: far from anything that a head puts out."""

_FAR = 1_000.0
"""A logit beyond every soft cap that could be felt."""


@dataclass(frozen=True, eq=False)
class ScanPlan:
    """What a scan makes use of.

    model: what is scanned.
    strategy: how to grow the batch; None where it cannot grow and ablations run one at a time.
    calls: the block calls of a pass. entries: the one around each point of the pass.
    unembedding: how logits come from hidden states; None without a language model's head.
    causal: whether a token's hidden state sees no later token.
    probe: the few tokens it was tried on. hidden: the final hidden states of these.
    ends_short: whether the last block can go on with the ``ENDING`` alone; False if not tried.
    no_op: which ablations were found to change nothing, or something.
    """

    model: PatchableModel
    strategy: Strategy | None
    calls: tuple[BlockCall, ...]
    entries: tuple[int, ...]
    unembedding: Unembedding | None
    causal: bool
    probe: Input
    hidden: Tensor
    ends_short: bool = False
    no_op: dict[Variant, bool] = field(default_factory=dict)

    def at_once(self, given: Input) -> int:
        """Return how many rows of an input a block is best called on."""
        return rows_at_once([call.block for call in self.calls], len(given.ids))


def make_plan(model: PatchableModel, given: Input, positions: Positions = "all") -> ScanPlan:
    """Try the borrowed ``model`` on a few tokens of ``given``."""
    probe = probe_of(given)
    record = RecordBlocks(model.root, model.hook_points)
    try:
        with record.recording():
            clean = run_pass(model, probe, record, project_all=True)
        blocks = tuple(record.calls), tuple(record.entries)
    except LostTrackError:
        clean, blocks = run_pass(model, probe, Untouched(), project_all=True), ((), ())
    unembedding = _unembedding(model, probe, clean)
    plan = ScanPlan(model, None, *blocks, unembedding, True, probe, clean.hidden)
    if model.ours:
        return replace(plan, strategy=STRATEGIES[0], ends_short=positions == "last")
    trials = _trials(model)
    # Each trial in a row of an ordinary batch; the last row shows whether a text is read ahead.
    rows = Replace(model.kind, dict(enumerate(trials)), _unlike(model))
    more = (probe,) * (len(trials) - 1)
    plainly = run_pass(model, probe, rows, *more, _other_end(probe)).hidden
    plan = replace(plan, causal=_alike(plainly[-1, 0], clean.hidden[0, 0]))
    rows = Replace(model.kind, dict(enumerate(trials, start=1)), _unlike(model))
    found = fitting(
        STRATEGIES if plan.entries else (),
        plainly[:-1],
        lambda *way: run_expanded(
            plan, way[0], given=probe, variants=trials, intervention=rows, at_once=2, kept=way[1]
        ).hidden[1:],
        short=positions == "last" and plan.causal,
    )
    return plan if found is None else replace(plan, strategy=found[0], ends_short=found[1])


def fitting(
    strategies: Sequence[Strategy],
    expected: Tensor,
    run: Callable[[Strategy, int | None], Tensor],
    *,
    short: bool,
) -> tuple[Strategy, bool] | None:
    """Return the first strategy under which ``run`` gives what is ``expected`` (row, token, width).

    Also whether it may keep the last tokens alone, which is tried where ``short``.
    """
    for kept in (ENDING, None) if short else (None,):
        read = slice(None if kept is None else -kept, None)
        for strategy in strategies:
            with suppress(*MISFITS):
                if nearly_equal(run(strategy, kept)[:, read], expected[:, read]):
                    return strategy, kept is not None
    return None


def check_clean_row(plan: ScanPlan, row: Tensor, plain: Tensor, *, short: bool) -> None:
    """LostTrackError where the clean row (token, width) of a batch ends otherwise than alone."""
    read = slice(-ENDING if short else None, None)
    if not ends_alike(plan.model.root, row[read], plain[read], exact=False):
        raise LostTrackError("a grown batch ends in other numbers than the text alone")


def require_own(model: PatchableModel, given: Input) -> None:
    """UnsupportedError where the borrowed ``model`` ends in other numbers once it is watched.

    Tried once for each length class.
    """
    place = model.kind, class_of(given)
    known = _own.setdefault(model.root, set())
    if place in known:
        return
    plain, untouched = (run_pass(model, given, each).hidden for each in (None, Untouched()))
    if not ends_alike(model.root, untouched, plain, exact=True):
        raise not_its_own(model.root, "it ends in other numbers")
    known.add(place)


_own: WeakKeyDictionary[nn.Module, set[tuple[Kind, int]]] = WeakKeyDictionary()
"""By model the kinds and length classes that were tried."""


def class_of(given: Input) -> int:
    """Return the ``length_class`` of an input."""
    return length_class(max(len(given.text), len(given.target or ())))


def ordered(model: PatchableModel, variants: Sequence[Change]) -> list[int]:
    """Return the variants' indices in the order in which their first changes happen in a pass."""
    first = [_first_point(model, variant) for variant in variants]
    return sorted(range(len(variants)), key=first.__getitem__)


def run_expanded(
    plan: ScanPlan,
    strategy: Strategy,
    given: Input,
    variants: Sequence[Change],
    intervention: RowEdit,
    at_once: int,
    kept: int | None = None,
    inside: Inside | None = None,
) -> ForwardOutput:
    """Return one pass in which the text is row 0 and the ``ordered`` variants are those after it.

    at_once, kept, inside: as ``BatchExpansion`` takes them.
    """
    added: dict[int, int] = {}
    for variant in variants:
        call = plan.entries[_first_point(plan.model, variant)]
        added[call] = added.get(call, 0) + 1
    inside = inside or Inside()
    expansion = BatchExpansion(
        calls=plan.calls,
        entries=plan.entries,
        added=added,
        strategy=strategy,
        intervention=intervention,
        at_once=at_once,
        kept=kept,
        inside=inside,
    )
    with expansion.expanding():
        return run_pass(
            plan.model, given, expansion, order=expansion.order, inside=inside.attention
        )


def is_no_op(plan: ScanPlan, variant: Variant) -> bool:
    """Return whether nothing of the ablated heads is read: whatever they put out, not a bit
    changes.

    Rows of a batch round differently, so that a scan alone cannot tell nothing from rounding.
    """
    if variant not in plan.no_op:
        intervention = Replace(plan.model.kind, {0: variant}, _unlike(plan.model))
        changed = run_pass(plan.model, plan.probe, intervention).hidden
        plan.no_op[variant] = torch.equal(changed, plan.hidden)
    return plan.no_op[variant]


def _first_point(model: PatchableModel, variant: Change) -> int:
    layers = variant.layers
    return next(
        number
        for number, point in enumerate(model.hook_points.found)
        if point.kind == model.kind and point.layer in layers
    )


def _unembedding(model: PatchableModel, probe: Input, clean: ForwardOutput) -> Unembedding | None:
    """Return how to get logits from the head's input; None where there is no such head."""
    head, rows, logits = model.head, clean.projected, clean.logits
    if head is None or rows is None or logits is None or rows.shape[:2] != clean.hidden.shape[:2]:
        return None

    def own(rows: Tensor) -> Tensor:
        with _replaced_input(head, rows), model.hook_points.intervening(Untouched()):
            found = model.run(probe)
        assert found is not None
        return found[0]

    plain = Unembedding(head.weight, head.bias)
    if model.ours:
        return plain
    whole = replace(plain, own=own)
    # Where the logits are small a soft cap on them hides in rounding: try the same rows far up.
    far = rows[0] * (_FAR / logits.abs().max())
    if nearly_equal(plain.logits(rows[0]), logits[0].float()) and nearly_equal(
        plain.logits(far), whole.logits(far)
    ):
        return plain
    return whole if _alike(whole.logits(rows[0]), logits[0].float()) else None


@contextmanager
def _replaced_input(head: nn.Linear, rows: Tensor) -> Iterator[None]:
    """While this is open, ``head`` projects ``rows`` (row, width) as if they were one text."""

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (rows[None].to(args[0].dtype), *args[1:])

    with hooked(head.register_forward_pre_hook(enter)):
        yield


def is_causal(model: PatchableModel, probe: Input) -> bool:
    """Return whether a hidden state of the borrowed ``model`` sees no later token, on a few
    tokens.
    """
    if model.ours:
        return True
    both = run_pass(model, probe, Untouched(), _other_end(probe)).hidden
    return _alike(both[0, 0], both[1, 0])


def _other_end(probe: Input) -> Input:
    read = probe.predicted.ids
    other = next(token for token in (*read, 0, 1) if token != read[-1])
    changed = replace(probe.predicted, ids=(*read[:-1], other))
    return replace(probe, **{"text" if probe.target is None else "target": changed})


def _trials(model: PatchableModel) -> list[Variant]:
    """Return an ablation in the first layer, one in the last, and both together, ``ordered``."""
    layers = list(model.heads)
    trials = [Variant(((layer, model.heads[layer] - 1),)) for layer in {layers[0], layers[-1]}]
    trials.append(Variant(tuple(sorted({*trials[0].heads, *trials[-1].heads}))))
    return [trials[at] for at in ordered(model, trials)]


def _unlike(model: PatchableModel) -> Held:
    return {
        ("output", point.layer): torch.full(
            (1, point.heads, point.dim), _UNLIKE, device=model.device
        )
        for point in model.hook_points.found
        if point.kind == model.kind
    }


def _alike(found: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors are equal where they are numbers, and none at the same places."""
    known = found.isfinite()
    if found.shape != expected.shape or not known.equal(expected.isfinite()):
        return False
    return not known.any() or nearly_equal(found[known], expected[known])
