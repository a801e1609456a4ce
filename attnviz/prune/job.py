"""From a model and texts to a report: rank, remove step by step, compare with chance, store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from attnviz.cli.inputs import Texts, encode_texts
from attnviz.engine.output_projections import find_output_projections
from attnviz.engine.over_text import Choice, target_tokens
from attnviz.engine.scan.run import ScanOptions, open_scan
from attnviz.errors import LoadError, UsageError
from attnviz.models.bundled import Bundled
from attnviz.models.huggingface import load_transformers
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.transformers_model import TransformersModel
from attnviz.prune.masked_outputs import difference_from_masked
from attnviz.prune.meter import ScanMeter
from attnviz.prune.order import Bounds, Goal, prune, random_losses
from attnviz.prune.records import Head, PrunedModel, PruneReport, PruneStep
from attnviz.prune.request import PruneWish, goal_of
from attnviz.prune.smaller_model import count_parameters
from attnviz.prune.store import plan_pruned, write_pruned
from attnviz.records import Tokens

__all__ = ["PruneStore", "prune_model"]

_COMPARED = 64
"""Tokens over which outputs are held against each other, at most."""

_STORED = {np.dtype("float16"): torch.float16, np.dtype("float32"): torch.float32}


class PruneStore:
    """What can be stored of a model without some heads.

    Raises UnsupportedError where its heads cannot be removed for good.
    """

    def __init__(self, model: Model) -> None:
        self._stored: torch.dtype | None = None
        if isinstance(model, Bundled):
            # Its files are a Llama checkpoint: what is written of it is one as well.
            checkpoint = model.checkpoint
            tensor = next(iter(checkpoint.tensors.values()))
            self._stored = _STORED.get(tensor.dtype)
            self._model = load_transformers(str(checkpoint.directory), dtype="float32")
        else:
            assert isinstance(model, TransformersModel)
            self._model = model
        self._projections = find_output_projections(self._model)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have heads."""
        return tuple(sorted(self._projections))

    @property
    def parameters(self) -> int:
        """Of the whole model, tied tensors once."""
        return count_parameters(self._model.model)

    def make(
        self, heads: Iterable[Head], ids: tuple[int, ...], directory: Path | None
    ) -> PrunedModel:
        """What is left without these heads, written where a directory is given.

        ids: a text, over which the written model is compared.
        """
        heads = tuple(heads)
        removed = {
            layer: frozenset(head for at, head in heads if at == layer) for layer in self.layers
        }
        if directory is None:
            return plan_pruned(self._model, removed, self._projections)
        difference = difference_from_masked(self._model, heads, ids[:_COMPARED])
        return write_pruned(
            self._model, removed, self._projections, directory, difference, self._stored
        )


_POINTS = 12
"""Numbers of heads at which random orders are measured, at most."""


