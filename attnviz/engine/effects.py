"""What crosses the layers when heads are ablated: what is asked for, what it cost, on which texts.

The metrics are defined in Michel et al. 2019 (loss), and as usual for the others; see ``METRICS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.records import Kind, ModelInfo, Tokens

__all__ = [
    "METRICS",
    "AblationReport",
    "Effect",
    "Method",
    "Metric",
    "Mode",
    "Positions",
    "ScanOptions",
    "Scores",
    "Unit",
    "Variant",
]

Unit = Literal["head", "kv-head", "layer"]
"""What one removal takes: a query head, all that share a key/value head, or a layer's heads."""

Mode = Literal["zero", "mean", "resample"]
"""What stands in a removed head's place: nothing, its mean, or its output over another text."""

Method = Literal["exact", "gradient", "budget"]
"""Measured; estimated to first order; or estimated first and the top of it measured."""

Positions = Literal["all", "last"]
"""Which predictions count: all of the text, or what is predicted at its end."""

Metric = Literal["loss_delta", "kl", "flip_rate", "output_mse", "output_cosine", "logit_diff"]

METRICS: tuple[Metric, ...] = (
    "loss_delta",
    "kl",
    "flip_rate",
    "output_mse",
    "output_cosine",
    "logit_diff",
)
"""All but ``logit_diff`` and ``loss_delta`` are at least zero; zero is a removal without effect.

loss_delta: cross-entropy after minus before, nats per token; above zero the head helped.
kl: mean over positions of KL(clean ‖ removed), nats.
flip_rate: share of positions whose likeliest prediction changes.
output_mse: mean squared difference of the final hidden states, or of the own attention's output.
output_cosine: mean over positions of one minus the cosine between these two; in [0, 2].
logit_diff: change of logit(answer) − logit(foil) at the end of the text.
"""


@dataclass(frozen=True)
class ScanOptions:
    """The choices that decide the numbers.

    mode: what takes the place of an ablated head.
    positions: which predictions count. ``last``: of what follows the text; and the loss of its
        last token.
    pair: token ids of answer and foil for ``logit_diff``, or None.
    per_position: with ``mean``, a mean for each position apart instead of one over all.
    draws: with ``resample``, how many other texts takes the place of each text.
    seed: of draws and of the control's directions.
    control: instead of each removal, take off a random direction of equal norm.
    token_losses: whether the loss of each token is kept.
    max_memory: bytes that a scan may hold; None for a share of what is free.
    Raises UsageError for numbers that make no sense.
    """

    mode: Mode = "zero"
    positions: Positions = "all"
    pair: tuple[int, int] | None = None
    per_position: bool = False
    draws: int = 1
    seed: int = 0
    control: bool = False
    token_losses: bool = False
    max_memory: int | None = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UsageError(f"expected at least 1 draw, got {self.draws}")
        if self.seed < 0:
            raise UsageError(f"the seed must be 0 or more, got {self.seed}")
        if self.max_memory is not None and self.max_memory < 1:
            raise UsageError(f"expected memory for the scan, got {self.max_memory} bytes")


@dataclass(frozen=True, order=True)
class Variant:
    """One removal: heads that are taken out together.

    heads: (layer, head) pairs without repetition, in ascending order, of any number of layers.
    name: what to call it where the heads alone do not say it, such as ``head 3 of every layer``.
    """

    heads: tuple[tuple[int, int], ...]
    name: str | None = None

    def __post_init__(self) -> None:
        if not self.heads or list(self.heads) != sorted(set(self.heads)):
            raise ValueError(f"a removal names heads once, in ascending order: {self.heads}")

    @property
    def layer(self) -> int:
        """The first layer in which a head is removed."""
        return self.heads[0][0]

    @property
    def layers(self) -> tuple[int, ...]:
        """Every layer in which a head is removed."""
        return tuple(dict.fromkeys(layer for layer, _ in self.heads))

    def in_layer(self, layer: int) -> tuple[int, ...]:
        """The heads removed in one layer."""
        return tuple(head for at, head in self.heads if at == layer)


