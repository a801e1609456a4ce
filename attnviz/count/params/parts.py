"""What was counted of one model: the layers that represent it, its parameters by part.

The lines of ``part_lines`` add up: stacks, their parts, the details. Screens and files use the same
lines, so that no number is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnviz.count.params.counting.cost import BuiltCount, CostReport, MemoryFit
from attnviz.count.params.counting.parameters import (
    AttentionCount,
    GroupCount,
    LayerCount,
    ParameterCount,
    PerHead,
    StackCount,
    Term,
    total,
)
from attnviz.count.params.specs import ExpertsSpec

if TYPE_CHECKING:  # most runs name no card
    from attnviz.count.params.counting.cards import CardFit

_LATE = {"bias": "biases", "norm": "norms"}
PROJECTIONS = ("query", "key", "value", "output")


class Case(NamedTuple):
    """One architecture with its counts; a row of a comparison.

    name: distinguishes it from other cases.
    counts: the counted parameters, cache, operations and memory; without operations for a model
        that the arithmetic does not know; None if the values do not fit together.
    values: the values of the compared options, as they were typed.
    fit: the context that fits into the memory that was given; None if none was given.
    refusal: why the values do not fit together; else empty.
    revision: the commit of a model from the hub, or None.
    gpus: for each named GPU, whether and how fast it can run the model.
    """

    name: str
    counts: CostReport | BuiltCount | None = None
    values: tuple[str, ...] = ()
    fit: MemoryFit | None = None
    refusal: str = ""
    revision: str | None = None
    gpus: tuple[CardFit, ...] = ()

    @property
    def cost(self) -> CostReport | None:
        """Return the counts of an architecture that the arithmetic knows, else None."""
        return self.counts if isinstance(self.counts, CostReport) else None

    @property
    def built(self) -> BuiltCount | None:
        """Return the counts of a model that the arithmetic does not know, else None."""
        return self.counts if isinstance(self.counts, BuiltCount) else None


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
    group, stacks = main_group(cost), cost.parameters.stacks
    alone = len(stacks) == 1 and group.repeat == 1 and len(group.layer.attentions) == 1
    return alone and cost.total == group.layer.attentions[0].of()


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
        lines += [
            *_outside_lines(before, name),
            *_layer_lines(stack),
            *_outside_lines(behind, name),
        ]
    return (*lines, *_outside_lines(count.terms))


def _grouped(terms: Iterable[Term], name: Callable[[Term], str]) -> dict[str, tuple[Term, ...]]:
    """Return terms together that have the same name, by that name."""
    groups: dict[str, tuple[Term, ...]] = {}
    for term in terms:
        groups[name(term)] = (*groups.get(name(term), ()), term)
    return groups


def _outside_lines(terms: Sequence[Term], stack: str = "") -> Iterator[PartLine]:
    """Yield lines for the parts outside the layers, each bias together with its matrix."""
    labels = {term.label for term in terms}

    def matrix(term: Term) -> str:
        label = term.label.removesuffix(" bias")
        return label if label in labels else term.label

    for label, group in _grouped(terms, matrix).items():
        role = group[0].role if group[0].role in ("embedding", "norm", "head") else "other"
        yield PartLine(label, role, total(group), terms=group, stack=stack)


_Counted = tuple[int, tuple[Term, ...]]
"""How many layers have some terms, and the terms."""


def _layer_lines(stack: StackCount) -> Iterator[PartLine]:
    """Yield lines for the parts of layers, equal names together, each followed by its details."""
    parts: dict[str, dict[str, list[_Counted]]] = {"attention": {}, "feed_forward": {}, "": {}}
    heads: dict[str, set[PerHead]] = {}

    def add(role: str, name: str, stored: int, terms: tuple[Term, ...]) -> None:
        parts[role].setdefault(name, []).append((stored, terms))

    for layer, _, stored, _ in stack.groups:
        for attention in layer.attentions:
            name = _attention_name(attention, layer)
            add("attention", name, stored, attention.terms)
            heads.setdefault(name, set()).add(attention.per_head)
        if layer.feed_forward is not None:
            mixture = isinstance(layer.feed_forward.spec, ExpertsSpec)
            name = "experts" if mixture else "feed-forward"
            add("feed_forward", name, stored, layer.feed_forward.terms)
        outside = _grouped(layer.terms, lambda term: "norms" if term.role == "norm" else term.label)
        for name, terms in outside.items():
            add("", name, stored, terms)
    for role, named in parts.items():
        for name, counted in named.items():
            role_of = role or ("norm" if name == "norms" else "other")
            yield _line(name, role_of, counted, stack.spec.name)
            if role:
                of_a_head = heads.get(name, set())
                alike = next(iter(of_a_head)) if len(of_a_head) == 1 else None
                yield from _details(counted, role, stack.spec.name, alike)


def _line(name: str, role: str, counted: Sequence[_Counted], stack: str) -> PartLine:
    sizes = {total(terms) for _, terms in counted}
    return PartLine(
        name,
        role,
        sum(stored * total(terms) for stored, terms in counted),
        each=sizes.pop() if len(sizes) == 1 else None,
        layers=sum(stored for stored, _ in counted),
        terms=tuple(dict.fromkeys(term for _, terms in counted for term in terms)),
        stack=stack,
    )


def _details(
    counted: Sequence[_Counted], role: str, stack: str, head: PerHead | None
) -> Iterator[PartLine]:
    """Yield detail lines for the matrices of a part, then for its biases, then for its norms.

    head: the parameters of one head; None for a part without heads, or if they differ.
    """
    parts: dict[str, list[_Counted]] = {}
    for stored, terms in counted:
        named = _grouped(terms, lambda term: _LATE.get(term.role, term.label))
        for name, group in named.items():
            parts.setdefault(name, []).append((stored, group))
    late = ["", *_LATE.values()]
    for name in sorted(parts, key=lambda name: late.index(name) if name in late else 0):
        projection = name.removesuffix(" up")  # "key up" follows latent vectors
        divided = head is not None and projection in PROJECTIONS
        per_head = getattr(head, projection) if divided else None
        yield _line(name, role, parts[name], stack)._replace(detail=True, per_head=per_head)


def _attention_name(attention: AttentionCount, layer: LayerCount) -> str:
    if attention.spec.cross:
        return "cross attention"
    if attention.spec.linear:
        return "linear attention"
    return "self attention" if len(layer.attentions) > 1 else "attention"
