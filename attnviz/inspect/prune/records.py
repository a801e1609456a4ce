"""The records of ``prune``: the order of removals, the losses, the pruned model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attnviz.draw.report import Report
from attnviz.inspect.prune.request import PruneRequest
from attnviz.records import ModelInfo, Provenance

if TYPE_CHECKING:
    from attnviz.draw.document import Document

Head = tuple[int, int]
"""A head as (layer, head), both counted from 0."""


@dataclass(frozen=True)
class PruneStep:
    """One removal of a head, with the losses after it and all earlier removals.

    layer, head: the removed one.
    score: its importance when it was chosen, by ``PruneRequest.method``.
    heads_left: of all layers together, afterwards.
    loss: nats per token over the held-out half, afterwards. ranking_loss: over the ranking half.
    """

    layer: int
    head: int
    score: float
    heads_left: int
    loss: float
    ranking_loss: float


@dataclass(frozen=True)
class Half:
    """One half of the texts: heads are ranked on one, losses are measured on the other.

    texts, tokens: their numbers. baseline: the whole model's loss over it, in nats per token.
    """

    texts: int
    tokens: int
    baseline: float


@dataclass(frozen=True)
class RandomLoss:
    """The held-out losses, nats per token, when heads are removed in random orders.

    heads_left: how many heads are left. losses: one for each order.
    """

    heads_left: int
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.losses) / len(self.losses)

    @property
    def low(self) -> float:
        return min(self.losses)

    @property
    def high(self) -> float:
        return max(self.losses)


@dataclass(frozen=True)
class PrunedModel:
    """The pruned model, planned or written.

    form: ``cut`` (the projections are smaller) or ``masked`` (zeros in the output projections).
    heads, kv_heads: of every layer. architecture: the class that loads it.
    parameters: summed over its tensors, a tied one once.
    zeroed: removed heads that are still there, as zeros.
    path: where it was written; None if it was only planned.
    difference: largest absolute difference of its outputs and those of the whole model with the
        same heads switched off; None if it was only planned.
    shrinks: whether its architecture can have fewer heads at all.
    note: why it is not smaller, or stored differently from the whole model; may be empty.
    """

    form: Literal["cut", "masked"]
    heads: int
    kv_heads: int
    architecture: str
    parameters: int
    zeroed: tuple[Head, ...] = ()
    path: str | None = None
    difference: float | None = None
    shrinks: bool = True
    note: str = ""


@dataclass(frozen=True, repr=False)
class PruneReport(Report, Provenance):
    """The report of ``attnviz prune``: the removals, their losses and the pruned model.

    model: the whole model. layers: the numbers of its layers that have attention.
    texts, tokens: how many were given.
    ranking, held_out: the halves; a single text is cut in two, several are dealt out in turn.
    loss_name: the kind of loss, ``loss`` or ``pseudo-loss``. request: the options.
    limit: the held-out loss that must not be exceeded; None if there was no limit.
    steps: the removals in order.
    random: the same numbers of heads in random orders, most heads left first.
    parameters_before: of the whole model, tied tensors once. pruned: the remaining model.
    """

    model: ModelInfo
    layers: tuple[int, ...]
    texts: int
    tokens: int
    ranking: Half
    held_out: Half
    loss_name: str
    request: PruneRequest
    limit: float | None
    steps: tuple[PruneStep, ...]
    random: tuple[RandomLoss, ...]
    parameters_before: int
    pruned: PrunedModel

    command = "prune"

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.prune.data import prune_data

        return prune_data(self)

    def rows(self) -> Iterable[tuple[object, ...]]:
        from attnviz.inspect.prune.data import prune_rows

        return prune_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.prune.document import prune_document

        return prune_document(self).shown(explain=explain, hints=hints)

    @property
    def baseline(self) -> float:
        """Return the held-out loss of the whole model, nats per token."""
        return self.held_out.baseline

    def ratio(self, loss: float) -> float:
        """Return a held-out loss divided by that of the whole model; NaN if that is 0."""
        return loss / self.baseline if self.baseline else math.nan

    @property
    def last_random(self) -> RandomLoss | None:
        """Return the losses of random orders with as many removals as here; None without any."""
        left = self.total - len(self.steps)
        return next((point for point in self.random if point.heads_left == left), None)

    @property
    def total(self) -> int:
        """Return how many heads the whole model has."""
        return len(self.layers) * self.model.heads

    @property
    def removed(self) -> tuple[Head, ...]:
        """Return the (layer, head) of the removed heads in the order of their removal."""
        return tuple((step.layer, step.head) for step in self.steps)
