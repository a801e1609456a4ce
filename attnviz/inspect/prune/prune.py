"""``prune``: split texts, rank heads, remove them one by one, compare with random orders, store.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4: the least important
heads first, ranked on one half of the texts; the loss is that of the other half, where a ranking
cannot profit from what it was chosen on. Random orders on the same half are the control.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.engine.capture import written_targets
from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.known_labels import by_label
from attnviz.engine.scan.run import inputs_of, open_scan
from attnviz.engine.scan.scan import Scan
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.prune.report import (
    RELATIVE,
    Half,
    Head,
    PrunedModel,
    PruneReport,
    PruneStep,
    RandomLoss,
    heads_by_layer,
    pruned_model,
)
from attnviz.inspect.prune.request import Importance, PruneRequest
from attnviz.models.cut_tensors import cut_plans
from attnviz.models.model import Model, frame_of, require_number
from attnviz.models.numpy_checkpoint import NumpyCheckpoint
from attnviz.models.own import OwnAttention
from attnviz.models.stack_model import StackModel
from attnviz.models.work import Work, about_tokens
from attnviz.progress import UNWATCHED, Watch, shares_of
from attnviz.records import ModelInfo, Tokens
from attnviz.texts import Texts, encode_texts

if TYPE_CHECKING:
    from attnviz.inspect.prune.store import PruneStore

_POINTS = 12  # the most numbers of heads at which random orders are measured


def prune(
    model: Model, texts: Texts, request: PruneRequest, *, advance: Watch = UNWATCHED
) -> PruneReport:
    """Remove the least important heads; compare the losses with those of random removals.

    texts: half of them rank the heads, the other half measures the losses. Raises LoadError if the
    pruned model cannot be written, UnsupportedError if its heads cannot be removed for good,
    UsageError if heads, texts or memory do not fit the model.
    """
    if isinstance(model, OwnAttention):
        raise UsageError(
            "'mha' is attention with random weights, without a loss to prune by: choose tiny or a "
            "language model"
        )
    started, base = time.monotonic(), request.index_base
    request = replace(request, heads=by_label(model, model.kinds[0], request.heads, base))
    tokens = encode_texts(model, texts, request.truncate, 2)
    halves = split_texts(tokens)
    store, info = _open_store(model, request.out, tokens[0].ids), model.info
    bounds = RemovalBounds(
        store.layers,
        info.heads,
        info.kv_heads if info.heads % info.kv_heads == 0 else info.heads,
        empty_layers=request.empty_layers,
        uniform=request.uniform,
    )
    if not request.until_loss:  # refused before anything is measured
        goal_of(request, bounds, info, 0.0)
    advance.begin(f"ranking {counted(bounds.total, 'head')} on {counted(len(tokens), 'text')}")
    options, probe = ScanOptions(max_memory=request.memory), bounds.all_heads()[-1]  # the cheapest
    scans = [
        open_scan(model, inputs_of(half, written_targets(model, half)), options) for half in halves
    ]
    ranking, held_out = (
        ScanMeter(scan, len(half), probe) for scan, half in zip(scans, halves, strict=True)
    )
    for meter in (ranking, held_out):
        require_number("loss", meter.baseline, model.info)  # which then knows of broken weights
    goal = goal_of(request, bounds, model.info, held_out.baseline)
    ranking.on_measured = held_out.on_measured = shares_of(_cost(bounds, goal, request), advance)
    steps = removal_order(ranking, held_out, bounds, goal, request.method, rerank=request.rerank)
    rounds = len(steps) // bounds.round
    points = min(rounds, _POINTS)
    counts = {round(rounds * at / points) * bounds.round for at in range(1, points + 1)}
    drawn = random_losses(held_out, bounds, sorted(counts), draws=request.draws, seed=request.seed)
    took = time.monotonic() - started
    none = f"no head can go without passing {request.until_loss or 0:g} times the loss"
    if not steps and request.out is not None:
        raise UsageError(f"{none}: nothing was written")
    notes = list(dict.fromkeys(note for scan in scans for note in scan.notes))
    if len(model.kinds) > 1:
        notes.append(
            f"only the {model.kinds[0]}'s heads are pruned; the loss is that of the text which the "
            "model itself writes"
        )
    if len(texts.texts) == 1:
        notes.append(
            "ranked on the first half of 1 text, measured on the second: use --texts FILE for a "
            "model you will deploy"
        )
    pruned = store.make([(step.layer, step.head) for step in steps])
    gradient = request.method == "gradient"
    ranked, measured = (
        Half(len(half), sum(map(len, half)), meter.baseline)
        for half, meter in zip(halves, (ranking, held_out), strict=True)
    )
    return PruneReport(
        model=replace(model.info, backend="torch") if gradient else model.info,
        layers=bounds.layers,
        text=texts.texts[0],
        source=texts.source,
        texts=len(tokens),
        tokens=sum(map(len, tokens)),
        ranking=ranked,
        held_out=measured,
        loss_name="pseudo-loss" if info.architecture.endswith("MaskedLM") else "loss",
        request=request,
        limit=goal.loss,
        steps=steps,
        random=drawn,
        parameters_before=store.parameters,
        pruned=pruned,
        seed=request.seed,
        seconds=took,
        index_base=request.index_base,
        notes=(*texts.notes, *notes, *([] if steps else [none])),
    )


def split_texts(texts: Sequence[Tokens]) -> tuple[tuple[Tokens, ...], tuple[Tokens, ...]]:
    """Return two halves of the texts: one for ranking heads, and the held-out one.

    Several texts are dealt out in turn, each with its copies, so that no text is in both halves.
    A single text is cut in the middle; each part keeps the special tokens at its ends.
    Raises UsageError for a single text that is too short to be cut, and if all texts are the same.
    """
    if len(texts) > 1:
        order = [*dict.fromkeys(text.ids for text in texts)]
        if len(order) == 1:
            raise UsageError(
                f"the {len(texts)} texts are all the same: there is none to measure the loss on "
                "that was not ranked on; give different texts"
            )
        in_turn = {ids: at % 2 == 0 for at, ids in enumerate(order)}
        first = tuple(text for text in texts if in_turn[text.ids])
        return first, tuple(text for text in texts if not in_turn[text.ids])
    (text,) = texts
    before, after = frame_of(text)
    plain = range(len(before), len(text) - len(after))
    middle = len(plain) // 2
    ranked, held_out = (
        text.taken([*range(len(before)), *part, *range(plain.stop, len(text))])
        for part in (plain[:middle], plain[middle:])
    )
    if min(len(ranked), len(held_out)) < 2 or not middle:
        raise UsageError(
            f"the text has {len(plain)} token{'s' * (len(plain) != 1)}, too few to rank heads on "
            "one half and measure the loss on the other: give a longer text, or several with "
            "--texts FILE"
        )
    return (ranked,), (held_out,)


def work(texts: Texts, request: PruneRequest) -> Work:
    """Return the planned work over texts, from which the loader chooses NumPy or torch.

    Torch writes a pruned checkpoint and has gradients; transformers also prunes models that
    ``StackPlan`` cannot plan, and knows the mask token.
    """
    rounds = 3 + request.draws // 2  # ranking, the losses of both halves, random orders
    return Work(
        rounds * about_tokens(*texts.texts),
        texts=rounds * len(texts.texts),
        changed=True,
        built_in=request.out is not None or request.method == "gradient",
        fits=lambda model: is_planned(model) and (model.causal or model.mask_id is not None),
    )


def _open_store(model: Model, out: Path | None, ids: tuple[int, ...]) -> StackPlan | PruneStore:
    if out is None and isinstance(model, StackModel) and is_planned(model):
        return StackPlan(model)
    if isinstance(model, NumpyCheckpoint):
        raise UnsupportedError(
            f"{model.info.name!r} runs in NumPy, and torch stores or plans it without heads: load "
            "it with the backend torch"
        )
    from attnviz.inspect.prune.store import PruneStore  # brings transformers

    return PruneStore(model, out, ids)


def _cost(bounds: RemovalBounds, goal: Goal, request: PruneRequest) -> float:
    """Return about how many removals will be measured, each over one half of the texts."""
    able, count = bounds.total if goal.among is None else len(goal.among), goal.count
    ranked = 0 if request.method == "gradient" else able
    if request.rerank:
        ranked = able * count - count * (count - 1) // 2
    return ranked + 2 * count + request.draws * min(count, _POINTS)


def is_planned(model: Model) -> bool:
    """Return whether ``StackPlan`` would plan this model's pruning as transformers would do it."""
    if not isinstance(model, StackModel) or model.parameters is None:
        return False
    # Mistral, which stands in for Llama, has no biases.
    relative = model.info.architecture.startswith(RELATIVE[0])
    return not (relative and any(role.endswith(".bias") for role in model.stack.tensors.shapes))


