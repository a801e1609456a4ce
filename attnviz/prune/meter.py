"""Measures a model with heads taken out, over one half of the texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from attnviz.engine.effects import Variant
from attnviz.engine.scan.run import Scan
from attnviz.errors import UsageError
from attnviz.prune.records import Head


class ScanMeter:
    """The loss over the texts of a scan, heads taken out.

    texts: how many there are; each counts as much as another.
    probe: any head, measured where only the whole model's loss is wanted.
    on_measured: told after each piece how many removals it had, as a share of all texts.
    """

    def __init__(
        self,
        scanner: Scan,
        texts: int,
        probe: Head,
        on_measured: Callable[[float], None] = lambda removals: None,
    ) -> None:
        self._scanner = scanner
        self._texts = texts
        self._probe = probe
        self._on_measured = on_measured
        self._baseline: float | None = None

    @property
    def baseline(self) -> float:
        """The loss of the whole model.

        Raises UsageError for a model that predicts no tokens.
        """
        if self._baseline is None:
            self._measure([Variant((self._probe,))])
        assert self._baseline is not None
        return self._baseline

    def losses(self, removals: Sequence[Collection[Head]]) -> list[float]:
        """The loss in nats per token with the heads of each removal taken out together.

        Raises UsageError for a model that predicts no tokens.
        """
        keys = [tuple(sorted(removal)) for removal in removals]
        variants = [Variant(key) for key in dict.fromkeys(keys) if key]
        found = self._measure(variants) if variants else []
        losses = {variant.heads: loss for variant, loss in zip(variants, found, strict=True)}
        return [losses[key] if key else self.baseline for key in keys]

    def gradients(self, removed: Collection[Head]) -> Mapping[Head, float]:
        """First-order importance of every head while ``removed`` are out."""
        return self._scanner.gradients(removed)

    def _measure(self, variants: Sequence[Variant]) -> list[float]:
        """The mean loss of each removal, and on the way that of the whole model."""
        deltas = np.full((self._texts, len(variants)), np.nan)
        clean = np.full(self._texts, np.nan)
        for text in range(self._texts):
            for scores in self._scanner.scan(text, variants, range(len(variants))):
                if "loss_delta" not in scores.metrics:
                    raise UsageError(
                        "this model has no loss to prune by: expected a language-model head, and a "
                        "mask token where it reads both ways"
                    )
                deltas[text, list(scores.variants)] = scores.metrics["loss_delta"]
                clean[text] = scores.baseline["loss"]
                self._on_measured(len(scores.variants) / self._texts)
        self._baseline = float(clean.mean())
        losses: list[float] = (clean[:, None] + deltas).mean(0).tolist()
        return losses
