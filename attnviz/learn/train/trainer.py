"""Training by a recipe: one step of AdamW, the loop over the phases, the validation loss."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnviz.attention.checkpoint import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder, grown
from attnviz.errors import UsageError
from attnviz.learn.train.recipe import Optimiser, Recipe
from attnviz.learn.train.report import CurvePoint
from attnviz.learn.train.texts import Sampler
from attnviz.models.placement import drawing

_POINTS = 200  # number of points on the curve of a whole run
_TOKENS_AT_ONCE = 8192  # tokens of the validation text in one forward pass


_COUNTED = ("step", "tokens", "_seconds", "_phase", "_phase_step", "_phase_tokens")
"""The trainer's counters, which its state keeps."""


def fresh_decoder(config: DecoderConfig, seed: int) -> TorchDecoder:
    """Return a decoder with random initial parameters, the same on every device for one seed."""
    with drawing(torch.float32, seed):
        return TorchDecoder(config)


def make_optimiser(model: nn.Module, wanted: Optimiser) -> torch.optim.AdamW:
    """Return AdamW over a model's parameters; norms and biases (one dimension) do not decay."""
    weights = [*model.parameters()]
    groups = [[weight for weight in weights if (weight.ndim > 1) is many] for many in (True, False)]
    optimiser = torch.optim.AdamW(
        [{"params": group} for group in groups if group], lr=wanted.learning_rate, fused=True
    )
    change_optimiser(optimiser, wanted)
    return optimiser


def change_optimiser(optimiser: torch.optim.Optimizer, wanted: Optimiser) -> None:
    """Change betas and decay of an optimiser, and keep its running means of the gradients."""
    for group in optimiser.param_groups:
        group["betas"] = wanted.beta1, wanted.beta2
        group["weight_decay"] = wanted.weight_decay if group["params"][0].ndim > 1 else 0.0


def learning_rate(wanted: Optimiser, used: float, steps_in_phase: int) -> float:
    """Return the learning rate of the next step: linear warm-up in a phase, then cosine decay.

    used: share of the budget that is used up. steps_in_phase: training steps since the phase began.
    """
    warm = min(1.0, (steps_in_phase + 1) / (wanted.warmup_steps + 1))
    cosine = 0.5 * (1 + math.cos(math.pi * min(used, 1.0)))
    return wanted.learning_rate * warm * (wanted.final_share + (1 - wanted.final_share) * cosine)


def batch_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the cross-entropy of each prediction in nats: (..., token).

    logits: (..., token, vocab). ids: (..., token), the right id of each prediction.
    """
    flat = functional.cross_entropy(logits.flatten(0, -2).float(), ids.flatten(), reduction="none")
    return flat.view(ids.shape)


def take_step(
    forward: Callable[[Tensor], Tensor],
    optimiser: torch.optim.Optimizer,
    ids: Tensor,
    weights: Tensor,
    *,
    rate: float,
    clip: float,
    autocast: torch.dtype | None,
) -> Tensor:
    """Train on one batch: make one optimiser step; return the loss, a scalar on the device.

    forward: ids (sequence, token) to logits (sequence, token, vocab).
    ids: of the batch. weights: (sequence, token − 1) of each prediction in the mean.
    rate: the learning rate. clip: the largest norm of the gradient.
    autocast: the type of matrix products, None for the parameters' own.
    """
    for group in optimiser.param_groups:
        group["lr"] = rate
    device = optimiser.param_groups[0]["params"][0].device
    ids, weights = _moved(ids, device), _moved(weights, device)
    with torch.autocast(device.type, autocast, enabled=autocast is not None):
        logits = forward(ids[:, :-1])
    loss = (batch_losses(logits, ids[:, 1:]) * weights).sum() / weights.sum()
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(
        [weight for group in optimiser.param_groups for weight in group["params"]], clip
    )
    optimiser.step()
    return loss.detach()


def _moved(batch: Tensor, device: torch.device) -> Tensor:
    """Return the batch on the device, without waiting for the device's computations."""
    pinned = batch.pin_memory() if device.type == "cuda" and not batch.is_cuda else batch
    return pinned.to(device, non_blocking=True)


