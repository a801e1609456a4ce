"""Chooses the layers that represent an architecture, and lists its parameters by part.

The lines of ``part_lines`` add up: stacks, their parts, the details. Screens and files use the same
lines, so that no number is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attnviz.count.params.counting.blocks import AttentionCount, PerHead, Term
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.counting.parameters import (
    GroupCount,
    LayerCount,
    ParameterCount,
    StackCount,
)
from attnviz.count.params.specs import ExpertsSpec

_LATE = {"bias": "biases", "norm": "norms"}
_PROJECTIONS = ("query", "key", "value", "output")


def main_stack(cost: CostReport) -> StackCount:
    """Return the stack that represents the model: the last causal one, else the last one."""
    return next(stack for stack in cost.parameters.stacks if stack.spec is cost.spec.main)


def main_group(cost: CostReport) -> GroupCount:
    """Return the main stack's most frequent kind of layer; the first of equally frequent ones."""
    return max(main_stack(cost).groups, key=lambda group: group.repeat)


def main_attention(cost: CostReport) -> AttentionCount:
    """Return the self-attention of ``main_group``; its first attention if there is none."""
    attentions = main_group(cost).layer.attentions
    return next((count for count in attentions if not count.spec.cross), attentions[0])


def attention_only(cost: CostReport) -> bool:
    """Return True if nothing but the attention of one layer was counted."""
    parameters = cost.parameters
    group = main_group(cost)
    alone = len(parameters.stacks) == 1 and group.repeat == 1 and len(group.layer.attentions) == 1
    return alone and parameters.total == group.layer.attentions[0].total


def layer_kind(group: GroupCount) -> str:
    """Return the attention of the layers in a group in a few words, such as ``sliding 4,096``."""
    words = []
    for attention in group.layer.attentions:
        spec = attention.spec
        if spec.cross:
            words.append("cross")
        elif spec.linear:
            words.append("linear")
        elif spec.window is not None:
            words.append(f"sliding {spec.window:,}")
        else:
            words.append("latent" if spec.latent is not None else "full")
    forward = group.layer.spec.feed_forward
    if isinstance(forward, ExpertsSpec):
        words.append(f"{forward.active:,} of {forward.experts:,} experts")
    return ", ".join(words)


class PartLine(NamedTuple):
    """One line of the table of parameters, or a detail of one.

    label: the counted part.
    role: ``attention``, ``feed_forward``, ``embedding``, ``norm``, ``head`` or ``other``.
    number: parameters in the whole model.
    detail: whether it is a part of the line above, not to be added to the total.
    each: parameters in one layer; None outside the layers, or if the layers differ.
    layers: how many layers have it; 0 outside the layers.
    per_head: parameters of one head without biases; None for parts not divided into heads.
    terms: the arithmetic of one layer, or of the line if it is outside the layers.
    stack: the stack that it belongs to; empty for none.
    """

    label: str
    role: str
    number: int
    detail: bool = False
    each: int | None = None
    layers: int = 0
    per_head: int | None = None
    terms: tuple[Term, ...] = ()
    stack: str = ""


def part_lines(count: ParameterCount) -> tuple[PartLine, ...]:
    """Return a model's parameter table; lines that are no details add up to the total."""
    lines: list[PartLine] = []
    for stack in count.stacks:
        name = stack.spec.name
        before = [term for term in stack.terms if "embedding" in (term.role, *term.label.split())]
        behind = [term for term in stack.terms if term not in before]
        lines += _outside_lines(before, name)
        lines += _layer_lines([(group.layer, group.stored) for group in stack.groups], name)
        lines += _outside_lines(behind, name)
    return (*lines, *_outside_lines(count.terms))


def _outside_lines(terms: Sequence[Term], stack: str = "") -> list[PartLine]:
    """Return table lines for the parts outside the layers, each bias together with its matrix.

    stack: the name of their stack; empty for none.
    """
    matrices: dict[str, list[Term]] = {}
    for term in terms:
        label = term.label.removesuffix(" bias")
        matrices.setdefault(label if label in matrices else term.label, []).append(term)
    lines = []
    for label, group in matrices.items():
        role = group[0].role if group[0].role in ("embedding", "norm", "head") else "other"
        number = sum(term.number for term in group)
        lines.append(PartLine(label, role, number, terms=tuple(group), stack=stack))
    return lines


