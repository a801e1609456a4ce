"""Trains the same decoder with several numbers of heads, and measures what its heads look at."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.draw.numbers import listed
from attnviz.engine.observer import to_numpy
from attnviz.errors import UnsupportedError, UsageError
from attnviz.interrupts import between_steps
from attnviz.learn.sweep.progress import Progress
from attnviz.learn.sweep.report import PatternScore, SweepModel, SweepReport
from attnviz.learn.sweep.request import SweepRequest
from attnviz.learn.sweep.tasks import BEGINNING, Pattern, Samples, Task
from attnviz.learn.train.progress import OnStep, Watcher
from attnviz.learn.train.recipe import Optimiser
from attnviz.learn.train.report import CurvePoint
from attnviz.learn.train.trainer import (
    batch_losses,
    fresh_decoder,
    learning_rate,
    make_optimiser,
    take_step,
)
from attnviz.measures.uniform import uniform_weights
from attnviz.models.memory import require_room
from attnviz.models.placement import find_device
from attnviz.models.threads import threads_for, use_threads

_BATCHES, _HELD_OUT = 1, 2
"""The purposes of random numbers; each has its own stream."""

_POINTS = 25
"""Points of a curve, approximately."""

_PER_PARAMETER, _SQUARES = 16, 7
"""Bytes of a weight, its gradient and AdamW's two means; d_model × d_model matrices of a layer."""

_SEQUENCES = 64
"""Number of sequences on which heads are scored."""

_AT_ONCE = 128
"""Held-out sequences of one forward pass."""


def sweep(
    request: SweepRequest, *, device: str = "cpu", watcher: Watcher | None = None
) -> SweepReport:
    """Train the same decoder with several numbers of heads, and compare what the heads learn.

    device: where to train. watcher: shows the progress of the training.
    Ctrl-C ends the training between two steps: the report then contains the models trained so far,
    perhaps none, and is not ``complete``. Raises UsageError if the heads do not divide the width,
    the task or device is unknown or the memory is too small, LoadError if the text cannot be read.
    """
    place = find_device(device)
    plan = SweepPlan(
        task=request.subject(),
        heads=request.numbers,
        seeds=tuple(range(request.seed, request.seed + request.seeds)),
        layers=request.layers,
        d_model=request.d_model,
        steps=request.steps,
    )
    began = time.monotonic()
    progress = Progress(len(plan.heads) * len(plan.seeds), plan.steps)
    shown = (watcher or Watcher()).watching(lambda: progress.words, lambda: progress.plot)
    use_threads(threads_for(12 * plan.layers * plan.d_model**2))
    with shown as on_step:
        models = _train(plan, place, progress, on_step)
    return _report(plan, place, models, time.monotonic() - began)


@dataclass(frozen=True)
class SweepPlan:
    """The models of a sweep to train, and the settings of their training.

    task: the task. heads: of each layer, ascending. seeds: of first parameters and batches.
    layers, d_model: of every model; the feed-forward is ``d_model`` wide too.
    steps, batch: of a training. held_out: number of sequences reserved for measuring.
    Raises UsageError if the memory is too small for the models, or if heads do not divide the width
    or make heads of an odd width.
    """

    task: Task
    heads: tuple[int, ...]
    seeds: tuple[int, ...]
    layers: int = 2
    d_model: int = 32
    steps: int = 500
    batch: int = 32
    held_out: int = 512

    def __post_init__(self) -> None:
        require_room(
            f"{self.layers} layers of a width of {self.d_model} take",
            _PER_PARAMETER * self.layers * _SQUARES * self.d_model**2,
            "choose a smaller --d-model or --layers",
        )
        for heads in self.heads:
            if self.d_model % heads:
                raise UsageError(
                    f"--heads {heads} does not divide --d-model {self.d_model}: expected "
                    f"{_divisors(self.d_model)}"
                )
            if self.d_model // heads % 2:
                raise UsageError(
                    f"--heads {heads} makes heads of an odd width, {self.d_model // heads}: rotary "
                    f"positions turn pairs of entries; expected {_divisors(self.d_model)}"
                )

    @property
    def optimiser(self) -> Optimiser:
        """Return the settings of the optimiser: smaller steps for wider models, no weight decay."""
        peak = 0.01 * math.sqrt(32 / max(self.d_model, 32))
        return Optimiser(learning_rate=peak, warmup_steps=20, weight_decay=0.0)

    def config(self, heads: int) -> DecoderConfig:
        """Return the sizes of the decoder with this number of heads."""
        return DecoderConfig(
            vocabulary=self.task.vocabulary,
            d_model=self.d_model,
            layers=self.layers,
            heads=heads,
            kv_heads=heads,
            head_dim=self.d_model // heads,
            d_ff=self.d_model,
            context=self.task.length,
            rope_theta=100.0,  # short wavelengths, for short sequences
            initializer_range=0.1,
            bos=BEGINNING,
        )

    def measured_on(self) -> Samples:
        """Return the held-out sequences, which are the same for every model."""
        random = np.random.default_rng((self.seeds[0], _HELD_OUT))
        return self.task.held_out(self.held_out, random)

    def draw_batch(self, seed: int, step: int) -> Samples:
        """Return the batch of a training step, which is the same for every number of heads.

        seed: of the model. step: its number, from 0.
        """
        return self.task.draw(self.batch, np.random.default_rng((seed, _BATCHES, step)))