class StackPlan:
    """Plans removals by arithmetic on shapes, for which ``PruneStore`` needs transformers."""

    def __init__(self, model: StackModel) -> None:
        assert model.parameters is not None
        self._info, self._shapes = model.info, model.stack.tensors.shapes
        self.parameters, self._shrinks = model.parameters
        self.layers = tuple(range(self._info.layers))

    def make(self, heads: Collection[Head]) -> PrunedModel:
        """Return the plan of the pruned model. heads: the removed (layer, head)."""
        info, removed = self._info, heads_by_layer(heads, self.layers)
        plans = cut_plans(removed, self.layers, info.heads, info.kv_heads)
        plan = next(iter(plans), None) if self._shrinks else None
        architecture, parameters = info.architecture, self.parameters
        if plan is not None:
            # A query head has a query and an output projection, a key/value head a key and a value.
            every, shared = self._numbers("query", "output"), self._numbers("key", "value")
            parameters -= every * (info.heads - plan.heads) // info.heads
            parameters -= shared * (info.kv_heads - plan.kv_heads) // info.kv_heads
            if self._shapes["layers.0.query.weight"][1] % plan.heads:
                architecture = architecture.replace(*RELATIVE)
        return pruned_model(
            info, plan, removed, parameters, architecture=architecture, shrinks=self._shrinks
        )

    def _numbers(self, *parts: str) -> int:
        """Return how many parameters in some projections belong to heads."""
        return sum(
            math.prod(shape)
            for role, shape in self._shapes.items()
            for part in parts
            if role.endswith((f".{part}.weight", f".{part}.bias"))
            and not role.endswith(".output.bias")
        )


