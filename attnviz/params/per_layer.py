"""Every kind of layer of a design, equal ones together."""

from __future__ import annotations

from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.parameters import AttentionCount, GroupCount
from attnviz.params.numbers import count
from attnviz.params.sheet import Column, Grid, Row
from attnviz.params.specs import ExpertsSpec
from attnviz.params.subject import layer_span

__all__ = ["layer_grid", "layer_kind"]


def layer_grid(cost: CostReport) -> Grid:
    """One row for each kind of layer: which they are, what they do, what one of them holds."""
    columns = (
        Column("layers", right=False),
        Column("kind", right=False, keep=4),
        Column("attention"),
        Column("feed-forward"),
        Column("norms", keep=3, tone="faint"),
        Column("one layer", tone="strong"),
    )
    towers = len(cost.parameters.stacks) > 1
    rows = []
    for stack in cost.parameters.stacks:
        for group in stack.groups:
            shares = group.layer.shares
            span = layer_span(group)
            cells = (
                f"{stack.spec.name}: {span}" if towers else span,
                layer_kind(group),
                count(shares.attention),
                count(shares.feed_forward),
                count(shares.norm + shares.other),
                count(group.layer.total),
            )
            rows.append(Row(cells))
    return Grid(columns, tuple(rows), "Layers")


def layer_kind(group: GroupCount) -> str:
    """What the layers of a kind have in common, in a few words."""
    words = [_attention_kind(item) for item in group.layer.attentions]
    forward = group.layer.spec.feed_forward
    if isinstance(forward, ExpertsSpec):
        words.append(f"{count(forward.active)} of {count(forward.experts)} experts")
    return ", ".join(words)


def _attention_kind(attention: AttentionCount) -> str:
    spec = attention.spec
    if spec.cross:
        return "cross"
    if spec.linear:
        return "linear"
    if spec.window is not None:
        return f"sliding {count(spec.window)}"
    return "latent" if spec.latent is not None else "full"
