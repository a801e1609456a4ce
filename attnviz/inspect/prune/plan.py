"""The plan of a model without some heads, in words and numbers, before anything is written.

The plan of a model that NumPy runs is arithmetic on the shapes of its tensors, so that ranking its
heads needs no ``transformers``; that of any other is tried on shells without memory, in ``store``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from attnviz.inspect.prune.report import Head, PrunedModel
from attnviz.models.head_plan import CutPlan, Removed, cut_plans
from attnviz.models.model import Model
from attnviz.models.stack_model import StackModel
from attnviz.records import ModelInfo

RELATIVE = ("Llama", "Mistral")
"""Llama's config requires a width that is a multiple of the number of heads, whatever head_dim is.
Mistral's has the same tensors and computation without that rule."""


def is_planned(model: Model) -> bool:
    """Return whether ``StackPlan`` can plan this model with the result that transformers has."""
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
        self.parameters, self._fewer = model.parameters
        self.layers = tuple(range(self._info.layers))

    def make(self, heads: Collection[Head]) -> PrunedModel:
        """Return the plan of the pruned model. heads: the removed (layer, head)."""
        info = self._info
        removed = heads_by_layer(heads, self.layers)
        plan = next(iter(cut_plans(removed, self.layers, info.heads, info.kv_heads)), None)
        if plan is None or not self._fewer:
            return masked_record(info, removed, self.layers, self.parameters, self._fewer)
        # A query head has a query and an output projection, a key/value head a key and a value one.
        every, shared = self._numbers("query", "output"), self._numbers("key", "value")
        gone = every * (info.heads - plan.heads) // info.heads
        gone += shared * (info.kv_heads - plan.kv_heads) // info.kv_heads
        llama, mistral = RELATIVE
        name = info.architecture
        if self._shapes["layers.0.query.weight"][1] % plan.heads:
            name = name.replace(llama, mistral)
        return cut_record(info, name, plan, removed, self.parameters - gone)

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
    """Return the numbers of the removed heads by layer.

    heads: (layer, head) of each. layers: all that have attention.
    """
    return {layer: frozenset(head for at, head in heads if at == layer) for layer in layers}


def _zeroed(removed: Removed, plan: CutPlan | None) -> tuple[Head, ...]:
    """Return the removed (layer, head) that stay in the model as zeros.

    These are all without a plan, else those that the plan keeps. removed: by layer, the numbers of
    the heads.
    """
    return tuple(
        (layer, head)
        for layer in sorted(removed)
        for head in sorted(removed[layer])
        if plan is None or head in plan.query[layer]
    )


def cut_record(
    info: ModelInfo, architecture: str, plan: CutPlan, removed: Removed, parameters: int
) -> PrunedModel:
    """Return the record of a pruned model that is smaller.

    Its note says if the architecture is another one. info: the facts of the whole model.
    architecture: the class of the smaller one. plan: the heads that it has. removed: by layer, the
    heads to remove. parameters: how many it has.
    """
    note = ""
    if architecture != info.architecture:
        note = (
            f"stored as {architecture}, which has the same tensors: {info.architecture} "
            f"cannot have {plan.heads} heads on its width"
        )
    zeroed = _zeroed(removed, plan)
    return PrunedModel(
        "cut", plan.heads, plan.kv_heads, architecture, parameters, zeroed, note=note
    )


def masked_record(
    info: ModelInfo,
    removed: Removed,
    layers: tuple[int, ...],
    parameters: int,
    shrinks: bool = True,
) -> PrunedModel:
    """Return the record of a pruned model of unchanged size, with zeros for the removed heads.

    Its note gives the reason. info: the facts of the model. removed: by layer, the heads that are
    zero. layers: those that have heads. parameters: how many it has. shrinks: whether the
    architecture can have fewer heads at all.
    """
    note = f"the config of {info.architecture} cannot say that it has fewer heads of that width"
    if shrinks:
        note = _why_masked(info, removed, layers)
    whole = PrunedModel("masked", info.heads, info.kv_heads, info.architecture, parameters)
    return replace(whole, zeroed=_zeroed(removed, None), note=note, shrinks=shrinks)


def _why_masked(info: ModelInfo, removed: Removed, layers: tuple[int, ...]) -> str:
    if cut_plans(removed, layers, info.heads, info.kv_heads):
        return f"the config of {info.architecture} has no room for such a shape"
    whole = [layer for layer in layers if not removed.get(layer)]
    if whole and info.kv_heads == info.heads:
        keeps = "keeps" if len(whole) == 1 else "keep"
        return (
            f"every layer must keep the same number of heads, and {len(whole)} of {len(layers)} "
            f"layers {keeps} all {info.heads}"
        )
    return (
        "every key/value head must serve the same number of heads, and one still serves all of "
        "its own"
    )
