"""How a model can be scanned, found out on a few tokens before the scan.

Every shortcut is tried against the plain way, and taken only where the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnviz.engine.ablation import RowRemoval, StandIns
from attnviz.engine.effects import Positions, Variant
from attnviz.engine.patchable import Passage, Subject
from attnviz.engine.plain_pass import ends_alike, length_class, not_its_own
from attnviz.engine.scan.blocks import BlockCall, RecordBlocks
from attnviz.engine.scan.forward import Answer, replaced_head_input, run_pass
from attnviz.engine.scan.growth import WAYS, Growth, Way
from attnviz.engine.scan.readout import Readout
from attnviz.engine.sites import LostTrackError
from attnviz.errors import LoadError
from attnviz.records import Kind

__all__ = [
    "ENDING",
    "MISFITS",
    "ScanPlan",
    "is_causal",
    "is_void",
    "make_plan",
    "ordered",
    "require_own",
    "run_grown",
]

# What a batch of another shape may raise in a model that is not made for it.
MISFITS = (LostTrackError, LoadError, RuntimeError, ValueError, IndexError, TypeError)

ENDING = 2
"""Tokens at a text's end that predict: its last token, and what follows it."""

_UNLIKE = 8.0
"""What stands in for a removed head in a trial: far from anything that a head puts out."""

_FAR = 1_000.0
"""A logit beyond every soft cap that could be felt."""

_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
_HALF_ROUNDING = 5e-2


@dataclass(frozen=True, eq=False)
class ScanPlan:
    """What a scan makes use of.

    way: how to grow the batch; None where it cannot grow and removals run one at a time.
    calls: the block calls of a pass. entries: the one around each site of the pass.
    readout: how logits come from hidden states; None without a language model's head.
    causal: whether a token's hidden state sees no later token.
    probe: the few tokens it was tried on. hidden: the final hidden states of these.
    ends_short: whether the last block can go on with the ``ENDING`` alone; False if not tried.
    void: which removals were found to change nothing, or something.
    """

    way: Way | None
    calls: tuple[BlockCall, ...]
    entries: tuple[int, ...]
    readout: Readout | None
    causal: bool
    probe: Passage
    hidden: Tensor
    ends_short: bool = False
    void: dict[Variant, bool] = field(default_factory=dict)


def make_plan(subject: Subject, passage: Passage, positions: Positions = "all") -> ScanPlan:
    """Try the borrowed ``subject`` on a few tokens of ``passage``."""
    probe = passage.probe()
    record = RecordBlocks(subject.root, subject.sites)
    try:
        with record.recording():
            clean = run_pass(subject, probe, record, project_all=True)
        blocks = tuple(record.calls), tuple(record.entries)
    except LostTrackError:
        clean, blocks = run_pass(subject, probe, _Untouched(), project_all=True), ((), ())
    readout = _readout(subject, probe, clean)
    plan = ScanPlan(None, *blocks, readout, True, probe, clean.hidden)
    if subject.ours:
        return replace(plan, way=WAYS[0], ends_short=positions == "last")
    trials = _trials(subject)
    # Each trial in a row of an ordinary batch; the last row shows whether a text is read ahead.
    rows = RowRemoval(subject.kind, dict(enumerate(trials)), _unlike(subject))
    more = (probe,) * (len(trials) - 1)
    plainly = run_pass(subject, probe, rows, *more, _other_end(probe)).hidden
    plan = replace(plan, causal=_alike(plainly[-1, 0], clean.hidden[0, 0]))
    ways = WAYS if plan.entries else ()
    for kept in (ENDING, None) if positions == "last" and plan.causal else (None,):
        for way in ways:
            if _works(subject, plan, way, trials, plainly[:-1], kept):
                return replace(plan, way=way, ends_short=kept is not None)
    return plan


def require_own(subject: Subject, passage: Passage) -> None:
    """UnsupportedError where the borrowed ``subject`` ends in other numbers once it is watched.

    Tried once for each length class.
    """
    place = subject.kind, length_class(max(len(passage.ids), len(passage.target or ())))
    known = _own.setdefault(subject.root, set())
    if place in known:
        return
    plain, untouched = (run_pass(subject, passage, each).hidden for each in (None, _Untouched()))
    if not ends_alike(subject.root, untouched, plain, exact=True):
        raise not_its_own(subject.root, "it ends in other numbers")
    known.add(place)


_own: WeakKeyDictionary[nn.Module, set[tuple[Kind, int]]] = WeakKeyDictionary()
"""By model the kinds and length classes that were tried."""


def ordered(subject: Subject, variants: Sequence[Variant]) -> list[int]:
    """The variants' indices in the order in which their first removals happen in a pass."""
    first = [_first_site(subject, variant) for variant in variants]
    return sorted(range(len(variants)), key=first.__getitem__)


