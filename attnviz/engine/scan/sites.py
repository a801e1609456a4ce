"""Find out on a few tokens how sites of a model can be patched.

Sites that are replaced in rows of a growing batch must give the results of one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from attnviz.engine.feed_forward import find_feed_forward
from attnviz.engine.hook_points import HookedCall
from attnviz.engine.patchable import ForwardOutput, Keep, run_pass
from attnviz.engine.patching import WHOLE_LAYER, Patch, Site, What
from attnviz.engine.plain_pass import not_its_own
from attnviz.engine.replacing import Change, Replace, RowEdit
from attnviz.engine.scan.expansion import STRATEGIES, Inside, Strategy
from attnviz.engine.scan.plan import MISFITS, ScanPlan, fitting, ordered, run_expanded
from attnviz.errors import UnsupportedError
from attnviz.records import Input

_ALONE = Strategy("leave", late=False)


@dataclass(frozen=True)
class Way:
    """The way in which patch sites of some kinds are patched in a model.

    inside: what is edited in addition to the outputs of heads.
    heads: the number of sites, by kind and layer.
    strategy: how to grow the batch; None if patches run one at a time.
    ends_short: True if the last block can continue with the ``ENDING`` last tokens alone.
    """

    inside: Inside
    heads: Mapping[What, Mapping[int, int]]
    strategy: Strategy | None = None
    ends_short: bool = False


def find_way(plan: ScanPlan, what: frozenset[What]) -> Way:
    """Return the way to patch sites of some kinds in the plan's model.

    what: the kinds. Raises UnsupportedError if there is none.
    """
    keep = Keep(plan.model.kind, what)
    inside = _inside(plan, what)
    try:
        run_alone(plan, inside, plan.probe, keep)
    except torch.OutOfMemoryError:
        raise
    except MISFITS as error:
        raise not_its_own(plan.model.root, str(error)) from error
    heads = {
        each: {layer: held.shape[1] for (sort, layer), held in keep.held.items() if sort == each}
        for each in sorted(what)
    }
    way = Way(inside, heads)
    if plan.strategy is None:
        return way
    held = {place: 2 * values.flip(0) for place, values in keep.held.items()}
    trials = _trials(plan, heads)
    replaced = partial(Replace, plan.model.kind, values=held)
    expected = run_changed(plan, way, plan.probe, trials, replaced, at_once=1).hidden
    found = fitting(
        [plan.strategy, *(each for each in STRATEGIES if each != plan.strategy)],
        expected,
        lambda strategy, kept: (
            run_changed(
                plan,
                replace(way, strategy=strategy),
                plan.probe,
                trials,
                replaced,
                at_once=2,
                kept=kept,
            ).hidden
        ),
        short=plan.ends_short,
    )
    return way if found is None else replace(way, strategy=found[0], ends_short=found[1])


def run_alone(plan: ScanPlan, inside: Inside, given: Input, intervention: RowEdit) -> ForwardOutput:
    if not plan.calls or inside == Inside():
        return run_pass(plan.model, given, intervention, inside=inside.attention)
    return run_expanded(plan, _ALONE, given, (), intervention, 1, inside=inside)


def run_changed(
    plan: ScanPlan,
    way: Way,
    given: Input,
    changes: Sequence[Change],
    replaced: Callable[[Mapping[int | None, Change]], Replace],
    *,
    at_once: int,
    kept: int | None = None,
) -> ForwardOutput:
    """Return the results of a pass: the text in row 0, each ablation or patch in its own row.

    changes: the ablations or patches, in the order in which a pass reaches them. replaced: makes
    the intervention from the changes by row. at_once: the most rows that a block is called on.
    kept: how many last tokens the last block computes; None is all.
    """
    if way.strategy is None:
        each = [run_alone(plan, way.inside, given, replaced({}))]
        each += [run_alone(plan, way.inside, given, replaced({0: change})) for change in changes]
        return ForwardOutput.of_rows(each)
    return run_expanded(
        plan,
        way.strategy,
        given=given,
        variants=changes,
        intervention=replaced(dict(enumerate(changes, start=1))),
        at_once=at_once,
        kept=kept,
        inside=way.inside,
    )


def _inside(plan: ScanPlan, what: frozenset[What]) -> Inside:
    attention = frozenset(what - WHOLE_LAYER - {"output"})
    if what.isdisjoint(WHOLE_LAYER):
        return Inside(attention)
    model = plan.model
    if not plan.calls:
        raise UnsupportedError(
            f"{type(model.root).__name__} runs its attention outside of a list of blocks: what "
            f"enters or leaves a layer cannot be told"
        )
    points: dict[What, dict[int, HookedCall]] = {"residual": {}, "mlp": {}}
    for call, point in zip(plan.entries, model.hook_points.found, strict=True):
        for each, found in points.items():
            same_stack = (point.kind == "encoder") == (model.kind == "encoder")
            if (point.kind == model.kind if each == "residual" else same_stack) and each in what:
                block = plan.calls[call].block
                whole = HookedCall(model.kind, point.layer, block, 1, plan.hidden.shape[-1], each)
                found.setdefault(call, whole)
    modules = find_feed_forward(model, plan.probe) if "mlp" in what else {}
    return Inside(
        attention,
        points["residual"],
        points["mlp"],
        tuple({id(module): module for module in modules.values()}.values()),
    )


def _trials(plan: ScanPlan, heads: Mapping[What, Mapping[int, int]]) -> list[Patch]:
    """Return three patches for a trial: in the first layer, in the last, and both together.

    They replace sites of all kinds, in the order in which a pass reaches them.
    """
    ends = []
    for at in (0, -1):
        places = [(what, list(layers.items())[at]) for what, layers in heads.items()]
        ends.append(
            tuple(
                Site(what, layer, None if what in WHOLE_LAYER else count - 1)
                for what, (layer, count) in places
            )
        )
    trials = [Patch(ends[0]), Patch(ends[1]), Patch(ends[0] + ends[1])]
    return [trials[at] for at in ordered(plan.model, trials)]
