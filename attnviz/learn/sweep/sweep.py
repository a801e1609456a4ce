"""Trains the same decoder with several numbers of heads, and measures what its heads look at."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.attention.checkpoint import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.draw.numbers import counted, listed
from attnviz.engine.observer import to_numpy
from attnviz.errors import UnsupportedError, UsageError
from attnviz.learn.sweep.report import PatternScore, SweepModel, SweepReport
from attnviz.learn.sweep.request import SweepRequest
from attnviz.learn.sweep.tasks import BEGINNING, TASKS, Pattern, Samples, Task, characters
from attnviz.learn.train.recipe import Optimiser
from attnviz.learn.train.report import CurvePoint
from attnviz.learn.train.trainer import (
    batch_losses,
    fresh_decoder,
    learning_rate,
    make_optimiser,
    take_step,
)
from attnviz.measures.sinks import uniform_weights
from attnviz.models.memory import require_room
from attnviz.models.placement import find_device
from attnviz.models.threads import threads_for, use_threads
from attnviz.progress import UNWATCHED, Watch, between_steps

_BATCHES, _HELD_OUT = 1, 2  # the purposes of random numbers; each has its own stream
_BATCH, _MEASURED, _SCORED, _AT_ONCE = 32, 512, 64, 128
"""Sequences of a training step, held-out ones, those of them on which heads are scored, and those
of one forward pass."""

_POINTS = 25  # points of a curve, approximately
_PER_PARAMETER, _SQUARES = 16, 7  # bytes of a weight with AdamW; d_model² matrices of a layer


def sweep(request: SweepRequest, *, device: str = "cpu", advance: Watch = UNWATCHED) -> SweepReport:
    """Train the same decoder with several numbers of heads, and compare what the heads learn.

    device: where to train. advance: shows the progress of the training.
    Ctrl-C ends the training between two steps: the report then contains the models trained so far,
    perhaps none, and is not ``complete``. Raises UsageError if the heads do not divide the width,
    the task or device is unknown or the memory is too small, LoadError if the text cannot be read.
    """
    where, task = find_device(device), chosen_task(request)
    numbers, seeds = request.numbers, tuple(range(request.seed, request.seed + request.seeds))
    _check_sizes(request)
    use_threads(threads_for(12 * request.layers * request.d_model**2))
    samples, began = held_out(task, request.seed), time.monotonic()
    pairs = [(heads, seed) for seed in seeds for heads in numbers]
    models: list[SweepModel] = []
    with between_steps() as stopped:
        for heads, seed in pairs:
            training = HeadsTraining(request, task, heads, seed, where)
            for step in training.steps():
                advance((len(models) + step / request.steps) / len(pairs))
                if stopped():
                    break
            if stopped():
                break
            models.append(training.measured(samples))
            advance.found(partial(_model_words, models[-1]))
    return SweepReport(
        task=replace(task.facts, between=tuple(task.between(samples))),
        heads=numbers,
        seeds=seeds,
        layers=request.layers,
        d_model=request.d_model,
        steps=request.steps,
        batch=_BATCH,
        learning_rate=_optimiser(request).learning_rate,
        held_out=len(samples.ids),
        predictions=int(samples.counted.sum()),
        device=str(where),
        threads=torch.get_num_threads(),
        models=tuple(models),
        seconds=time.monotonic() - began,
    )


def _model_words(model: SweepModel) -> str:
    """Return the result of one model: ``8 heads, seed 1: held-out loss 0.028``."""
    return f"{counted(model.heads, 'head')}, seed {model.seed}: held-out loss {model.loss:.3f}"


def chosen_task(request: SweepRequest) -> Task:
    """Return the task that the options choose; UsageError or LoadError if there is none."""
    if request.text is not None:
        return characters(request.text)
    if request.task is not None and request.task not in TASKS:
        expected = f"expected {', '.join(TASKS)}, or --text FILE"
        raise UsageError(f"unknown task {request.task!r}: {expected}")
    return TASKS[request.task or "induction"]


def held_out(task: Task, seed: int) -> Samples:
    """Return the held-out sequences, the same for every model. seed: the sweep's first seed."""
    if task.held_out is not None:
        return task.held_out(_MEASURED)
    return task.draw(_MEASURED, np.random.default_rng((seed, _HELD_OUT)))


def _check_sizes(request: SweepRequest) -> None:
    """Raise UsageError if memory is too small, or heads do not divide the width into even ones."""
    width = request.d_model
    require_room(
        f"{request.layers} layers of a width of {width} take",
        _PER_PARAMETER * request.layers * _SQUARES * width**2,
        "choose a smaller --d-model or --layers",
    )
    allowed = [str(heads) for heads in range(1, width + 1) if width % (2 * heads) == 0]
    expected = f"expected {listed(allowed, 'or') if allowed else 'an even --d-model'}"
    for heads in request.numbers:
        if width % heads:
            raise UsageError(f"--heads {heads} does not divide --d-model {width}: {expected}")
        if width // heads % 2:
            raise UsageError(
                f"--heads {heads} makes heads of an odd width, {width // heads}: rotary positions "
                f"turn pairs of entries; {expected}"
            )


def _optimiser(request: SweepRequest) -> Optimiser:
    """Return the settings of the optimiser: smaller steps for wider models, no weight decay."""
    peak = 0.01 * math.sqrt(32 / max(request.d_model, 32))
    return Optimiser(learning_rate=peak, warmup_steps=20, weight_decay=0.0)