class HeadsTraining:
    """The training of one model of a sweep, and its measurements.

    heads, seed: of the model. device: where to train. points: the curve so far.
    """

    def __init__(self, plan: SweepPlan, heads: int, seed: int, device: torch.device) -> None:
        self.heads, self.seed = heads, seed
        self.points: list[CurvePoint] = []
        self.model = fresh_decoder(plan.config(heads), seed).to(device)
        self._plan, self._device = plan, device
        self._optimiser = make_optimiser(self.model, plan.optimiser)
        self._step_seconds: list[float] = []

    def steps(self) -> Iterator[CurvePoint | None]:
        """Train the model to the end; yield after each training step its curve point, or None.

        Raises UnsupportedError if the loss is no longer finite.
        """
        plan, losses = self._plan, []
        every = max(1, plan.steps // _POINTS)
        seconds = total = 0.0
        self.model.train()
        for step in range(plan.steps):
            samples = plan.draw_batch(self.seed, step)
            rate = learning_rate(plan.optimiser, step / plan.steps, step)
            began = time.perf_counter()
            loss = take_step(
                self.model,
                self._optimiser,
                torch.from_numpy(samples.ids),
                torch.from_numpy(samples.counted.astype(np.float32)),
                rate=rate,
                clip=plan.optimiser.clip,
                autocast=None,
            )
            losses.append(loss)
            due = step == 0 or (step + 1) % every == 0 or step + 1 == plan.steps
            # Reading the losses waits for the device, which is part of the steps' time.
            mean = float(torch.stack(losses).mean()) if due else 0.0
            seconds += time.perf_counter() - began
            if not due:
                yield None
                continue
            if not math.isfinite(mean):
                raise UnsupportedError(
                    f"the loss of {self.heads} heads is no longer finite after step {step + 1:,} "
                    f"of seed {self.seed} (it is {mean}): another --d-model or --seed may help"
                )
            self._step_seconds.append(seconds / len(losses))
            total += seconds
            tokens = (step + 1) * plan.batch * plan.task.length
            self.points.append(CurvePoint(step + 1, tokens, total, rate, mean))
            losses, seconds = [], 0.0
            yield self.points[-1]

    def measured(self, samples: Samples) -> SweepModel:
        """Return the trained model with its results.

        samples: sequences that it was not trained on.
        """
        self.model.eval()
        loss, accuracy = self._held_out(samples)
        return SweepModel(
            heads=self.heads,
            seed=self.seed,
            parameters=sum(weight.numel() for weight in self.model.parameters()),
            points=tuple(self.points),
            loss=loss,
            accuracy=accuracy,
            # The first step warms the device up.
            step_seconds=statistics.median(self._step_seconds[1:] or self._step_seconds),
            patterns=best_heads(self.model, self._plan.task.patterns, samples),
        )

    @torch.inference_mode()
    def _held_out(self, samples: Samples) -> tuple[float, float]:
        """Return the mean loss in nats and the accuracy over the predictions that count."""
        loss = right = 0.0
        for start in range(0, len(samples.ids), _AT_ONCE):
            ids = torch.from_numpy(samples.ids[start : start + _AT_ONCE]).to(self._device)
            counted = torch.from_numpy(samples.counted[start : start + _AT_ONCE]).to(self._device)
            logits, answers = self.model(ids[:, :-1]), ids[:, 1:]
            loss += float(batch_losses(logits, answers)[counted].double().sum())
            right += float((logits.argmax(-1) == answers)[counted].sum())
        return loss / samples.predictions, right / samples.predictions


def best_heads(
    model: TorchDecoder, patterns: Sequence[Pattern], samples: Samples
) -> tuple[PatternScore, ...]:
    """Return the best head of the model for each pattern.

    samples: the first 64 sequences are used; patterns that do not occur in them are left out.
    """
    few = Samples(samples.ids[:_SEQUENCES], samples.counted[:_SEQUENCES])
    layers = _weights(model, few)
    tokens = few.counted.shape[1]
    uniform = uniform_weights(tokens, tokens, causal=True)
    best = []
    for pattern in patterns:
        keys = pattern.keys(few)
        if not keys.any():
            continue
        scores = np.stack([weight_on(keys, weights) for weights in layers])  # (layer, head)
        layer, head = np.unravel_index(scores.argmax(), scores.shape)
        even = weight_on(keys, np.broadcast_to(uniform, (len(keys), 1, *uniform.shape)))
        best.append(
            PatternScore(
                name=pattern.name,
                words=pattern.words,
                layer=int(layer),
                head=int(head),
                score=float(scores[layer, head]),
                even=float(even[0]),
            )
        )
    return tuple(best)


def weight_on(keys: NDArray[np.bool_], weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return each head's mean share of attention on the keys of a pattern: (head,), in [0, 1].

    keys: a mask (sequence, query, key); queries without any do not count.
    weights: the attention weights (sequence, head, query, key).
    """
    mass = np.where(keys[:, None], weights, 0).sum(-1, dtype=np.float64)  # (sequence, head, query)
    there = np.asarray(keys.any(-1))[:, None]
    return np.asarray(np.where(there, mass, 0).sum((0, 2)) / there.sum())


@torch.inference_mode()
def _weights(model: TorchDecoder, samples: Samples) -> list[NDArray[np.floating]]:
    """Return the attention weights of each layer, (sequence, head, query, key)."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], weights: Tensor) -> None:
        kept.append(weights)

    with ExitStack() as hooks:
        layer: Any
        for layer in model.layers:
            hooks.callback(layer.self_attn.weights_point.register_forward_hook(keep).remove)
        model(torch.from_numpy(samples.ids[:, :-1]).to(next(model.parameters()).device))
    return [*map(to_numpy, kept)]


def _divisors(d_model: int) -> str:
    """Return a string with the numbers of heads that the width ``d_model`` allows."""
    allowed = [str(heads) for heads in range(1, d_model + 1) if d_model % (2 * heads) == 0]
    if not allowed:
        return "an even --d-model"
    return listed(allowed, "or")


def _train(
    plan: SweepPlan, device: torch.device, progress: Progress, on_step: OnStep
) -> tuple[SweepModel, ...]:
    """Train all models, seed by seed; return them, or only the finished ones after a stop."""
    samples = plan.measured_on()
    models: list[SweepModel] = []
    with between_steps() as stopped:
        for seed in plan.seeds:
            for heads in plan.heads:
                training = HeadsTraining(plan, heads, seed, device)
                progress.begin(heads, seed, training.points)
                for _ in training.steps():
                    progress.advance()
                    on_step(False)
                    if stopped():
                        return tuple(models)
                models.append(training.measured(samples))
                progress.done, progress.step = len(models), 0
    return tuple(models)


def _report(
    plan: SweepPlan, device: torch.device, models: tuple[SweepModel, ...], seconds: float
) -> SweepReport:
    samples = plan.measured_on()
    report = SweepReport(
        task=plan.task.facts(samples),
        heads=plan.heads,
        seeds=plan.seeds,
        layers=plan.layers,
        d_model=plan.d_model,
        d_ff=plan.d_model,
        steps=plan.steps,
        batch=plan.batch,
        learning_rate=plan.optimiser.learning_rate,
        held_out=len(samples.ids),
        predictions=samples.predictions,
        device=str(device),
        threads=torch.get_num_threads(),
        models=models,
        seconds=seconds,
    )
    note = f"interrupted: {report.trained_words}, the others are left out"
    return report if report.complete else replace(report, notes=(note,))
