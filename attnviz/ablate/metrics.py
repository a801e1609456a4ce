"""What each metric of a removal is called, counted in and read as."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METRICS", "Metric"]


@dataclass(frozen=True)
class Metric:
    """How a metric is shown.

    name: in records and files.
    label: on screen, short.
    unit: behind a value; empty where it has none.
    signed: whether a removal can make it negative.
    factor: from the stored number to the shown one.
    meaning: what a reader must know, one clause.
    matters: the sign that a removal has where the head did what the metric asks for.
    """

    name: str
    label: str
    unit: str
    signed: bool
    meaning: str
    factor: float = 1.0
    matters: int = 1

    @property
    def full(self) -> str:
        """Label and unit, such as ``loss delta in nats per token``."""
        return f"{self.label} in {self.unit}" if self.unit else self.label


_ALL = (
    Metric(
        "loss_delta",
        "loss delta",
        "nats per token",
        True,
        "what removal adds to the loss; below zero the model does better without the head",
    ),
    Metric(
        "kl",
        "KL",
        "nats per token",
        False,
        "how far the prediction moves from the one with every head, mean over positions",
    ),
    Metric(
        "flip_rate",
        "flips",
        "% of predictions",
        False,
        "how often the likeliest token becomes another",
        factor=100.0,
    ),
    Metric(
        "output_mse",
        "output MSE",
        "",
        False,
        "mean squared change of the output",
    ),
    Metric(
        "output_cosine",
        "1 - cosine",
        "",
        False,
        "how far the output turns, mean over positions",
    ),
    Metric(
        "logit_diff",
        "logit difference",
        "logits",
        True,
        "change of logit(answer) - logit(foil); below zero the head spoke for the answer",
        matters=-1,
    ),
)

METRICS = {metric.name: metric for metric in _ALL}
"""Every metric by its name in records."""