def prune_model(
    model: Model, texts: Texts, wish: PruneWish, advance: Callable[[float], None]
) -> PruneReport:
    """Run ``attnviz prune`` on an opened model.

    advance: told the share of the work that is done.

    Raises:
        LoadError: the pruned model cannot be written.
        UnsupportedError: the heads of this model cannot be removed for good.
        UsageError: heads, texts or memory do not fit the model.
    """
    started = time.monotonic()
    tokens = encode_texts(model, texts, wish.truncate, 2)
    store = PruneStore(model)
    info = model.info
    kv_heads = info.kv_heads if info.heads % info.kv_heads == 0 else info.heads
    bounds = Bounds(
        store.layers, info.heads, kv_heads, empty_layers=wish.empty_layers, uniform=wish.uniform
    )
    if not wish.until_loss:
        goal_of(wish, bounds, info, 0.0)  # refused before anything is measured
    work = _Work(advance)
    targets = _targets(model, tokens)
    scan = open_scan(model, tokens, ScanOptions(max_memory=wish.memory), targets=targets)
    meter = ScanMeter(scan, len(tokens), bounds.all_heads()[0], work.add)
    if not math.isfinite(meter.baseline):
        loss = f"the loss of {info.name!r} is {meter.baseline} in {info.dtype}"
        if info.not_finite:
            raise LoadError(f"{loss}, nothing can be ranked: {info.notes[-1]}")
        raise UsageError(f"{loss}, nothing can be ranked{info.overflow_advice}")
    goal = goal_of(wish, bounds, info, meter.baseline)
    work.total = _estimate(bounds, goal, wish)
    steps = prune(meter, bounds, goal, wish.method, rerank=wish.rerank, baseline=meter.baseline)
    counts = _spread(len(steps), bounds.round)
    random = random_losses(meter, bounds, counts, draws=wish.draws, seed=wish.seed)
    seconds = time.monotonic() - started
    if not steps and wish.out is not None:
        raise UsageError(f"{_none(wish)}: nothing was written")
    removed = [(step.layer, step.head) for step in steps]
    pruned = store.make(removed, tokens[0].ids, wish.out)
    return PruneReport(
        model=info,
        layers=bounds.layers,
        text=texts.texts[0],
        source=texts.source,
        texts=len(tokens),
        tokens=sum(map(len, tokens)),
        loss_name="pseudo-loss" if info.architecture.endswith("MaskedLM") else "loss",
        method=wish.method,
        rerank=wish.rerank,
        wish=wish.words,
        uniform=wish.uniform,
        empty_layers=wish.empty_layers,
        baseline=meter.baseline,
        limit=goal.loss,
        steps=steps,
        random=random,
        draws=wish.draws,
        seed=wish.seed,
        parameters_before=store.parameters,
        pruned=pruned,
        seconds=seconds,
        index_base=wish.index_base,
        notes=(*scan.notes, *_notes(model, wish, steps, texts)),
    )


def _targets(model: Model, tokens: tuple[Tokens, ...]) -> tuple[Tokens, ...]:
    """What the decoder of an encoder–decoder writes for each text; empty for other models."""
    if not isinstance(model, TwoStackModel) or len(model.kinds) == 1:
        return ()
    return tuple(target_tokens(model, text, Choice()) for text in tokens)


def _none(wish: PruneWish) -> str:
    return f"no head can go without passing {wish.until_loss:g} times the loss"


def _notes(
    model: Model, wish: PruneWish, steps: tuple[PruneStep, ...], texts: Texts
) -> tuple[str, ...]:
    notes = []
    if len(model.kinds) > 1:
        notes.append(
            f"only the {model.kinds[0]}'s heads are pruned; the loss is that of the text which the "
            "model itself writes"
        )
    if len(texts.texts) == 1:
        notes.append(
            "one text decides here which heads matter: --texts FILE takes many, which a model that "
            "is to be used needs"
        )
    if not steps:
        notes.append(_none(wish))
    return tuple(notes)


class _Work:
    """How much is measured of what will probably be measured."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance = advance
        self._done = 0.0
        self.total = 0.0

    def add(self, removals: float) -> None:
        self._done += removals
        if self.total:
            self._advance(min(self._done / self.total, 1.0))


def _estimate(bounds: Bounds, goal: Goal, wish: PruneWish) -> float:
    """Removals that will be measured."""
    candidates = len(goal.among) if goal.among is not None else bounds.total
    ranked = candidates if wish.method == "exact" else 0
    if wish.rerank:
        ranked = ranked * goal.count - goal.count * (goal.count - 1) // 2 if ranked else 0
    return ranked + goal.count + wish.draws * min(goal.count, _POINTS)


def _spread(count: int, together: int) -> list[int]:
    """At most 12 numbers of removals up to ``count``, evenly, in whole rounds."""
    rounds = count // together
    points = min(rounds, _POINTS)
    return sorted({round(rounds * place / points) * together for place in range(1, points + 1)})
