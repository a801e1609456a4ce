"""The report of ``prune``: the order of removals, the losses, the pruned model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from attnviz.draw.report import Report
from attnviz.draw.values import model_facts
from attnviz.inspect.prune.request import PruneRequest
from attnviz.records import ModelInfo, Provenance

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

    @property
    def facts(self) -> dict[str, Any]:
        """Return the sizes of the model as JSON values."""
        return {name: getattr(self, name) for name in ("form", "heads", "kv_heads", "parameters")}


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
        """Return the report as JSON values; layers and heads count from 0, losses are nats a token.

        All losses are over the held-out texts, except those under ``ranking``.
        """
        pruned, request = self.pruned, self.request
        return {
            "schema": "attnviz.prune/1",
            "model": model_facts(self.model),
            "text": self.text,
            "source": self.source,
            "texts": self.texts,
            "tokens": self.tokens,
            "split": "tokens" if self.texts == 1 else "texts",
            "held_out": {"texts": self.held_out.texts, "tokens": self.held_out.tokens},
            "ranking": {
                "texts": self.ranking.texts,
                "tokens": self.ranking.tokens,
                "baseline": {"loss": self.ranking.baseline},
                "steps": [
                    {"heads_left": step.heads_left, "loss": step.ranking_loss}
                    for step in self.steps
                ],
            },
            "metric": self.loss_name,
            **{name: getattr(request, name) for name in _OPTIONS},
            "baseline": {"loss": self.baseline},
            "limit": self.limit,
            "parameters_before": self.parameters_before,
            "parameters_after": pruned.parameters,
            "heads_before": self.total,
            "heads_after": self.total - len(self.steps),
            "removed": heads_data(self.removed),
            "steps": [
                {
                    **{name: getattr(step, name) for name in _STEP},
                    "loss_ratio": self.ratio(step.loss),
                }
                for step in self.steps
            ],
            "random": [
                {
                    "heads_left": point.heads_left,
                    "loss": point.mean,
                    "low": point.low,
                    "high": point.high,
                }
                for point in self.random
            ],
            "draws": request.draws,
            "seed": self.seed,
            "pruned": {
                "form": pruned.form,
                "heads": pruned.heads,
                "kv_heads": pruned.kv_heads,
                "architecture": pruned.architecture,
                "parameters": pruned.parameters,
                "zeroed": heads_data(pruned.zeroed),
                "path": pruned.path,
                "max_difference": pruned.difference,
                "note": pruned.note,
            },
            "seconds": self.seconds,
            "notes": self.notes,
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each number of heads left, the whole model first.

        Indices start at 0, losses are nats per token; what was not measured is empty. All losses
        are over the held-out texts, except in the last column.
        """
        order = ("heads_left", "layer", "head", "score", "loss")
        yield (*order, "random_loss", "random_low", "random_high", "held_out_ratio", "ranking_loss")
        ratio, nothing = self.ratio(self.baseline), (None, None, None)
        whole = (self.baseline, *nothing, ratio, self.ranking.baseline)
        yield self.total, *nothing, *whole
        random = {point.heads_left: point for point in self.random}
        for step in self.steps:
            point = random.get(step.heads_left)
            beside = (point.mean, point.low, point.high) if point else nothing
            losses = (step.score, step.loss, *beside, self.ratio(step.loss), step.ranking_loss)
            yield (step.heads_left, step.layer, step.head, *losses)

    @property
    def baseline(self) -> float:
        """Return the held-out loss of the whole model, nats per token."""
        return self.held_out.baseline

    def ratio(self, loss: float) -> float:
        """Return a held-out loss divided by that of the whole model; NaN if that is 0."""
        return loss / self.baseline if self.baseline else math.nan

    def random_of(self, step: PruneStep) -> RandomLoss | None:
        """Return the losses of random orders with as many removals as at a step; None without."""
        return next((each for each in self.random if each.heads_left == step.heads_left), None)

    @property
    def total(self) -> int:
        """Return how many heads the whole model has."""
        return len(self.layers) * self.model.heads

    @property
    def removed(self) -> tuple[Head, ...]:
        """Return the (layer, head) of the removed heads in the order of their removal."""
        return tuple((step.layer, step.head) for step in self.steps)


_OPTIONS = ("goal", "method", "rerank", "uniform", "empty_layers")
_STEP = ("layer", "head", "score", "heads_left", "loss")


def heads_data(heads: Iterable[Head]) -> list[dict[str, int]]:
    """Return heads (layer, head) as JSON values."""
    return [{"layer": layer, "head": head} for layer, head in heads]
