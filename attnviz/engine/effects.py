"""What crosses the layers when heads are ablated: what is asked for, what it cost, on which texts.

The loss is that of Michel et al. 2019; the other metrics are defined as usual, see ``METRICS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnviz.engine.patching import Site
from attnviz.errors import UsageError

if TYPE_CHECKING:  # the options name the metrics, and a help needs no NumPy
    import numpy as np
    from numpy.typing import NDArray

Unit = Literal["head", "kv-head", "layer"]
"""What one ablation takes: a query head, all that share a key/value head, or a layer's heads."""

Mode = Literal["zero", "mean", "resample"]
"""What takes an ablated head's place: nothing, its mean, or its output over another text."""

Method = Literal["exact", "gradient", "budget"]
"""Measured; estimated to first order; or estimated first and the top of it measured."""

Positions = Literal["all", "last"]
"""Which predictions count: all of the text, or what is predicted at its end."""

Metric = Literal["loss_delta", "kl", "flip_rate", "output_mse", "output_cosine", "logit_diff"]
"""The names of the metrics in options, records and files."""


class MetricInfo(NamedTuple):
    """What a metric of an ablation is called, counted in and read as.

    label: short, of its column. title: what grows when a head is ablated. unit: behind a value;
        empty where it has none.
    meaning: what a reader must know, one clause.
    signed: whether an ablation can make it negative; else it is at least zero.
    factor: from the stored number to the shown one. percent: shown as a percentage.
    matters: the sign that an ablation has where the head did what the metric asks for.
    aside: whether it has a column next to the metric that ranks.
    """

    label: str
    title: str
    unit: str
    meaning: str
    signed: bool = False
    factor: float = 1.0
    percent: bool = False
    matters: int = 1
    aside: bool = True


# fmt: off
METRICS: Mapping[Metric, MetricInfo] = {
    "loss_delta": MetricInfo(  # cross-entropy after minus before
        "Δ loss", "Loss increase", "nats/token",
        "what ablation adds to the loss; below zero the loss is lower without the head",
        signed=True,
    ),
    "kl": MetricInfo(  # KL(clean ‖ ablated)
        "KL", "KL divergence", "nats/token",
        "from the prediction with every head to the one without, mean over positions",
    ),
    "flip_rate": MetricInfo(
        "top-1 changed", "Top-1 predictions changed", "%",
        "how often the likeliest token becomes another", factor=100.0, percent=True,
    ),
    # of the final hidden states, or of the own attention's output
    "output_mse": MetricInfo("output MSE", "Output MSE", "", "mean squared change of the output"),
    "output_cosine": MetricInfo(  # one minus the cosine between these two, in [0, 2]
        "1 - cosine", "1 - cosine of the output", "",
        "how far the output turns, mean over positions", aside=False,
    ),
    "logit_diff": MetricInfo(  # at the end of the text
        "Δ logit diff", "Change of logit(answer) - logit(foil)", "logits",
        "change of logit(answer) - logit(foil); below zero the head supports the answer",
        signed=True, matters=-1,
    ),
}
# fmt: on
"""Every metric there is: options, columns, legends and files go through these rows."""


@dataclass(frozen=True)
class ScanOptions:
    """The choices that decide the numbers.

    mode: what takes the place of an ablated head.
    positions: which predictions count. ``last``: of what follows the text; and the loss of its
        last token.
    pair: token ids of answer and foil for ``logit_diff``, or None.
    per_position: with ``mean``, a mean for each position apart instead of one over all.
    draws: with ``resample``, from how many other texts values are taken for each text.
    seed: of draws and of the control's directions.
    control: instead of each ablation, take off a random direction of equal norm.
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
    """One ablation: heads that are taken out together.

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
        """Return the first layer in which a head is ablated."""
        return self.heads[0][0]

    @property
    def layers(self) -> tuple[int, ...]:
        """Return every layer in which a head is ablated."""
        return tuple(dict.fromkeys(layer for layer, _ in self.heads))

    @property
    def sites(self) -> tuple[Site, ...]:
        """Return the outputs that are replaced."""
        return tuple(Site("output", layer, head) for layer, head in self.heads)

    def in_layer(self, layer: int) -> tuple[int, ...]:
        """Return the heads ablated in one layer."""
        return tuple(head for at, head in self.heads if at == layer)


@dataclass(frozen=True)
class Scores:
    """What some ablations cost over one text: one piece of a scan, complete by itself.

    text: index of the text.
    variants: index of each ablation among those of the scan.
    metrics: (ablations,) float64 for each metric that the model and the text have.
    baseline: the clean model's own numbers on this text; ``loss`` in nats per token, where the
        model has one, and ``logit_diff`` where it was asked for.
    errors: where values come from other texts, the standard error over their draws, as ``metrics``.
    token_losses: (ablations, tokens) or None: how much worse each token is predicted, in nats;
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
