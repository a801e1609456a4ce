"""The loss on a validation text: windows side by side, each begun like a text of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.train.optimisation import token_losses

__all__ = ["validation_loss"]

_TOKENS_AT_ONCE = 8192


@torch.inference_mode()
def validation_loss(
    forward: Callable[[Tensor], Tensor],
    tokens: NDArray[np.int32],
    length: int,
    beginning: int,
    device: torch.device,
) -> float:
    """Mean cross-entropy over all tokens, nats per token, in the type of the parameters.

    forward: ids (sequence, token) to logits (sequence, token, vocabulary).
    tokens: (token,), at least one. length: predicted tokens of a window; the last one is shorter.
    beginning: the id that each window begins with.
    """
    whole = len(tokens) // length * length
    windows = list(tokens[:whole].reshape(-1, length))
    batch = max(1, _TOKENS_AT_ONCE // length)
    groups = [windows[start : start + batch] for start in range(0, len(windows), batch)]
    if whole < len(tokens):
        groups.append([tokens[whole:]])
    total = 0.0
    for group in groups:
        rows = np.stack(group).astype(np.int64)
        ids = np.concatenate([np.full((len(rows), 1), beginning), rows], axis=1)
        on_device = torch.from_numpy(ids).to(device)
        losses = token_losses(forward(on_device[:, :-1]), on_device[:, 1:])
        total += float(losses.double().sum())
    return total / len(tokens)