@torch.inference_mode()
def validation_loss(
    forward: Callable[[Tensor], Tensor],
    tokens: NDArray[np.int32],
    length: int,
    beginning: int,
    device: torch.device,
) -> float:
    """Return the mean cross-entropy over all tokens of a text, in nats per token.

    forward: ids (sequence, token) to logits (sequence, token, vocab).
    tokens: (token,), at least one. length: predicted tokens of a window; the last one is shorter.
    beginning: the id that each window begins with.
    """
    whole = len(tokens) // length * length
    windows, batch = tokens[:whole].reshape(-1, length), max(1, _TOKENS_AT_ONCE // length)
    groups = [windows[start : start + batch] for start in range(0, len(windows), batch)]
    groups += [tokens[None, whole:]] if whole < len(tokens) else []
    total = 0.0
    for group in groups:
        ids = np.insert(group.astype(np.int64), 0, beginning, axis=1)
        on_device = torch.from_numpy(ids).to(device)
        losses = batch_losses(forward(on_device[:, :-1]), on_device[:, 1:])
        total += float(losses.double().sum())
    return total / len(tokens)


def unigram_loss(learned: NDArray[np.integer], held: NDArray[np.integer], vocabulary: int) -> float:
    """Return the loss of predicting by token frequency: mean −ln p, in nats per token.

    learned, held: token ids; p is the share of each token of ``held`` in ``learned``, with each
        count raised by one (Laplace).
    """
    counts = 1.0 + np.bincount(learned, minlength=vocabulary)
    return float(-np.log(counts / counts.sum())[held].mean())


class Trainer:
    """Trains a model by a recipe; ``steps`` continues until the budget is used up.

    train, valid: token ids, (token,). vocabulary: ids are below it. beginning: the id that begins
        every sequence. device: where the model is.
    clock: returns seconds, for a budget in minutes and for the curve.
    model: in the size of the current phase; it grows between phases.
    points: the curve so far. sequences: tokens of the sequences drawn so far, by kind.
    step, tokens: optimiser steps and training tokens so far.
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
        self.device, self.recipe = device, recipe
        self.points: list[CurvePoint] = []
        self.sequences: Counter[str] = Counter()
        self._valid, self._beginning, self._clock = valid, beginning, clock
        self._configs = [
            recipe.shape(index).decoder(vocabulary, beginning) for index in range(len(recipe.phase))
        ]
        self._take(fresh_decoder(self._configs[0], recipe.seed), 0)
        self._sampler = Sampler(train, vocabulary, beginning, recipe.seed)
        self._autocast = None if recipe.autocast == "float32" else torch.bfloat16
        self.step = self.tokens = 0
        self._phase = self._phase_step = self._phase_tokens = 0
        self._seconds = 0.0
        # Sums since the last point; on the device, so that no step waits for the one before.
        self._losses: list[Tensor] = []

    @property
    def used(self) -> float:
        """Return the share of the training budget that is used up, at most 1."""
        return min(1.0, self.recipe.budget.used(self.tokens, self._seconds))

    @property
    def phase(self) -> str:
        """Return the name of the recipe's phase at the last training step."""
        return self.recipe.phase[self._phase].name

    def steps(self) -> Iterator[CurvePoint | None]:
        """Train to the end of the budget; the iteration may be ended and begun again.

        Yields after each training step its point of the curve, None if none was due.
        Raises UsageError if the loss is no longer finite; an earlier ``state`` remains good.
        """
        self.model.train()
        before, began = self._seconds, self._clock()
        while (used := self.used) < 1:
            index = self.recipe.phase_at(used, self._phase, self.tokens - self._phase_tokens)
            if index != self._phase:
                self._enter(index)
            phase, wanted = self.recipe.phase[index], self.recipe.optimiser
            batch = self._sampler.draw(phase)
            rate = phase.rate * learning_rate(wanted, used, self.step - self._phase_step)
            loss = take_step(
                self.model,
                self._optimiser,
                torch.from_numpy(batch.ids),
                torch.from_numpy(batch.weights),
                rate=rate,
                clip=wanted.clip,
                autocast=self._autocast,
            )
            self._losses.append(loss)
            self.step += 1
            self.tokens += batch.weights.size
            self.sequences.update({kind: n * phase.length for kind, n in batch.kinds.items()})
            self._seconds = before + self._clock() - began
            point = None
            if self._is_due(1 / _POINTS) or self._is_due(self.recipe.validation.every):
                point = self._close_point(rate)
                self._seconds = before + self._clock() - began
            yield point

    def state(self) -> dict[str, Any]:
        """Return the state between two training steps, from which ``restore`` continues.

        The continued training gives the same parameters. Raises UsageError if a parameter or a loss
        is no longer finite.
        """
        losses = torch.stack(self._losses).cpu() if self._losses else torch.empty(0)
        if not all(bool(part.isfinite().all()) for part in (losses, *self.model.parameters())):
            raise _not_finite(self.step)
        return {
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            **{name: getattr(self, name) for name in _COUNTED},
            "position": self._sampler.position,
            "windows": self._sampler.windows,
            "sequences": dict(self.sequences),
            "losses": losses,
            "random": torch.get_rng_state(),
        }

    def restore(self, state: dict[str, Any], points: list[CurvePoint]) -> None:
        """Continue from a state that ``state`` returned. points: the curve until then."""
        self._take(TorchDecoder(self._configs[state["_phase"]]), state["_phase"])
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        vars(self).update({name: state[name] for name in _COUNTED})
        self._sampler.position, self._sampler.windows = state["position"], state["windows"]
        self.sequences = Counter(state["sequences"])
        torch.set_rng_state(state["random"])
        self.points = list(points)
        self._losses = list(state["losses"].to(self.device))

    def validate(self, tokens: int) -> float:
        """Return the validation loss in nats per token, over the first ``tokens`` of the text."""
        self.model.eval()
        loss = validation_loss(
            self.model, self._valid[:tokens], self.recipe.window, self._beginning, self.device
        )
        self.model.train()
        return loss

    def _enter(self, phase: int) -> None:
        self._phase, self._phase_step, self._phase_tokens = phase, self.step, self.tokens
        config = self._configs[phase]
        if config == self.model.config:
            change_optimiser(self._optimiser, self._wanted(phase))
            return
        with drawing(torch.float32, self.recipe.seed + phase):
            self._take(grown(self.model, config), phase)
        self.model.train()

    def _take(self, model: TorchDecoder, phase: int) -> None:
        self.model = model.to(self.device)
        self._optimiser = make_optimiser(self.model, self._wanted(phase))

    def _wanted(self, phase: int) -> Optimiser:
        return self.recipe.phase[phase].changed(self.recipe.optimiser, "beta2", "weight_decay")

    def _is_due(self, every: float, validated: bool = False) -> bool:
        """Return whether another share of the budget is used up since the last point.

        validated: whether only points with a validation loss count. The last step is always due.
        """
        points = [point for point in self.points if not validated or point.valid_loss is not None]
        if not points or self.used >= 1:
            return True
        last = self.recipe.budget.used(points[-1].tokens, points[-1].seconds)
        return math.floor(self.used / every) > math.floor(last / every)

    def _close_point(self, rate: float) -> CurvePoint:
        loss, wanted = float(torch.stack(self._losses).mean()), self.recipe.validation
        if not math.isfinite(loss):
            raise _not_finite(self.step)
        self._losses = []
        due = self._is_due(wanted.every, validated=True)
        valid_loss = self.validate(wanted.tokens) if due else None
        so_far = self.step, self.tokens, self._seconds
        self.points.append(CurvePoint(*so_far, rate, loss, valid_loss, self.phase))
        return self.points[-1]


def _not_finite(step: int) -> UsageError:
    return UsageError(
        f"the loss is no longer finite after step {step:,}: a smaller learning_rate or clip, or "
        'autocast = "float32", in the config may help; what was saved before stays'
    )
