"""What a screen is about: the layer and the attention that speak for a design."""

from __future__ import annotations

from itertools import pairwise

from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.parameters import AttentionCount, GroupCount, StackCount

__all__ = [
    "attention_only",
    "layer_span",
    "main_attention",
    "main_group",
    "main_stack",
    "spans",
]


def main_stack(cost: CostReport) -> StackCount:
    """The tower that a person means."""
    return next(stack for stack in cost.parameters.stacks if stack.spec is cost.spec.main)


def main_group(cost: CostReport) -> GroupCount:
    """The kind of layer that the main tower has most of, the first of equals."""
    return max(main_stack(cost).groups, key=lambda group: group.repeat)


def main_attention(cost: CostReport) -> AttentionCount:
    """The self attention of the layer that the main tower has most of."""
    attentions = main_group(cost).layer.attentions
    return next((count for count in attentions if not count.spec.cross), attentions[0])


def attention_only(cost: CostReport) -> bool:
    """Whether nothing but the attention of one layer was counted."""
    parameters = cost.parameters
    group = main_group(cost)
    alone = len(parameters.stacks) == 1 and group.repeat == 1 and len(group.layer.attentions) == 1
    return alone and parameters.total == group.layer.attentions[0].total


def layer_span(group: GroupCount) -> str:
    """Which layers a kind is: ``0–2``, ``0, 2, 4 … 30``, ``all 12``."""
    if group.indices is None:
        return f"all {group.repeat:,}" if group.repeat > 1 else "the only one"
    return spans(group.indices)


def spans(indices: tuple[int, ...]) -> str:
    """Ascending numbers as runs; what goes on in equal steps is shortened."""
    if len(indices) > 3:
        steps = {after - before for before, after in pairwise(indices)}
        if len(steps) == 1 and (step := steps.pop()) > 1:
            return f"{indices[0]}, {indices[0] + step} … {indices[-1]}"
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
