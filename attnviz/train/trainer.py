"""The training loop: batches in, curve points out, its state at hand at any moment."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder, grown
from attnviz.errors import UsageError
from attnviz.train.evaluation import validation_loss
from attnviz.train.optimisation import (
    change_optimiser,
    learning_rate,
    make_optimiser,
    take_step,
)
from attnviz.train.precision import with_known_precision
from attnviz.train.recipe import Optimiser, Phase, Recipe
from attnviz.train.records import CurvePoint
from attnviz.train.sequences import Batch, Sampler

__all__ = ["Trainer"]

_POINTS = 200
"""Of the curve of a whole run."""

_VALIDATION_SHARE = 0.15
"""Of a budget in minutes, what may go into reading the validation text on the way."""


class Trainer:
    """Trains a model by a recipe; ``run`` goes on until the budget is used up.

    train, valid: token ids, (token,). vocabulary: ids are below it. beginning: the id that begins
    every sequence. device: where the model is.
    clock: seconds, for a budget in minutes and for the curve.
    model: as the phase wants it; it grows between phases.
    points: the curve so far. sequences: drawn so far, by kind, weighted with their length.
    """

    def __init__(
        self,
        recipe: Recipe,
        train: NDArray[np.int32],
        valid: NDArray[np.int32],
        vocabulary: int,
        beginning: int,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self.recipe = recipe = with_known_precision(recipe, device)
        self.points: list[CurvePoint] = []
        self.sequences: Counter[str] = Counter()
        self._valid, self._beginning, self._clock = valid, beginning, clock
        self._configs = [
            recipe.shape(index).decoder(vocabulary, beginning)
            for index in range(len(recipe.phases))
        ]
        self._take(_fresh(self._configs[0], recipe.seed), 0)
        self._sampler = Sampler(train, vocabulary, beginning, recipe.seed)
        self._autocast = None if recipe.autocast == "float32" else torch.bfloat16
        self._step = self._tokens = 0
        self._phase = self._phase_step = self._phase_tokens = 0
        self._seconds = self._validating = 0.0
        # Sums since the last point; on the device, so that no step waits for the one before.
        self._losses: list[Tensor] = []

    @property
    def used(self) -> float:
        """Share of the budget that is used up, at most 1."""
        return min(1.0, self.recipe.budget.used(self._tokens, self._seconds))

    @property
    def tokens(self) -> int:
        """Read so far."""
        return self._tokens

    @property
    def phase(self) -> str:
        """Name of the recipe's phase that the last step belongs to."""
        return self.recipe.phases[self._phase].name

    def run(self) -> Iterator[CurvePoint]:
        """Train to the end of the budget, a point of the curve at a time; see ``steps``."""
        return (point for point in self.steps() if point is not None)

    def steps(self) -> Iterator[CurvePoint | None]:
        """Train to the end of the budget, a step at a time; may be left and entered again.

        Gives the point of the curve that the step ended with, None where none was due.
        Raises UsageError when the loss is no longer finite; what ``state`` gave before is good.
        """
        self.model.train()
        before, began = self._seconds, self._clock()
        while (used := self.used) < 1:
            read = self._tokens - self._phase_tokens
            if (index := self.recipe.phase(used, self._phase, read)) != self._phase:
                self._enter(index)
            phase = self.recipe.phases[index]
            batch = self._sampler.draw(phase)
            rate = phase.rate * learning_rate(
                self.recipe.optimiser, used, self._step - self._phase_step
            )
            self._losses.append(self._learn(batch, rate))
            self._step += 1
            self._tokens += batch.weights.size
            self.sequences.update({kind: n * phase.length for kind, n in batch.kinds.items()})
            self._seconds = before + self._clock() - began
            point = None
            if self._point_is_due():
                point = self._close_point(rate, phase)
                self._seconds = before + self._clock() - began
            yield point

    def state(self) -> dict[str, Any]:
        """All that ``restore`` needs to go on to the same weights, between any two steps.

        Raises UsageError where a weight or a loss is no longer finite.
        """
        losses = torch.stack(self._losses).cpu() if self._losses else torch.empty(0)
        finite = [bool(one.isfinite().all()) for one in (losses, *self.model.parameters())]
        if not all(finite):
            raise _not_finite(self._step)
        return {
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "step": self._step,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "phase": self._phase,
            "phase_step": self._phase_step,
            "phase_tokens": self._phase_tokens,
            "position": self._sampler.position,
            "windows": self._sampler.windows,
            "sequences": dict(self.sequences),
            "losses": losses,
            "random": torch.get_rng_state(),
        }

    def restore(self, state: dict[str, Any], points: list[CurvePoint]) -> None:
        """Go on where ``state`` was taken."""
        self._take(TorchDecoder(self._configs[state["phase"]]), state["phase"])
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._step, self._tokens = state["step"], state["tokens"]
        self._seconds = state["seconds"]
        self._phase, self._phase_step = state["phase"], state["phase_step"]
        self._phase_tokens = state["phase_tokens"]
        self._sampler.position, self._sampler.windows = state["position"], state["windows"]
        self.sequences = Counter(state["sequences"])
        torch.set_rng_state(state["random"])
        self.points = list(points)
        self._losses = list(state["losses"].to(self.device))

    def validate(self, tokens: int | None = None) -> float:
        """The loss on the first ``tokens`` of the validation text, or on all of it."""
        self.model.eval()
        loss = validation_loss(
            self.model, self._valid[:tokens], self.recipe.window, self._beginning, self.device
        )
        self.model.train()
        return loss

    def _enter(self, phase: int) -> None:
        self._phase, self._phase_step, self._phase_tokens = phase, self._step, self._tokens
        config = self._configs[phase]
        if config != self.model.config:
            with _seeded(self.recipe.seed + phase):
                self._take(grown(self.model, config), phase)
            self.model.train()
        else:
            change_optimiser(self._optimiser, self._wanted(phase))

    def _take(self, model: TorchDecoder, phase: int) -> None:
        self.model = model.to(self.device)
        self._optimiser = make_optimiser(self.model, self._wanted(phase))

    def _wanted(self, phase: int) -> Optimiser:
        return self.recipe.phases[phase].optimiser(self.recipe.optimiser)

    def _learn(self, batch: Batch, rate: float) -> Tensor:
        ids, weights = torch.from_numpy(batch.ids), torch.from_numpy(batch.weights)
        if self.device.type == "cuda":
            ids, weights = ids.pin_memory(), weights.pin_memory()
        return take_step(
            self.model,
            self._optimiser,
            ids.to(self.device, non_blocking=True),
            weights.to(self.device, non_blocking=True),
            rate=rate,
            clip=self.recipe.optimiser.clip,
            autocast=self._autocast,
        )

    def _point_is_due(self) -> bool:
        if not self.points or self.used >= 1:
            return True
        last = self._used_at(self.points[-1])
        return any(
            math.floor(self.used / every) > math.floor(last / every)
            for every in (1 / _POINTS, self.recipe.validation.every)
        )

    def _close_point(self, rate: float, phase: Phase) -> CurvePoint:
        loss = float(torch.stack(self._losses).mean())
        if not math.isfinite(loss):
            raise _not_finite(self._step)
        self._losses = []
        self.points.append(
            CurvePoint(
                step=self._step,
                tokens=self._tokens,
                seconds=self._seconds,
                learning_rate=rate,
                loss=loss,
                valid_loss=self._valid_loss_if_due(),
                phase=phase.name,
            )
        )
        return self.points[-1]

    def _valid_loss_if_due(self) -> float | None:
        wanted = self.recipe.validation
        last = next((one for one in reversed(self.points) if one.valid_loss is not None), None)
        if last is not None and self.used < 1:
            marks = math.floor(self._used_at(last) / wanted.every)
            if math.floor(self.used / wanted.every) <= marks:
                return None
            costly = self._validating > _VALIDATION_SHARE * self._seconds
            if self.recipe.budget.minutes is not None and costly:
                return None
        began = self._clock()
        loss = self.validate(wanted.tokens)
        self._validating += self._clock() - began
        return loss

    def _used_at(self, point: CurvePoint) -> float:
        return self.recipe.budget.used(point.tokens, point.seconds)


def _fresh(config: DecoderConfig, seed: int) -> TorchDecoder:
    with _seeded(seed):
        return TorchDecoder(config)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Weights are drawn on the CPU, so that a seed means the same ones on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _not_finite(step: int) -> UsageError:
    return UsageError(
        f"the loss is no longer finite after step {step:,}: a smaller learning_rate or clip, or "
        'autocast = "float32", in the config may help; what was saved before stays'
    )
