"""Integrated gradients of a prediction over the embeddings of its words.

A token's share is (x − x′) · ∫ ∂M/∂x along the straight way from a baseline x′ to its embedding x:
Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks". The baseline is the mean row of
the embeddings, since RMS norms are singular at zero. Over all tokens the shares sum to the change
of M from the baseline; the integral is a sum of Gauss-Legendre steps, and the gap is what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.attribution.followed_run import batch_logits
from attnviz.engine.device_sizes import widest
from attnviz.engine.hook_points import hooked
from attnviz.engine.patchable import PatchableModel
from attnviz.errors import UnsupportedError
from attnviz.models.split import whole_modules
from attnviz.models.whole import table_rows
from attnviz.records import Input

Measure = Callable[[Tensor], Tensor]
"""Returns the number (text,) that is attributed, from logits (text, row, vocab): of the measured
token alone, or of all tokens."""

FIRST, MOST = 32, 1024
"""The steps of the integral: doubled from the first number on, to the most."""

ALLOWED_GAP = 0.01
"""The gap, as a share of the change from the baseline, below which the integral has converged."""

_TOKENS = 4096
"""The most tokens that run in one batch."""


class Integrated(NamedTuple):
    """Each token's share (token,), the change of the measure, the steps, and the relative gap."""

    shares: NDArray[np.float64]
    change: float
    steps: int
    gap: float

    @property
    def converged(self) -> bool:
        """Return whether the gap is below ``ALLOWED_GAP``; False for NaN."""
        return self.gap < ALLOWED_GAP


def integrated_gradients(
    model: PatchableModel, given: Input, place: int | None, measure: Measure
) -> Integrated:
    """Return integrated gradients of a measure, with steps doubled until they sum to its change.

    place: the index of the token whose logits are measured; None for those of all tokens.
    Raises UnsupportedError if the model's token embeddings are not found.
    """
    way = _Way(model, given, place, measure)
    with model.hook_points.borrowed(), whole_modules(model.root):
        low, high = way.values(np.array([0.0, 1.0])).tolist()
        change, steps = high - low, FIRST
        while True:
            shares = way.shares(steps)
            gap = abs(float(shares.sum()) - change) / abs(change) if change else np.nan
            found = Integrated(shares, change, steps, gap)
            if found.converged or steps >= MOST:
                return found
            steps *= 2


class _Way:
    """The straight way of a text's embeddings from the mean row to their own values."""

    def __init__(
        self, model: PatchableModel, given: Input, place: int | None, measure: Measure
    ) -> None:
        self._model, self._given, self._place, self._measure = model, given, place, measure
        find: Any = getattr(model.root, "get_input_embeddings", None)
        table: Any = find() if find is not None else getattr(model.root, "embed_tokens", None)
        if not isinstance(table, nn.Module):
            raise UnsupportedError(
                f"the token embeddings of {type(model.root).__name__} were not found: "
                "integrated gradients start there"
            )
        self._table = table
        with torch.no_grad():
            every = table_rows(table, getattr(model.root, "config", None))
            rows = table(torch.arange(every, device=model.device))
            self._base = rows.mean(0)
            self._change = rows[list(given.ids)] - self._base  # (token, width)

    def values(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the measure (step,) at points ``at`` from 0, the baseline, to 1, the text."""
        with torch.no_grad():
            found: NDArray[np.float64] = self._run(self._points(at)).cpu().numpy()
        return found

    def shares(self, steps: int) -> NDArray[np.float64]:
        """Return each token's share (token,) by a number of Gauss-Legendre steps."""
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        total = torch.zeros_like(widest(self._change))
        rows = max(_TOKENS // len(self._change), 1)
        for start in range(0, steps, rows):
            part = slice(start, start + rows)
            points = self._points((nodes[part] + 1) / 2).requires_grad_()
            with torch.enable_grad():
                (slopes,) = torch.autograd.grad(self._run(points).sum(), points)
            factors = torch.tensor(weights[part] / 2, device=total.device)
            total += (widest(slopes) * factors[:, None, None]).sum(0)
        return (total * widest(self._change)).sum(-1).cpu().numpy()

    def _points(self, at: NDArray[np.float64]) -> Tensor:
        way = torch.tensor(at, dtype=self._base.dtype, device=self._base.device)
        return self._base + way[:, None, None] * self._change

    def _run(self, points: Tensor) -> Tensor:
        """Return the measure (row,) of a run with embeddings (row, token, width) for the text's."""
        texts = [self._given] * len(points)
        with hooked(self._table.register_forward_hook(lambda table, args, output: points)):
            logits = batch_logits(self._model, texts[0], self._place, *texts[1:])
        return self._measure(widest(logits))
