"""Open the exact scan of ablations, and patching, for every kind of model; remove each head alone.

Ablating head h of layer L changes nothing before layer L, so one forward pass carries many
ablations, and the result is that of ablating them one at a time. The same holds for patches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Asked, kind_of, reading_segments
from attnviz.engine.effects import Metric, ScanOptions, Variant
from attnviz.engine.head_run import Head
from attnviz.engine.patching import Pair, PatchOptions
from attnviz.engine.scan.patching import Patching as Patching
from attnviz.engine.scan.scan import Scan as Scan
from attnviz.errors import UsageError
from attnviz.models.model import Model, require_number
from attnviz.records import Input, Kind, Tokens


def inputs_of(texts: Sequence[Tokens], targets: Sequence[Tokens] = ()) -> list[Input]:
    """Return texts as inputs, with decoder texts if any; UsageError if their numbers differ."""
    if targets and len(targets) != len(texts):
        raise UsageError(f"expected a target for each of {len(texts)} texts, got {len(targets)}")
    return [Input(text, target) for text, target in zip_longest(texts, targets)]


def open_scan(
    model: Model,
    inputs: Sequence[Input],
    options: ScanOptions | None = None,
    *,
    kind: Kind | None = None,
    references: Sequence[Input] | None = None,
) -> Scan:
    """Return an object that ablates heads of ``model`` over ``inputs`` and measures the effects.

    references: the texts for the modes mean and resample; None means ``inputs``. Raises UsageError
    if these do not fit together, UnsupportedError if heads cannot be ablated.
    """
    kind, options = kind_of(model, kind), options or ScanOptions()
    if not inputs:
        raise UsageError("no text to scan: expected at least one")
    references = inputs if references is None else references
    return backend_of(model).open_scan(kind, inputs, options, references)


def open_patching(
    model: Model,
    pairs: Sequence[Pair],
    options: PatchOptions | None = None,
    *,
    kind: Kind | None = None,
) -> Patching:
    """Return what puts values of one prompt into a run of the other; errors as ``open_scan``."""
    kind = kind_of(model, kind)
    if not pairs:
        raise UsageError("no prompts to patch: expected at least one pair")
    return backend_of(model).open_patching(kind, pairs, options or PatchOptions())


# Each head alone --------------------------------------------------------------------------------

_REPORTS = 10
"""How often a scan reports its progress; each report repeats the clean text."""


class Effects(NamedTuple):
    """The cost of removing each (layer, head): ``loss_delta`` in nats, or ``output_mse``."""

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
        scan = open_scan(model, [wanted.given], kind=wanted.kind)
        heads = [(layer, head) for layer, count in scan.heads.items() for head in range(count)]
        variants = [Variant((head,)) for head in heads]
        values: dict[Metric, dict[Head, float]] = {"loss_delta": {}, "output_mse": {}}
        done, size = 0, -(-len(heads) // _REPORTS)
        for start in range(0, len(heads), size):
            some = range(start, min(start + size, len(heads)))
            for piece in scan.scan(0, variants, some):
                removed = [heads[at] for at in piece.variants]
                for name in values.keys() & piece.metrics.keys():
                    values[name] |= zip(removed, piece.metrics[name].tolist(), strict=True)
                done += len(piece.variants)
                advance(done / len(heads))
        metric: Metric = "loss_delta" if values["loss_delta"] else "output_mse"
        require_number("effect of removals", sum(values[metric].values()), model.info)
        return Effects(metric, values[metric])
