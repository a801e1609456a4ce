"""``prune``: split texts, rank heads, remove them one by one, compare with random orders, store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.draw.numbers import counted
from attnviz.engine.capture import written_targets
from attnviz.engine.effects import ScanOptions
from attnviz.engine.known_labels import by_label
from attnviz.engine.scan.run import inputs_of, open_scan
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.prune.order import (
    Goal,
    RemovalBounds,
    ScanMeter,
    goal_of,
    random_losses,
    removal_order,
)
from attnviz.inspect.prune.plan import StackPlan, is_planned
from attnviz.inspect.prune.report import Half, PruneReport
from attnviz.inspect.prune.request import PruneRequest
from attnviz.models.model import Model, frame_of, require_number
from attnviz.models.numpy_checkpoint import NumpyCheckpoint
from attnviz.models.own import OwnAttention
from attnviz.models.stack_model import StackModel
from attnviz.models.work import Work, about_tokens
from attnviz.progress import UNWATCHED, Watch, shares_of
from attnviz.records import Tokens
from attnviz.texts import Texts, encode_texts

if TYPE_CHECKING:
    from attnviz.inspect.prune.store import PruneStore

_POINTS = 12
"""The most numbers of heads at which random orders are measured."""


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
    random = random_losses(held_out, bounds, sorted(counts), draws=request.draws, seed=request.seed)
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
        random=random,
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
    """Return an object that plans or writes the pruned model."""
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