@dataclass(frozen=True)
class Scores:
    """What some removals cost over one text: one piece of a scan, complete by itself.

    text: index of the text.
    variants: index of each removal among those of the scan.
    metrics: (removals,) float64 for each metric that the model and the text have.
    baseline: the clean model's own numbers on this text; ``loss`` in nats per token, where the
        model has one, and ``logit_diff`` where it was asked for.
    errors: where other texts stand in, the standard error over their draws, as ``metrics``.
    token_losses: (removals, tokens) or None: how much worse each token is predicted, in nats;
        NaN for a token that is not predicted, such as the first.
    """

    text: int
    variants: tuple[int, ...]
    metrics: Mapping[Metric, NDArray[np.float64]]
    baseline: Mapping[str, float]
    errors: Mapping[Metric, NDArray[np.float64]] = field(default_factory=dict)
    token_losses: NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        for name, values in (*self.metrics.items(), *self.errors.items()):
            if name not in METRICS or values.shape != (len(self.variants),):
                raise ValueError(
                    f"expected {len(self.variants)} numbers of a metric, "
                    f"got {name} of shape {values.shape}"
                )
        if self.token_losses is not None and len(self.token_losses) != len(self.variants):
            raise ValueError(
                f"expected token losses of {len(self.variants)} removals, "
                f"got {len(self.token_losses)}"
            )


@dataclass(frozen=True)
class Effect:
    """What one removal costs, over one text or as the mean over several.

    Each metric is None where the model or the text does not have it.
    texts: over how many texts.
    ci_low, ci_high: ends of the 95 % bootstrap-t interval of the mean, by metric; empty where there
        are fewer than five texts.
    errors: standard error over the draws of other texts that stood in, by metric; mostly empty.
    token_losses: for each text (tokens,) as in ``Scores``; empty where it was not asked for.
    """

    variant: Variant
    texts: int = 1
    loss_delta: float | None = None
    kl: float | None = None
    flip_rate: float | None = None
    output_mse: float | None = None
    output_cosine: float | None = None
    logit_diff: float | None = None
    ci_low: Mapping[Metric, float] = field(default_factory=dict)
    ci_high: Mapping[Metric, float] = field(default_factory=dict)
    errors: Mapping[Metric, float] = field(default_factory=dict)
    token_losses: tuple[NDArray[np.floating], ...] = ()

    def metric(self, name: Metric) -> float | None:
        """One metric by its name."""
        value: float | None = getattr(self, name)
        return value


@dataclass(frozen=True)
class AblationReport:
    """What ``attnviz ablate`` found: the one input of every screen and file it writes.

    model: where the numbers come from.
    kind: the attention whose heads were removed.
    texts: the tokens of each text; of an encoder–decoder what its encoder read.
    targets: the decoder's tokens of each text; empty for other models.
    effects: of every removal that was measured, in the order in which they were asked for.
    mode, unit, method, positions: how heads were removed and what was measured.
    metric: the one that ranks and colours.
    baseline: the clean model's own numbers, mean over the texts; ``loss`` in nats per token.
    control: what it costs to remove a random direction of the norm of the named removal instead.
    gradients: first-order importance |dL/dξ| of each (layer, head), mean over the texts; empty
        where it was not asked for.
    rank_correlation: Spearman's, between ``gradients`` and the exact metric; None unless both ran.
    reference: what stood in for a removed head, in words; None for zero.
    draws: how many other texts stood in for each text.
    seed: of every random choice.
    seconds: the scan took.
    notes: sentences a reader of the result must know.
    complete: False where the scan was interrupted or its time was up.
    """

    model: ModelInfo
    kind: Kind
    texts: tuple[Tokens, ...]
    effects: tuple[Effect, ...]
    targets: tuple[Tokens, ...] = ()
    mode: Mode = "zero"
    unit: Unit = "head"
    method: Method = "exact"
    positions: Positions = "all"
    metric: Metric = "loss_delta"
    baseline: Mapping[str, float] = field(default_factory=dict)
    control: tuple[Effect, ...] = ()
    gradients: Mapping[tuple[int, int], float] = field(default_factory=dict)
    rank_correlation: float | None = None
    reference: str | None = None
    draws: int = 1
    seed: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    complete: bool = True

    def ranked(self) -> tuple[Effect, ...]:
        """The effects that have the metric, largest first."""
        found = [effect for effect in self.effects if effect.metric(self.metric) is not None]
        return tuple(sorted(found, key=lambda effect: -(effect.metric(self.metric) or 0.0)))