class HeadsTraining:
    """The training of one model of a sweep, and its measurements.

    request, task: the sizes of the model, and what it learns. heads, seed: of the model.
    device: where to train. points: the curve so far.
    """

    def __init__(
        self, request: SweepRequest, task: Task, heads: int, seed: int, device: torch.device
    ) -> None:
        self.heads, self.seed = heads, seed
        self.points: list[CurvePoint] = []
        self._steps, self._task, self._wanted = request.steps, task, _optimiser(request)
        config = DecoderConfig(
            vocabulary=task.facts.vocabulary,
            d_model=request.d_model,
            layers=request.layers,
            heads=heads,
            kv_heads=heads,
            head_dim=request.d_model // heads,
            d_ff=request.d_model,
            context=task.facts.length,
            rope_theta=100.0,  # short wavelengths, for short sequences
            initializer_range=0.1,
            bos=BEGINNING,
        )
        self.model = fresh_decoder(config, seed).to(device)

    def batch(self, step: int) -> Samples:
        """Return the batch of a step, counted from 0, the same for every number of heads."""
        return self._task.draw(_BATCH, np.random.default_rng((self.seed, _BATCHES, step)))

    def steps(self) -> Iterator[int]:
        """Train to the end and yield the steps so far; UnsupportedError if the loss diverges."""
        optimiser, losses, seconds = make_optimiser(self.model, self._wanted), [], 0.0
        every = max(1, self._steps // _POINTS)
        self.model.train()
        for step in range(1, self._steps + 1):
            samples = self.batch(step - 1)
            rate = learning_rate(self._wanted, (step - 1) / self._steps, step - 1)
            began = time.perf_counter()
            loss = take_step(
                self.model,
                optimiser,
                torch.from_numpy(samples.ids),
                torch.from_numpy(samples.counted.astype(np.float32)),
                rate=rate,
                clip=self._wanted.clip,
                autocast=None,
            )
            losses.append(loss)
            due = step in (1, self._steps) or step % every == 0
            # Reading the losses waits for the device, which is part of the steps' time.
            mean = float(torch.stack(losses).mean()) if due else 0.0
            seconds += time.perf_counter() - began
            if not math.isfinite(mean):
                raise UnsupportedError(
                    f"the loss of {self.heads} heads is no longer finite after step {step:,} "
                    f"of seed {self.seed} (it is {mean}): another --d-model or --seed may help"
                )
            if due:
                tokens = step * _BATCH * self._task.facts.length
                self.points.append(CurvePoint(step, tokens, seconds, rate, mean))
                losses = []
            yield step

    @torch.inference_mode()
    def measured(self, samples: Samples) -> SweepModel:
        """Return the trained model with its results. samples: held-out sequences."""
        self.model.eval()
        device, predictions = next(self.model.parameters()).device, int(samples.counted.sum())
        loss = right = 0.0
        for start in range(0, len(samples.ids), _AT_ONCE):
            ids = torch.from_numpy(samples.ids[start : start + _AT_ONCE]).to(device)
            counted = torch.from_numpy(samples.counted[start : start + _AT_ONCE]).to(device)
            logits, answers = self.model(ids[:, :-1]), ids[:, 1:]
            loss += float(batch_losses(logits, answers)[counted].double().sum())
            right += float((logits.argmax(-1) == answers)[counted].sum())
        steps, seconds = np.array([(point.step, point.seconds) for point in self.points]).T
        # The first step warms the device up.
        times = np.diff(seconds) / np.diff(steps) if len(steps) > 1 else seconds
        return SweepModel(
            heads=self.heads,
            seed=self.seed,
            parameters=sum(weight.numel() for weight in self.model.parameters()),
            points=tuple(self.points),
            loss=loss / predictions,
            accuracy=right / predictions,
            step_seconds=float(np.median(times)),
            patterns=best_heads(self.model, self._task.patterns, samples),
        )


def best_heads(
    model: TorchDecoder, patterns: Sequence[Pattern], samples: Samples
) -> tuple[PatternScore, ...]:
    """Return the best head of the model for each pattern.

    samples: the first 64 sequences are used; patterns that do not occur in them are left out.
    """
    few = Samples(samples.answers[:_SCORED], samples.counted[:_SCORED])
    layers, tokens = list[Tensor](), few.counted.shape[1]
    with ExitStack() as hooks, torch.inference_mode():
        block: Any
        for block in model.layers:
            point = block.self_attn.weights_point
            hook = point.register_forward_hook(lambda _, given, weights: layers.append(weights))
            hooks.callback(hook.remove)
        model(torch.from_numpy(few.queries).to(next(model.parameters()).device))
    uniform = uniform_weights(tokens, tokens, causal=True)
    best = []
    for pattern in patterns:
        keys = pattern.keys(few)
        if not keys.any():
            continue
        # (layer, head)
        scores = np.stack([weight_on(keys, to_numpy(weights)) for weights in layers])
        layer, head = map(int, np.unravel_index(scores.argmax(), scores.shape))
        even = weight_on(keys, np.broadcast_to(uniform, (len(keys), 1, *uniform.shape)))
        score = float(scores[layer, head])
        best.append(PatternScore(pattern.name, pattern.words, layer, head, score, float(even[0])))
    return tuple(best)


def weight_on(keys: NDArray[np.bool_], weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return each head's mean share of attention on the keys of a pattern: (head,), in [0, 1].

    keys: a mask (sequence, query, key); queries without any do not count.
    weights: the attention weights (sequence, head, query, key).
    """
    mass = np.where(keys[:, None], weights, 0).sum(-1, dtype=np.float64)  # (sequence, head, query)
    there = np.asarray(keys.any(-1))[:, None]
    return np.asarray(np.where(there, mass, 0).sum((0, 2)) / there.sum())
