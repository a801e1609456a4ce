"""What was counted of one model: the case that it is, and its parameters line by line.

Screens and files use the same lines, so that no number is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnviz.count.params.cost import BuiltCount, CostReport, MemoryFit
from attnviz.count.params.specs import ModelSpec, PlacedTerm, StackSpec, Term, total

if TYPE_CHECKING:  # most runs name no card
    from attnviz.count.params.cards import CardFit

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


class PartLine(NamedTuple):
    """One line of the table of parameters, or a detail of one.

    label: the counted part. role: ``attention``, ``feed_forward``, ``embedding``, ``norm``,
    ``head`` or ``other``. number: parameters in the whole model. detail: whether it is a part of
    the line above, not to be added to the total. one_layer: its parameters in one layer; None
    outside the layers, or if the layers differ. layers: how many layers have it; 0 outside the
    layers. per_head: parameters of one head without biases; None for parts not divided into heads.
    terms: the arithmetic of one layer, or of the line if it is outside the layers. stack: the stack
    that it belongs to; empty for none.
    """

    label: str
    role: str
    number: int
    detail: bool = False
    one_layer: int | None = None
    layers: int = 0
    per_head: int | None = None
    terms: tuple[Term, ...] = ()
    stack: str = ""


def part_lines(spec: ModelSpec) -> Iterator[PartLine]:
    """Yield the lines of a model's parameters; those that are no details add up to the total."""
    for stack in (*spec.stacks, None):
        own = [part for part in spec.placed if part.stack is stack]
        outside = [part for part in own if part.group is None]
        before = [part for part in outside if "embedding" in (part.share, *part.name.split())]
        if stack is None:
            yield from _outside_lines(outside, "")
            continue
        yield from _outside_lines(before, stack.name)
        yield from _layer_lines([part for part in own if part.group is not None], stack)
        yield from _outside_lines([part for part in outside if part not in before], stack.name)


def _outside_lines(parts: Sequence[PlacedTerm], stack: str) -> Iterator[PartLine]:
    """Yield lines for the parts outside the layers, each bias together with its matrix."""
    labels, terms = {part.name for part in parts}, dict[str, list[Term]]()
    for part in parts:
        label = part.name.removesuffix(" bias")
        terms.setdefault(label if label in labels else part.name, []).append(part.term)
    roles = {part.name: part.share for part in parts}
    for label, own in terms.items():
        yield PartLine(label, roles[label], total(own), terms=tuple(own), stack=stack)


def _layer_lines(parts: Sequence[PlacedTerm], stack: StackSpec) -> Iterator[PartLine]:
    """Yield lines for parts of layers, each followed by its matrices, then biases, then norms."""
    heads: dict[str, list[dict[str, int]]] = {}
    for group in stack.groups:
        for name, attention in group.layer.named_attentions:
            heads.setdefault(name, []).append(attention.per_head)
    for share in ("attention", "feed_forward", "norm", "other"):
        shared = [part for part in parts if part.share == share]
        for name, named in _by(shared, lambda part: part.name).items():
            yield _line(name, share, named)
            if share not in ("attention", "feed_forward"):
                continue
            details = _by(named, lambda part: _LATE.get(part.term.role, part.term.label))
            for label in sorted(details, key=lambda label: (label == "norms", label == "biases")):
                projection = label.removesuffix(" up")  # "key up" follows latent vectors
                own = heads.get(name, [{}])
                alike = all(other == own[0] for other in own)
                per_head = own[0].get(projection) if alike else None
                yield _line(label, share, details[label])._replace(detail=True, per_head=per_head)


def _by(
    parts: Iterable[PlacedTerm], name: Callable[[PlacedTerm], str]
) -> dict[str, list[PlacedTerm]]:
    """Return parts together that have the same name, by that name."""
    named: dict[str, list[PlacedTerm]] = {}
    for part in parts:
        named.setdefault(name(part), []).append(part)
    return named


def _line(label: str, role: str, parts: Sequence[PlacedTerm]) -> PartLine:
    """Return the line of parameters that the layers of some groups have."""
    groups = {part.group: part.stack for part in parts}
    sizes = {total(part.term for part in parts if part.group is group) for group in groups}
    (stack,) = {stack.name for stack in groups.values() if stack is not None}
    return PartLine(
        label,
        role,
        sum(part.number for part in parts),
        one_layer=sizes.pop() if len(sizes) == 1 else None,
        layers=sum(group.stored for group in groups if group is not None),
        terms=tuple(dict.fromkeys(part.term for part in parts)),
        stack=stack,
    )
