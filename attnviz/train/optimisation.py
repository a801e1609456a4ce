"""One step of AdamW on the weighted cross-entropy of a batch, for any model of token ids."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnviz.train.recipe import Optimiser

__all__ = ["change_optimiser", "learning_rate", "make_optimiser", "take_step", "token_losses"]


def make_optimiser(model: nn.Module, wanted: Optimiser) -> torch.optim.AdamW:
    """AdamW over a model's parameters; those with one dimension, norms and biases, do not decay."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    groups = [
        [one for one in parameters if one.ndim > 1],
        [one for one in parameters if one.ndim < 2],
    ]
    optimiser = torch.optim.AdamW(
        [{"params": group} for group in groups if group], lr=wanted.learning_rate, fused=True
    )
    change_optimiser(optimiser, wanted)
    return optimiser


def change_optimiser(optimiser: torch.optim.Optimizer, wanted: Optimiser) -> None:
    """Go on with other betas and another decay, and what was learned of the gradients."""
    for group in optimiser.param_groups:
        group["betas"] = wanted.beta1, wanted.beta2
        group["weight_decay"] = wanted.weight_decay if group["params"][0].ndim > 1 else 0.0


def learning_rate(wanted: Optimiser, used: float, steps_in_phase: int) -> float:
    """The rate of the next step: a linear warm-up in each phase, a cosine over the budget.

    used: share of the budget that is used up. steps_in_phase: done since the phase began.
    """
    warm = min(1.0, (steps_in_phase + 1) / (wanted.warmup_steps + 1))
    cosine = 0.5 * (1 + math.cos(math.pi * min(used, 1.0)))
    return wanted.learning_rate * warm * (wanted.final_share + (1 - wanted.final_share) * cosine)


def token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy in nats: logits (..., token, vocabulary) and next ids (..., token) to each."""
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
    """Learn from one batch; its loss, a scalar still on the device.

    forward: ids (sequence, token) to logits (sequence, token, vocabulary).
    weights: (sequence, token − 1), of each prediction in the mean.
    autocast: the type of matrix products, None for the parameters' own.
    """
    for group in optimiser.param_groups:
        group["lr"] = rate
    with torch.autocast(ids.device.type, autocast, enabled=autocast is not None):
        logits = forward(ids[:, :-1])
    loss = (token_losses(logits, ids[:, 1:]) * weights).sum() / weights.sum()
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(
        [one for group in optimiser.param_groups for one in group["params"]], clip
    )
    optimiser.step()
    return loss.detach()
