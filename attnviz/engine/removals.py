"""Measure what each single head is worth to one text by removing it.

The numbers are those of ``attnviz ablate`` with zeros; see ``engine.scan.run``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from attnviz.engine.capture import Asked
from attnviz.engine.effects import Metric, Variant
from attnviz.engine.head_run import Head
from attnviz.engine.scan.run import open_scan
from attnviz.engine.segments import reading_segments
from attnviz.models.model import Model, require_number

_REPORTS = 10
"""How often a scan reports its progress; each report repeats the clean text."""


class Effects(NamedTuple):
    """The cost of removing each single head, over one text: the result of ``removal_effects``.

    metric: ``loss_delta`` in nats per token, or ``output_mse`` for a model without a loss.
    values: by (layer, head).
    """

    metric: Metric
    values: Mapping[Head, float]

    def ranking(self) -> tuple[Head, ...]:
        """Return the heads, the one with the largest cost first."""
        return tuple(sorted(self.values, key=lambda head: -self.values[head]))


def removal_effects(
    model: Model, wanted: Asked, advance: Callable[[float], None] = lambda share: None
) -> Effects:
    """Remove every head of the wanted kind, one at a time, and return the effects on one text.

    wanted: the text and the kind of attention. advance: called with the share that is done, in [0,
    1]; an exception that it raises ends the run. Raises UsageError for a text of one token and for
    results that are not finite, UnsupportedError if heads cannot be removed.
    """
    with reading_segments(model, wanted.given.text):
        return _effects(model, wanted, advance)


def _effects(model: Model, wanted: Asked, advance: Callable[[float], None]) -> Effects:
    scan = open_scan(model, [wanted.given], kind=wanted.kind)
    heads = [(layer, head) for layer, count in scan.heads.items() for head in range(count)]
    variants = [Variant((head,)) for head in heads]
    values: dict[Metric, dict[Head, float]] = {"loss_delta": {}, "output_mse": {}}
    done, size = 0, -(-len(heads) // _REPORTS)
    for start in range(0, len(heads), size):
        some = range(start, min(start + size, len(heads)))
        for piece in scan.scan(0, variants, some):
            for name, found in values.items():
                if name in piece.metrics:
                    measured = piece.metrics[name].tolist()
                    found |= zip((heads[at] for at in piece.variants), measured, strict=True)
            done += len(piece.variants)
            advance(done / len(heads))
    metric: Metric = "loss_delta" if values["loss_delta"] else "output_mse"
    require_number("effect of removals", sum(values[metric].values()), model.info)
    return Effects(metric, values[metric])
