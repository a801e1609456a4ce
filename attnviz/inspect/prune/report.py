"""The report of ``prune``: the order of removals, the losses, the pruned model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts
from attnviz.inspect.prune.request import PruneRequest
from attnviz.models.cut_tensors import CutPlan, Removed, cut_plans
from attnviz.records import ModelInfo, Provenance

Head = tuple[int, int]  # a head as (layer, head), both counted from 0


@dataclass(frozen=True)
class PruneStep:
    """One removal of a head, with the losses after it and all earlier removals.

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
    """One half of the texts, and the whole model's loss over it, nats per token: ``baseline``."""

    texts: int
    tokens: int
    baseline: float


@dataclass(frozen=True)
class RandomLoss:
    """The held-out losses, nats per token, when heads are removed in random orders."""

    heads_left: int
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.losses) / len(self.losses)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the lowest and the highest of the losses."""
        return min(self.losses), max(self.losses)


@dataclass(frozen=True)
class PrunedModel:
    """The pruned model, planned or written.

    form: ``cut`` (the projections are smaller) or ``masked`` (zeros in the output projections).
    heads, kv_heads: of every layer. architecture: the class that loads it.
    parameters: summed over its tensors, a tied one once.
    zeroed: removed heads that are still there, as zeros.
    path: where it was written; None if it was only planned.
    max_difference: largest absolute difference of its outputs and those of the whole model with the
        same heads switched off; None if it was only planned.
    note: why it is not smaller, or stored differently from the whole model; may be empty.
    shrinks: whether its architecture can have fewer heads at all.
    """

    form: Literal["cut", "masked"]
    heads: int
    kv_heads: int
    architecture: str
    parameters: int
    zeroed: tuple[Head, ...] = ()
    path: str | None = None
    max_difference: float | None = None
    note: str = ""
    shrinks: bool = True


@dataclass(frozen=True, repr=False)
class PruneReport(Report, Provenance):
    """The report of ``attnviz prune``: the removals, their losses and the pruned model.

    layers: the numbers of its layers that have attention.
    ranking, held_out: the halves; a single text is cut in two, several are dealt out in turn.
    loss_name: the kind of loss, ``loss`` or ``pseudo-loss``.
    limit: the held-out loss that must not be exceeded; None if there was no limit.
    random: the same numbers of heads in random orders, most heads left first.
    parameters_before: of the whole model, tied tensors once.
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
        """Return JSON values; losses are nats a token, held out except under ``ranking``."""
        ranking, held_out = self.ranking, self.held_out
        ranked = [{"heads_left": step.heads_left, "loss": step.ranking_loss} for step in self.steps]
        random = [(point.heads_left, point.mean, *point.ends) for point in self.random]
        steps = [
            fields_of(step, _STEP) | {"loss_ratio": self.ratio(step.loss)} for step in self.steps
        ]
        return {
            "schema": "attnviz.prune/1",
            "model": model_facts(self.model),
            **fields_of(self, ("text", "source", "texts", "tokens")),
            "split": "tokens" if self.texts == 1 else "texts",
            "held_out": fields_of(held_out, ("texts", "tokens")),
            "ranking": {
                **fields_of(ranking, ("texts", "tokens")),
                "baseline": {"loss": ranking.baseline},
                "steps": ranked,
            },
            "metric": self.loss_name,
            **fields_of(self.request, ("goal", "method", "rerank", "uniform", "empty_layers")),
            "baseline": {"loss": self.baseline},
            **fields_of(self, ("limit", "parameters_before")),
            "parameters_after": self.pruned.parameters,
            "heads_before": self.total,
            "heads_after": self.total - len(self.steps),
            "removed": heads_data(self.removed),
            "steps": steps,
            "random": [
                dict(zip(("heads_left", "loss", "low", "high"), point, strict=True))
                for point in random
            ],
            "draws": self.request.draws,
            "seed": self.seed,
            "pruned": {
                **fields_of(self.pruned, _PRUNED),
                "zeroed": heads_data(self.pruned.zeroed),
                **fields_of(self.pruned, ("path", "max_difference", "note")),
            },
            **fields_of(self, ("seconds", "notes")),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each number of heads left, the whole model first.

        Indices start at 0, losses are nats per token; what was not measured is empty. All losses
        are over the held-out texts, except in the last column.
        """
        random_names = ("random_loss", "random_low", "random_high")
        yield (*_STEP_ROW, *random_names, "held_out_ratio", "ranking_loss")
        nothing, whole = (None, None, None), self.baseline
        yield self.total, *nothing, whole, *nothing, self.ratio(whole), self.ranking.baseline
        for step in self.steps:
            point = self.random_of(step)
            random = nothing if point is None else (point.mean, *point.ends)
            own = fields_of(step, _STEP_ROW).values()
            yield *own, *random, self.ratio(step.loss), step.ranking_loss

    @property
    def baseline(self) -> float:
        """Return the held-out loss of the whole model, nats per token."""
        return self.held_out.baseline

    def ratio(self, loss: float) -> float:
        """Return a held-out loss divided by that of the whole model; NaN if that is 0."""
        return loss / self.baseline if self.baseline else math.nan

    def random_of(self, step: PruneStep) -> RandomLoss | None:
        """Return the losses of random orders with as many removals as at a step; None without."""
        points = (point for point in self.random if point.heads_left == step.heads_left)
        return next(points, None)

    @property
    def total(self) -> int:
        """Return how many heads the whole model has."""
        return len(self.layers) * self.model.heads

    @property
    def removed(self) -> tuple[Head, ...]:
        """Return the (layer, head) of the removed heads in the order of their removal."""
        return tuple((step.layer, step.head) for step in self.steps)


_STEP = ("layer", "head", "score", "heads_left", "loss")
_STEP_ROW = ("heads_left", "layer", "head", "score", "loss")
_PRUNED = ("form", "heads", "kv_heads", "architecture", "parameters")


def heads_data(heads: Iterable[Head]) -> list[dict[str, int]]:
    """Return heads (layer, head) as JSON values."""
    return [{"layer": layer, "head": head} for layer, head in heads]


RELATIVE = ("Llama", "Mistral")
"""Llama's config requires a width that is a multiple of the number of heads, whatever head_dim is.
Mistral's has the same tensors and computation without that rule."""


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
    note = f"stored as {architecture}, which has the same tensors: {info.architecture} cannot have "
    note += f"{plan.heads} heads on its width"
    note *= architecture != info.architecture
    return PrunedModel(
        "cut", plan.heads, plan.kv_heads, architecture, parameters, zeroed, note=note
    )


def _why_masked(info: ModelInfo, removed: Removed, shrinks: bool) -> str:
    if not shrinks:
        return f"the config of {info.architecture} cannot say that it has fewer heads of that width"
    if cut_plans(removed, removed, info.heads, info.kv_heads):
        return f"the config of {info.architecture} has no room for such a shape"
    whole = sum(not heads for heads in removed.values())
    if whole and info.kv_heads == info.heads:
        return (
            f"every layer must keep the same number of heads, and {whole} of {len(removed)} layers "
            f"{'keeps' if whole == 1 else 'keep'} all {info.heads}"
        )
    return (
        "every key/value head must serve the same number of heads, and one still serves all of "
        "its own"
    )
