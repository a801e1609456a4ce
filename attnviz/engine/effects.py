"""The data of ablations: what is requested, what it costs, and on which texts.

The loss is that of Michel et al. 2019; the other metrics are defined as usual, see ``METRICS``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnviz.engine.patching import Site, What
from attnviz.errors import UsageError

if TYPE_CHECKING:  # the options name the metrics, and --help needs no NumPy
    import numpy as np
    from numpy.typing import NDArray

Unit = Literal["head", "kv-head", "attention", "ffn", "layer"]
"""What one ablation takes away: a query head, all heads that share a key/value head, all heads of a
layer, its feed-forward block, or both of these."""

Mode = Literal["zero", "mean", "resample"]
"""What replaces an ablated head's output: zero, its mean, or its output over another text."""

Method = Literal["exact", "gradient", "budget"]
"""``exact`` measures, ``gradient`` estimates to first order, ``budget`` estimates all and measures
the largest."""

Positions = Literal["all", "last"]
"""Which predictions count: all of the text, or only those at its end."""

Metric = Literal["loss_delta", "kl", "flip_rate", "output_mse", "output_cosine", "logit_diff"]
"""The names of the metrics in options, records and files."""


class MetricInfo(NamedTuple):
    """A metric of an ablation: its names, its number format and its interpretation.

    label: a short name for a table column. title: a long name.
    unit: shown behind a value; empty if it has none.
    meaning: one clause that explains the number to a reader.
    signed: True if an ablation can make it negative; otherwise it is at least zero.
    factor: the shown number divided by the stored one. percent: True shows it as a percentage.
    matters: +1 or −1, the sign of the metric if removing the head does harm.
    aside: True if it gets a column next to the metric that ranks the heads. most: the largest
        number that it can be, unless it is a share.
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
    most: float = math.inf

    @property
    def range(self) -> tuple[float, float]:
        """Return the least and the largest number that it can be."""
        return -math.inf if self.signed else 0.0, 1.0 if self.percent else self.most


# fmt: off
METRICS: Mapping[Metric, MetricInfo] = {
    "loss_delta": MetricInfo(  # cross-entropy after minus before
        "Δ loss", "Loss increase", "nats/token",
        "what ablation adds to the loss; below zero the loss is lower without the head",
        signed=True,
    ),
    "kl": MetricInfo(  # KL(clean ‖ ablated)
        "KL", "KL divergence", "nats/token",
        "from the prediction with all heads to the one without, mean over positions",
    ),
    "flip_rate": MetricInfo(
        "prediction changed", "Predictions changed", "%",
        "how often the likeliest token becomes another", factor=100.0, percent=True,
    ),
    # of the final hidden states, or of the own attention's output
    "output_mse": MetricInfo(
        "output MSE", "Mean squared change of the output", "", "mean squared change of the output"
    ),
    "output_cosine": MetricInfo(  # one minus the cosine between these two, in [0, 2]
        "output turned", "Cosine distance of the output", "",
        "how far the output turns, mean over positions", aside=False, most=2.0,
    ),
    "logit_diff": MetricInfo(  # at the end of the text
        "Δ logit difference", "Change of logit(answer) - logit(foil)", "logits",
        "change of logit(answer) - logit(foil); below zero the head supports the answer",
        signed=True, matters=-1,
    ),
}
# fmt: on
"""All metrics; options, columns, legends and files use these rows."""


@dataclass(frozen=True)
class ScanOptions:
    """The options of a scan, which ablates heads and measures the effect.

    mode: what replaces the output of an ablated head. positions: which predictions count; ``last``
        counts the prediction after the text, and the loss of the text's last token.
    pair: the ids of answer token and foil token for ``logit_diff``, or None.
    draws: for ``resample``, how many other texts replace each text's values, one after the other.
    seed: of the draws and of the control's random directions. control: True measures a random
        baseline: it removes a random direction of equal norm in place of each ablation.
    token_losses: True keeps the loss of each token.
    max_memory: the most bytes that a scan may use; None takes a share of the free memory.
    labels: True measures a classifier's labels, as predicted tokens are measured otherwise.
    label: the id of the label whose loss counts; None for the one that is predicted.
    Raises UsageError for numbers out of range.
    """

    mode: Mode = "zero"
    positions: Positions = "all"
    pair: tuple[int, int] | None = None
    draws: int = 1
    seed: int = 0
    control: bool = False
    token_losses: bool = False
    max_memory: int | None = None
    labels: bool = False
    label: int | None = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UsageError(f"expected at least 1 draw, got {self.draws}")
        if self.seed < 0:
            raise UsageError(f"the seed must be 0 or more, got {self.seed}")
        if self.max_memory is not None and self.max_memory < 1:
            raise UsageError(f"expected memory for the scan, got {self.max_memory} bytes")


@dataclass(frozen=True, order=True)
class Variant:
    """One ablation: heads and feed-forward blocks that are removed together, or hidden edges.

    heads: (layer, head) in ascending order. name: None if these describe it. edges: pairs (query,
    key) that each head hides, in place of its removal. feed_forward: layers whose block is removed.
    """

    heads: tuple[tuple[int, int], ...]
    name: str | None = None
    edges: tuple[tuple[int, int], ...] = ()
    feed_forward: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        heads, layers = list(self.heads), list(self.feed_forward)
        if not heads + layers or heads != sorted(set(heads)) or layers != sorted(set(layers)):
            raise ValueError(f"expected parts once, in ascending order, got {heads} and {layers}")

    @property
    def layer(self) -> int:
        """Return the first layer in which something is ablated."""
        return self.layers[0]

    @property
    def layers(self) -> tuple[int, ...]:
        """Return every layer in which something is ablated, in ascending order."""
        return tuple(sorted({*(layer for layer, _ in self.heads), *self.feed_forward}))

    @property
    def sites(self) -> tuple[Site, ...]:
        """Return the patch site of each ablated part; for edges the pattern of each head."""
        sort: What = "pattern" if self.edges else "output"
        heads = (Site(sort, layer, head, edges=self.edges) for layer, head in self.heads)
        return (*heads, *(Site("mlp", layer) for layer in self.feed_forward))

    def in_layer(self, layer: int) -> tuple[int, ...]:
        """Return the heads of this ablation that are in one layer."""
        return tuple(head for at, head in self.heads if at == layer)


@dataclass(frozen=True)
class Scores:
    """The measured effect of some ablations over one text: one finished piece of a scan.

    variants: their indices. metrics, errors: (ablation,), errors over draws of other texts.
    baseline: the model's own ``loss`` in nats per token and ``logit_diff``. token_losses:
    (ablation, token), the increase in nats, NaN where none is predicted; or None.
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
