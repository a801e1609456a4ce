"""Where the parameters of a design are, as lines that add up: towers, their parts, the details.

Screens and files are made of the same lines, so that no number is put together twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from attnviz.params.accounts.parameters import (
    AttentionCount,
    FeedForwardCount,
    LayerCount,
    ParameterCount,
    PerHead,
    StackCount,
)
from attnviz.params.accounts.terms import Term
from attnviz.params.specs import ExpertsSpec

__all__ = ["PartLine", "part_lines"]

_LATE = {"bias": "biases", "norm": "norms"}
_PROJECTIONS = ("query", "key", "value", "output")


@dataclass(frozen=True)
class PartLine:
    """One line of the table of parameters.

    label: what is counted.
    role: ``attention``, ``feed_forward``, ``embedding``, ``norm``, ``head`` or ``other``.
    detail: whether it is a detail of the line above and not one to be added.
    count: parameters in the whole model.
    each: parameters in one layer; None outside the layers, or where its layers differ.
    layers: how many layers hold it; 0 outside the layers.
    per_head: what one head holds of it, biases left out; None where there is no such thing.
    terms: the arithmetic of one layer, or of the line where it stands outside them.
    tower: the stack that it belongs to; empty for none.
    """

    label: str
    role: str
    count: int
    detail: bool = False
    each: int | None = None
    layers: int = 0
    per_head: int | None = None
    terms: tuple[Term, ...] = ()
    tower: str = ""


def part_lines(count: ParameterCount) -> tuple[PartLine, ...]:
    """The lines of a whole design; those that are no details add up to ``count.total``."""
    lines: list[PartLine] = []
    for stack in count.stacks:
        lines += _stack_lines(stack)
    return (*lines, *_outside_lines(count.terms))


def _outside_lines(terms: Sequence[Term], tower: str = "") -> list[PartLine]:
    """The lines outside the layers, each bias with its matrix."""
    matrices: dict[str, list[Term]] = {}
    for term in terms:
        label = term.label.removesuffix(" bias")
        matrices.setdefault(label if label in matrices else term.label, []).append(term)
    lines = []
    for label, group in matrices.items():
        role = group[0].role if group[0].role in ("embedding", "norm", "head") else "other"
        count = sum(term.count for term in group)
        lines.append(PartLine(label, role, count, terms=tuple(group), tower=tower))
    return lines


def _stack_lines(stack: StackCount) -> list[PartLine]:
    name = stack.spec.name
    before = [term for term in stack.terms if "embedding" in (term.role, *term.label.split())]
    behind = [term for term in stack.terms if term not in before]
    lines = _outside_lines(before, name)
    lines += _layers([(group.layer, group.stored) for group in stack.groups], name)
    return lines + _outside_lines(behind, name)


_Counted = tuple[int, tuple[Term, ...]]
"""How many layers hold some terms, and the terms."""


def _layers(layers: Sequence[tuple[LayerCount, int]], tower: str) -> list[PartLine]:
    """The parts of layers, equal names put together, each with its details."""
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
            name = _forward_name(layer.feed_forward)
            forward.setdefault(name, []).append((stored, layer.feed_forward.terms))
        for name, terms in _outside_names(layer.terms):
            outside.setdefault(name, []).append((stored, terms))
    lines: list[PartLine] = []
    for role, parts in (("attention", attentions), ("feed_forward", forward)):
        for name, counted in parts.items():
            lines.append(_line(name, role, counted, tower))
            of_a_head = heads.get(name, set())
            lines += _details(
                counted, role, tower, next(iter(of_a_head)) if len(of_a_head) == 1 else None
            )
    lines += [
        _line(name, "norm" if name == "norms" else "other", counted, tower)
        for name, counted in outside.items()
    ]
    return lines


def _line(
    name: str, role: str, counted: Sequence[_Counted], tower: str, detail: bool = False
) -> PartLine:
    each = {sum(term.count for term in terms) for _, terms in counted}
    count = sum(stored * term.count for stored, terms in counted for term in terms)
    known = dict.fromkeys(term for _, terms in counted for term in terms)
    return PartLine(
        name,
        role,
        count,
        detail,
        each.pop() if len(each) == 1 else None,
        sum(stored for stored, _ in counted),
        terms=tuple(known),
        tower=tower,
    )


def _details(
    counted: Sequence[_Counted], role: str, tower: str, head: PerHead | None
) -> list[PartLine]:
    """The matrices of a part, then its biases, then its norms."""
    parts: dict[str, list[_Counted]] = {}
    for stored, terms in counted:
        by_name: dict[str, list[Term]] = {}
        for term in terms:
            by_name.setdefault(_LATE.get(term.role, term.label), []).append(term)
        for name, group in by_name.items():
            parts.setdefault(name, []).append((stored, tuple(group)))
    late = list(_LATE.values())
    names = sorted(parts, key=lambda name: late.index(name) + 1 if name in late else 0)
    lines = [_line(name, role, parts[name], tower, detail=True) for name in names]
    return [replace(line, per_head=_of_a_head(line, head)) for line in lines]


def _of_a_head(line: PartLine, head: PerHead | None) -> int | None:
    """One head's part of a projection; of a squeezed one, of its way up."""
    name = line.label.removesuffix(" up")
    if head is None or name not in _PROJECTIONS:
        return None
    held: int = getattr(head, name)
    return held


def _attention_name(attention: AttentionCount, layer: LayerCount) -> str:
    spec = attention.spec
    if spec.cross:
        return "cross attention"
    if spec.linear:
        return "linear attention"
    return "self attention" if len(layer.attentions) > 1 else "attention"


def _forward_name(count: FeedForwardCount) -> str:
    return "experts" if isinstance(count.spec, ExpertsSpec) else "feed-forward"


def _outside_names(terms: Iterable[Term]) -> list[tuple[str, tuple[Term, ...]]]:
    """The norms of a layer as one line, everything else by its own name."""
    names: dict[str, list[Term]] = {}
    for term in terms:
        names.setdefault("norms" if term.role == "norm" else term.label, []).append(term)
    return [(name, tuple(group)) for name, group in names.items()]
