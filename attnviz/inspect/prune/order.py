"""The order in which heads are removed for good, and the loss after each removal.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4: the least important
heads first, ranked on one half of the texts; the loss is that of the other half, where a ranking
cannot profit from what it was chosen on. Random orders on the same half are the control.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from attnviz.engine.effects import Variant
from attnviz.engine.scan.scan import Scan
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.prune.report import Head, PruneStep, RandomLoss
from attnviz.inspect.prune.request import Importance, PruneRequest
from attnviz.records import ModelInfo

_AHEAD = 8
"""How many removals are measured at once if a limit of the loss may end them early."""


@dataclass(frozen=True)
class RemovalBounds:
    """The limits of removals: the heads that must remain in the model.

    heads, kv_heads: how many query heads and key/value heads each of them has.
    uniform: whether removals come in rounds, each of which takes one query head of every key/value
        head of every layer, so that all layers stay alike.
    """

    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    empty_layers: bool = False
    uniform: bool = False

    @property
    def round(self) -> int:
        """Return how many removals make a whole round; 1 if removals do not come in rounds."""
        return len(self.layers) * self._groups if self.uniform else 1

    @property
    def total(self) -> int:
        """Return how many heads the whole model has."""
        return len(self.layers) * self.heads

    @property
    def most(self) -> int:
        """Return how many heads can be removed."""
        kept = 0 if self.empty_layers else self.round if self.uniform else len(self.layers)
        return self.total - kept

    @property
    def _groups(self) -> int:
        return self.kv_heads if self.kv_heads < self.heads else 1

    def all_heads(self) -> list[Head]:
        """Return the (layer, head) of every head, layer by layer."""
        return [(layer, head) for layer in self.layers for head in range(self.heads)]

    def may_go(self, head: Head, removed: Collection[Head]) -> bool:
        """Return True if ``head`` can be removed once ``removed`` are gone, each (layer, head)."""
        if head in removed:
            return False
        layer, place = head
        # If all layers stay alike, the rule for a layer holds for each key/value head's own.
        size = self.heads // self._groups if self.uniform else self.heads
        gone = sum(at == layer and other // size == place // size for at, other in removed)
        if not self.empty_layers and gone + 1 == size:
            return False
        return not self.uniform or gone <= len(removed) // self.round

    def ordered(self, preference: Sequence[Head], removed: Collection[Head] = ()) -> Iterator[Head]:
        """Yield all heads that can go, in the order of ``preference`` as far as possible."""
        gone, waiting = list(removed), [head for head in preference if head not in removed]
        while (head := next((at for at in waiting if self.may_go(at, gone)), None)) is not None:
            gone.append(head)
            waiting.remove(head)
            yield head


@dataclass(frozen=True)
class Goal:
    """The point at which removals stop.

    count: after this many removals.
    loss: before the loss in nats per token would rise above it; None for no limit.
    among: only these heads are removed; by default any.
    """

    count: int
    loss: float | None = None
    among: Collection[Head] | None = None


def goal_of(request: PruneRequest, bounds: RemovalBounds, info: ModelInfo, baseline: float) -> Goal:
    """Return the point at which removals stop; UsageError for heads that cannot all go."""
    if request.heads:
        return _chosen(request, bounds, info)
    if request.until_loss is not None:
        return Goal(bounds.most, request.until_loss * baseline)
    if request.fraction is None:
        return Goal(bounds.most)
    count = math.floor(request.fraction * bounds.total + 0.5)
    if request.uniform:
        count = math.floor(request.fraction * bounds.total / bounds.round + 1e-9) * bounds.round
    if count < 1:
        least = bounds.round / bounds.total
        one = f"--uniform takes {bounds.round} at a time" if request.uniform else "one is the least"
        raise UsageError(
            f"--fraction {request.fraction:g} of {bounds.total} heads is none, {one}: "
            f"expected at least {least:.3g}"
        )
    if count > bounds.most:
        advice = "" if request.empty_layers else ", or add --allow-empty-layers"
        raise UsageError(
            f"--fraction {request.fraction:g} of {bounds.total} heads is {count}, only "
            f"{bounds.most} can go while each layer keeps one: choose at most "
            f"{bounds.most / bounds.total:.3g}{advice}"
        )
    return Goal(count)


def _chosen(request: PruneRequest, bounds: RemovalBounds, info: ModelInfo) -> Goal:
    chosen = choose_heads(None, request.heads, info.layers, info.heads, request.index_base) or {}
    for layer, heads in chosen.items():
        if layer not in bounds.layers:
            raise UsageError(
                f"layer {layer + request.index_base} of {info.name!r} has no attention heads"
            )
        if len(heads) == bounds.heads and not bounds.empty_layers:
            raise UsageError(
                f"--head would take all {bounds.heads} heads of layer "
                f"{layer + request.index_base}: leave one, or add --allow-empty-layers"
            )
    among = frozenset((layer, head) for layer, heads in chosen.items() for head in heads)
    return Goal(len(among), among=among)


def removal_order(
    ranking: ScanMeter,
    held_out: ScanMeter,
    bounds: RemovalBounds,
    goal: Goal,
    method: Importance,
    *,
    rerank: bool = False,
) -> tuple[PruneStep, ...]:
    """Return the removals, the least important head first, with the loss after each.

    held_out: measures the losses, and checks their limit. bounds: the heads that must remain.
    rerank: True measures the importance of the remaining heads again after each removal.
    """
    steps, scores, before = list[PruneStep](), dict[Head, float](), ranking.baseline
    ahead = goal.count if goal.loss is None else max(_AHEAD, bounds.round)

    def score(head: Head) -> tuple[bool, float, Head]:
        return math.isnan(scores[head]), scores[head], head  # NaN is the last

    while len(steps) < goal.count:
        gone = [(step.layer, step.head) for step in steps]
        if rerank or not steps:
            among = [
                head for head in bounds.all_heads() if goal.among is None or head in goal.among
            ]
            able = [head for head in among if not rerank or bounds.may_go(head, gone)]
            scores = _scores(ranking, method, gone, able, before)
        order = bounds.ordered(sorted(scores, key=score), gone)
        chosen = [*islice(order, 1 if rerank else min(ahead, goal.count - len(steps)))]
        if not chosen:
            break
        before += scores[chosen[0]]
        removals = [[*gone, *chosen[:count]] for count in range(1, len(chosen) + 1)]
        losses = zip(held_out.losses(removals), ranking.losses(removals), strict=True)
        for head, (loss, ranked) in zip(chosen, losses, strict=True):
            if goal.loss is not None and loss > goal.loss:
                return _whole_rounds(steps, bounds)
            left = bounds.total - len(steps) - 1
            steps.append(PruneStep(*head, scores[head], left, loss, ranked))
    return _whole_rounds(steps, bounds)


def _scores(
    meter: ScanMeter, method: Importance, removed: list[Head], able: list[Head], loss: float
) -> dict[Head, float]:
    """Return each head's importance after ``removed``: the rise of the loss, or the gradient."""
    if method == "gradient":
        gradients = meter.gradients()
        return {head: gradients[head] for head in able}
    losses = meter.losses([[*removed, head] for head in able])
    return {head: after - loss for head, after in zip(able, losses, strict=True)}