# The order in which heads are removed ----------------------------------------------------------


_AHEAD = 8  # how many removals are measured at once if a limit of the loss may end them early


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
        layer, number = head
        # If all layers stay alike, the rule for a layer holds for each key/value head's own.
        size = self.heads // self._groups if self.uniform else self.heads
        gone = sum(at == layer and other // size == number // size for at, other in removed)
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
        why = f"--uniform takes {bounds.round} at a time" if request.uniform else "one is the least"
        raise UsageError(
            f"--fraction {request.fraction:g} of {bounds.total} heads is none, {why}: "
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

    passed = False
    while len(steps) < goal.count and not passed:
        gone = [(step.layer, step.head) for step in steps]
        if rerank or not steps:
            among = [
                head for head in bounds.all_heads() if goal.among is None or head in goal.among
            ]
            able = [head for head in among if not rerank or bounds.may_go(head, gone)]
            if method == "gradient":
                gradients = ranking.gradients()
                scores = {head: gradients[head] for head in able}
            else:
                after = ranking.losses([[*gone, head] for head in able])
                scores = {head: own - before for head, own in zip(able, after, strict=True)}
        order = bounds.ordered(sorted(scores, key=score), gone)
        chosen = [*islice(order, 1 if rerank else min(ahead, goal.count - len(steps)))]
        if not chosen:
            break
        before += scores[chosen[0]]
        removals = [[*gone, *chosen[:count]] for count in range(1, len(chosen) + 1)]
        losses = zip(held_out.losses(removals), ranking.losses(removals), strict=True)
        for head, (loss, ranked) in zip(chosen, losses, strict=True):
            if passed := goal.loss is not None and loss > goal.loss:
                break
            left = bounds.total - len(steps) - 1
            steps.append(PruneStep(*head, scores[head], left, loss, ranked))
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
