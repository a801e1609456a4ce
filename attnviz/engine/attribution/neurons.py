"""What single neurons of a feed-forward block write towards a logit, and when they are active.

A block puts out Σ_i a_i · W_down[:, i] + b. So neuron i contributes
a_i · ⟨∂logit/∂output, W_down[:, i]⟩, and all of them and the bias add up to the block's part in the
logit (Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in
the Vocabulary Space"). The activation a is f(x), or f(x) · up with a gate (Shazeer 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import NEARLY_ZERO, Floats


@dataclass(frozen=True, eq=False)
class NeuronReading:
    """The neurons of one feed-forward block over a text, and what they write towards one logit.

    position: the token at which the logit is read. activation: the name of f; None if not known.
    active: (token, neuron), f(x); None if f is not known. up: (token, neuron), what f(x) is
        multiplied with; None without a gate.
    values: (token, neuron), a: what enters the last matrix of the block.
    written: (neuron,), the contribution of each to the logit. bias: that of the last matrix's bias.
    part: the contribution of the whole block, computed without looking into it.
    tolerance: how far the sum may be from it. All these in logits.
    """

    layer: int
    position: int
    activation: str | None
    active: Floats | None
    up: Floats | None
    values: Floats
    written: Floats
    bias: float
    part: float
    tolerance: float

    def __post_init__(self) -> None:
        shapes = {own.shape for own in (self.active, self.up, self.values) if own is not None}
        if shapes != {self.values.shape} or self.written.shape != self.values.shape[1:]:
            raise ValueError(f"expected (token, neuron) of one size, got {shapes}")

    @property
    def tallies(self) -> bool:
        """Return whether the neurons and the bias add up to the block's part in the logit."""
        return abs(float(self.written.sum()) + self.bias - self.part) <= self.tolerance

    @property
    def order(self) -> NDArray[np.int64]:
        """Return the indices of the neurons, the largest contribution of either sign first."""
        return np.argsort(-np.abs(self.written), kind="stable")

    @property
    def half(self) -> int:
        """Return how many neurons have half of all contributions, in absolute value."""
        sizes = np.sort(np.abs(self.written))[::-1].cumsum()
        return int(np.searchsorted(sizes, sizes[-1] / 2)) + 1

    def off(self, *, everywhere: bool = False) -> float | None:
        """Return the share of neurons with f(x) ≤ 0, here or everywhere; None if f is not known."""
        active = self._active(everywhere)
        return None if active is None else float((active <= 0).mean())

    def nearly_off(self, *, everywhere: bool = False) -> float | None:
        """Return the share of neurons with f(x) closer to 0 than ``NEARLY_ZERO``; see ``off``."""
        active = self._active(everywhere)
        return None if active is None else float((np.abs(active) < NEARLY_ZERO).mean())

    def _active(self, everywhere: bool) -> Floats | None:
        if everywhere or self.active is None:
            return self.active
        return self.active[self.position]

    def fires(self, neuron: int, most: int) -> list[tuple[int, float]]:
        """Return the tokens with the largest activation of a neuron, by size, as (index, a)."""
        own = self.values[:, neuron]
        order = np.argsort(-np.abs(own), kind="stable")[:most]
        return [(int(at), float(own[at])) for at in order if own[at]]
