"""The plan of a model without some heads, in words and numbers, before anything is written.

The plan of a model that NumPy runs is arithmetic on the shapes of its tensors, so that ranking its
heads needs no ``transformers``; that of any other is tried on shells without memory, in ``store``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from attnviz.inspect.prune.report import Head, PrunedModel
from attnviz.models.cut_tensors import CutPlan, Removed, cut_plans
from attnviz.models.model import Model
from attnviz.models.stack_model import StackModel
from attnviz.records import ModelInfo

RELATIVE = ("Llama", "Mistral")
"""Llama's config requires a width that is a multiple of the number of heads, whatever head_dim is.
Mistral's has the same tensors and computation without that rule."""


def is_planned(model: Model) -> bool:
    """Return whether ``StackPlan`` would plan this model's pruning as transformers would do it."""
    if not isinstance(model, StackModel) or model.parameters is None:
        return False
    # Mistral, which stands in for Llama, has no biases.
    relative = model.info.architecture.startswith(RELATIVE[0])
    return not (relative and any(role.endswith(".bias") for role in model.stack.tensors.shapes))


class StackPlan:
    """Plans the removal of heads for a model that NumPy runs, as ``PruneStore`` does for torch."""

    def __init__(self, model: StackModel) -> None:
        assert model.parameters is not None
        self._info, self._shapes = model.info, model.stack.tensors.shapes
        self.parameters, self._shrinks = model.parameters
        self.layers = tuple(range(self._info.layers))

    def make(self, heads: Collection[Head]) -> PrunedModel:
        """Return the plan of the pruned model. heads: the removed (layer, head)."""
        info, removed = self._info, heads_by_layer(heads, self.layers)
        plans = cut_plans(removed, self.layers, info.heads, info.kv_heads)
        plan = next(iter(plans), None) if self._shrinks else None
        architecture, parameters = info.architecture, self.parameters
        if plan is not None:
            # A query head has a query and an output projection, a key/value head a key and a value.
            every, shared = self._numbers("query", "output"), self._numbers("key", "value")
            parameters -= every * (info.heads - plan.heads) // info.heads
            parameters -= shared * (info.kv_heads - plan.kv_heads) // info.kv_heads
            if self._shapes["layers.0.query.weight"][1] % plan.heads:
                architecture = architecture.replace(*RELATIVE)
        return pruned_model(
            info, plan, removed, parameters, architecture=architecture, shrinks=self._shrinks
        )

    def _numbers(self, *parts: str) -> int:
        """Return how many parameters in some projections belong to heads."""
        return sum(
            math.prod(shape)
            for role, shape in self._shapes.items()
            for part in parts
            if role.endswith((f".{part}.weight", f".{part}.bias"))
            and not role.endswith(".output.bias")
        )


def heads_by_layer(heads: Collection[Head], layers: Iterable[int]) -> Removed:
    """Return the numbers of the removed heads by layer."""
    return {layer: frozenset(head for at, head in heads if at == layer) for layer in layers}


def pruned_model(
    info: ModelInfo,
    plan: CutPlan | None,
    removed: Removed,
    parameters: int,
    *,
    architecture: str,
    shrinks: bool = True,
) -> PrunedModel:
    """Return the record of a pruned model, with a note if it is not smaller, or of another class.

    plan: the heads that are left in each layer; None if the model keeps its size, with zeros for
    the removed heads.
    architecture: the class of a smaller model. shrinks: whether the architecture can have fewer
    heads at all.
    """
    zeroed = tuple(
        (layer, head)
        for layer in sorted(removed)
        for head in sorted(removed[layer])
        if plan is None or head in plan.query[layer]
    )
    if plan is None:
        whole = PrunedModel("masked", info.heads, info.kv_heads, info.architecture, parameters)
        why = _why_masked(info, removed, shrinks)
        return replace(whole, zeroed=zeroed, note=why, shrinks=shrinks)
    note = ""
    if architecture != info.architecture:
        note = (
            f"stored as {architecture}, which has the same tensors: {info.architecture} "
            f"cannot have {plan.heads} heads on its width"
        )
    return PrunedModel(
        "cut", plan.heads, plan.kv_heads, architecture, parameters, zeroed, note=note
    )


def _why_masked(info: ModelInfo, removed: Removed, shrinks: bool) -> str:
    if not shrinks:
        return f"the config of {info.architecture} cannot say that it has fewer heads of that width"
    if cut_plans(removed, removed, info.heads, info.kv_heads):
        return f"the config of {info.architecture} has no room for such a shape"
    whole = [layer for layer, heads in removed.items() if not heads]
    if whole and info.kv_heads == info.heads:
        keeps = "keeps" if len(whole) == 1 else "keep"
        return (
            f"every layer must keep the same number of heads, and {len(whole)} of {len(removed)} "
            f"layers {keeps} all {info.heads}"
        )
    return (
        "every key/value head must serve the same number of heads, and one still serves all of "
        "its own"
    )