def _whole_rounds(steps: list[PruneStep], bounds: RemovalBounds) -> tuple[PruneStep, ...]:
    return tuple(steps[: len(steps) // bounds.round * bounds.round])


def random_losses(
    meter: ScanMeter, bounds: RemovalBounds, counts: Sequence[int], *, draws: int, seed: int
) -> tuple[RandomLoss, ...]:
    """Return for each number of removals in ``counts`` the losses over ``draws`` random orders."""
    if not counts or not draws:
        return ()
    generator, orders = random.Random(seed), list[list[Head]]()
    for _ in range(draws):
        shuffled = bounds.all_heads()
        generator.shuffle(shuffled)
        orders.append([*bounds.ordered(shuffled)])
    losses = iter(meter.losses([order[:count] for count in counts for order in orders]))
    return tuple(RandomLoss(bounds.total - count, tuple(islice(losses, draws))) for count in counts)


class ScanMeter:
    """Measures the loss over some texts, without some heads.

    texts: how many there are; all have the same weight.
    probe: any head; only the whole model's loss is needed where it alone is removed.
    on_measured: is called after each text, or a part of its removals, with the removals done
        divided by the number of texts; the calls sum to the number of removals.
    """

    def __init__(self, scanner: Scan, texts: int, probe: Head) -> None:
        self._scanner, self._texts, self._probe = scanner, texts, probe
        self.on_measured: Callable[[float], None] = lambda removals: None
        self._known: dict[tuple[Head, ...], float] = {}

    @property
    def baseline(self) -> float:
        """Return the whole model's loss, nats per token; UsageError if it predicts no tokens."""
        if () not in self._known:
            self.losses([[self._probe]])
        return self._known[()]

    def losses(self, removals: Sequence[Collection[Head]]) -> list[float]:
        """Return the loss, nats per token, without each set of heads; see ``baseline``."""
        keys = [tuple(sorted(removal)) for removal in removals]
        new = [Variant(key) for key in dict.fromkeys(keys) if key and key not in self._known]
        if new:
            self._measure(new)
        return [self._known[key] if key else self.baseline for key in keys]

    def gradients(self) -> Mapping[Head, float]:
        """Return the gradient importance of every head."""
        return self._scanner.gradients()

    def _measure(self, variants: Sequence[Variant]) -> None:
        """Measure and keep the mean loss over the texts of each removal, and of the whole model."""
        deltas = np.full((self._texts, len(variants)), np.nan)
        clean = np.full(self._texts, np.nan)
        wanted = dict.fromkeys(range(self._texts), range(len(variants)))
        for scores in self._scanner.scan_all(wanted, variants):
            if "loss_delta" not in scores.metrics:
                raise UsageError(
                    "this model has no loss to prune by: expected a language-model head, and a "
                    "mask token where it reads both ways"
                )
            deltas[scores.text, list(scores.variants)] = scores.metrics["loss_delta"]
            clean[scores.text] = scores.baseline["loss"]
            self.on_measured(len(scores.variants) / self._texts)
        losses = (clean[:, None] + deltas).mean(0).tolist()
        self._known |= zip((variant.heads for variant in variants), losses, strict=True)
        self._known[()] = float(clean.mean())