_Counted = tuple[int, tuple[Term, ...]]
"""How many layers have some terms, and the terms."""


def _layer_lines(layers: Sequence[tuple[LayerCount, int]], stack: str) -> list[PartLine]:
    """Return table lines for the parts of layers, equal names together, each with its details.

    layers: pairs (a layer, how many equal ones are stored). stack: the name of their stack.
    """
    attentions: dict[str, list[_Counted]] = {}
    forward: dict[str, list[_Counted]] = {}
    outside: dict[str, list[_Counted]] = {}
    heads: dict[str, set[PerHead]] = {}
    for layer, stored in layers:
        for attention in layer.attentions:
            name = _attention_name(attention, layer)
            attentions.setdefault(name, []).append((stored, attention.terms))
            heads.setdefault(name, set()).add(attention.per_head)
        if layer.feed_forward is not None:
            mixture = isinstance(layer.feed_forward.spec, ExpertsSpec)
            name = "experts" if mixture else "feed-forward"
            forward.setdefault(name, []).append((stored, layer.feed_forward.terms))
        for name, terms in _outside_names(layer.terms):
            outside.setdefault(name, []).append((stored, terms))
    lines: list[PartLine] = []
    for role, parts in (("attention", attentions), ("feed_forward", forward)):
        for name, counted in parts.items():
            lines.append(_line(name, role, counted, stack))
            of_a_head = heads.get(name, set())
            one = next(iter(of_a_head)) if len(of_a_head) == 1 else None
            lines += _details(counted, role, stack, one)
    lines += [
        _line(name, "norm" if name == "norms" else "other", counted, stack)
        for name, counted in outside.items()
    ]
    return lines


def _line(name: str, role: str, counted: Sequence[_Counted], stack: str) -> PartLine:
    each = {sum(term.number for term in terms) for _, terms in counted}
    return PartLine(
        name,
        role,
        sum(stored * term.number for stored, terms in counted for term in terms),
        each=each.pop() if len(each) == 1 else None,
        layers=sum(stored for stored, _ in counted),
        terms=tuple(dict.fromkeys(term for _, terms in counted for term in terms)),
        stack=stack,
    )


def _details(
    counted: Sequence[_Counted], role: str, stack: str, head: PerHead | None
) -> list[PartLine]:
    """Return detail lines for the matrices of a part, then for its biases, then for its norms.

    counted: for each kind of layer, how many layers there are and the part's terms in one of them.
    role, stack: of the lines. head: the parameters of one head; None for a part without heads.
    """
    parts: dict[str, list[_Counted]] = {}
    for stored, terms in counted:
        by_name: dict[str, list[Term]] = {}
        for term in terms:
            by_name.setdefault(_LATE.get(term.role, term.label), []).append(term)
        for name, group in by_name.items():
            parts.setdefault(name, []).append((stored, tuple(group)))
    late = list(_LATE.values())
    names = sorted(parts, key=lambda name: late.index(name) + 1 if name in late else 0)
    lines = [_line(name, role, parts[name], stack) for name in names]
    return [line._replace(detail=True, per_head=_of_a_head(line.label, head)) for line in lines]


def _of_a_head(label: str, head: PerHead | None) -> int | None:
    """Return the parameters of one head in a projection; None if heads do not divide it.

    label: the name of the projection, such as ``query`` or, with latent vectors, ``key up``.
    head: the parameters of one head; None if the part has no heads.
    """
    name = label.removesuffix(" up")
    if head is None or name not in _PROJECTIONS:
        return None
    held: int = getattr(head, name)
    return held


def _attention_name(attention: AttentionCount, layer: LayerCount) -> str:
    if attention.spec.cross:
        return "cross attention"
    if attention.spec.linear:
        return "linear attention"
    return "self attention" if len(layer.attentions) > 1 else "attention"


def _outside_names(terms: Iterable[Term]) -> list[tuple[str, tuple[Term, ...]]]:
    """Return pairs (name, terms) of a layer's parts outside its main parts, norms as one part."""
    names: dict[str, list[Term]] = {}
    for term in terms:
        names.setdefault("norms" if term.role == "norm" else term.label, []).append(term)
    return [(name, tuple(group)) for name, group in names.items()]