def run_grown(
    subject: Subject,
    plan: ScanPlan,
    way: Way,
    passage: Passage,
    variants: Sequence[Variant],
    editor: RowRemoval,
    at_once: int,
    kept: int | None = None,
) -> Answer:
    """One pass in which the clean text is row 0 and the ``ordered`` variants are those after it.

    at_once, kept: as ``Growth`` takes them.
    """
    added: dict[int, int] = {}
    for variant in variants:
        call = plan.entries[_first_site(subject, variant)]
        added[call] = added.get(call, 0) + 1
    growth = Growth(plan.calls, plan.entries, added, way, editor, at_once, kept)
    with growth.growing():
        return run_pass(subject, passage, growth, order=growth.order)


def is_void(subject: Subject, plan: ScanPlan, variant: Variant) -> bool:
    """Whether nothing of the removed heads is read: whatever they put out, not a bit changes.

    Rows of a batch round differently, so that a scan alone cannot tell nothing from rounding.
    """
    if variant not in plan.void:
        editor = RowRemoval(subject.kind, {0: variant}, _unlike(subject))
        changed = run_pass(subject, plan.probe, editor).hidden
        plan.void[variant] = torch.equal(changed, plan.hidden)
    return plan.void[variant]


def _first_site(subject: Subject, variant: Variant) -> int:
    layers = variant.layers
    return next(
        number
        for number, site in enumerate(subject.sites.found)
        if site.kind == subject.kind and site.layer in layers
    )


class _Untouched:
    """An editor that edits nothing."""

    def edit(self, number: int, site: object, outputs: Tensor) -> Tensor:
        return outputs


def _readout(subject: Subject, probe: Passage, clean: Answer) -> Readout | None:
    """How to get logits from the head's input; None where there is no such head."""
    head, rows, logits = subject.head, clean.projected, clean.logits
    if head is None or rows is None or logits is None or rows.shape[:2] != clean.hidden.shape[:2]:
        return None

    def own(rows: Tensor) -> Tensor:
        with replaced_head_input(head, rows), subject.sites.editing(_Untouched()):
            found = subject.run(probe)
        assert found is not None
        return found[0]

    plain = Readout(head.weight, head.bias)
    if subject.ours:
        return plain
    whole = replace(plain, own=own)
    # Where the logits are small a soft cap on them hides in rounding: try the same rows far up.
    far = rows[0] * (_FAR / logits.abs().max())
    if _equal(plain.logits(rows[0]), logits[0].float()) and _equal(
        plain.logits(far), whole.logits(far)
    ):
        return plain
    return whole if _alike(whole.logits(rows[0]), logits[0].float()) else None


def is_causal(subject: Subject, probe: Passage) -> bool:
    """Whether a hidden state of the borrowed ``subject`` sees no later token, on a few tokens."""
    if subject.ours:
        return True
    both = run_pass(subject, probe, _Untouched(), _other_end(probe)).hidden
    return _alike(both[0, 0], both[1, 0])


def _other_end(probe: Passage) -> Passage:
    """The same text but for its last token."""
    read = probe.predicted
    other = next(token for token in (*read, 0, 1) if token != read[-1])
    return replace(probe, **{"ids" if probe.target is None else "target": (*read[:-1], other)})


def _trials(subject: Subject) -> list[Variant]:
    """A removal in the first layer, one in the last, and both together, as they are ``ordered``."""
    layers = list(subject.heads)
    trials = [Variant(((layer, subject.heads[layer] - 1),)) for layer in {layers[0], layers[-1]}]
    trials.append(Variant(tuple(sorted({*trials[0].heads, *trials[-1].heads}))))
    return [trials[at] for at in ordered(subject, trials)]


def _works(
    subject: Subject,
    plan: ScanPlan,
    way: Way,
    trials: Sequence[Variant],
    expected: Tensor,
    kept: int | None = None,
) -> bool:
    """Whether under this way the trials come out as in an ordinary batch."""
    rows = RowRemoval(subject.kind, dict(enumerate(trials, start=1)), _unlike(subject))
    try:
        found = run_grown(subject, plan, way, plan.probe, trials, rows, 2, kept).hidden
    except MISFITS:
        return False
    read = slice(None if kept is None else -kept, None)
    return found.shape[0] == 1 + len(trials) and _equal(found[1:, read], expected[:, read])


def _unlike(subject: Subject) -> StandIns:
    return {
        site.layer: torch.full((1, site.heads, site.dim), _UNLIKE, device=subject.device)
        for site in subject.sites.found
        if site.kind == subject.kind
    }


def _equal(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors differ by no more than rounding does."""
    rounding = _ROUNDING.get(expected.dtype, _HALF_ROUNDING)
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())


def _alike(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal where they are numbers, and none at the same places."""
    known = found.isfinite()
    if found.shape != expected.shape or not known.equal(expected.isfinite()):
        return False
    return not known.any() or _equal(found[known], expected[known])
