"""Removals as a table: a line each, in the order of the scan; indices start at 0.

``ci_low`` and ``ci_high`` bound the mean of the report's metric over several texts. What was not
measured is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnviz.ablate.names import variant_name
from attnviz.engine.effects import METRICS, AblationReport, Effect

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["COLUMNS", "write_ablation_csv"]

COLUMNS = (
    "name",
    "layer",
    "head",
    "removed",
    "texts",
    *METRICS,
    "ci_low",
    "ci_high",
    "gradient",
)


def _written(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _line(report: AblationReport, effect: Effect) -> str:
    variant = effect.variant
    single = len(variant.heads) == 1
    name = variant_name(report, variant, 0).replace('"', '""')
    removed = " ".join(f"L{layer}H{head}" for layer, head in variant.heads)
    cells = [
        f'"{name}"',
        str(variant.layer) if len(variant.layers) == 1 else "",
        str(variant.heads[0][1]) if single else "",
        removed,
        str(effect.texts),
        *(_written(effect.metric(metric)) for metric in METRICS),
        _written(effect.ci_low.get(report.metric)),
        _written(effect.ci_high.get(report.metric)),
        _written(report.gradients.get(variant.heads[0])) if single else "",
    ]
    return ",".join(cells)


def write_ablation_csv(report: AblationReport, stream: SupportsWrite[str]) -> None:
    """Write a line for each removal, then one for each head of which only the gradient is known."""
    stream.write(",".join(COLUMNS) + "\n")
    for effect in report.effects:
        stream.write(_line(report, effect) + "\n")
    measured = {
        effect.variant.heads[0] for effect in report.effects if effect.variant.heads[1:] == ()
    }
    blanks = "," * (len(METRICS) + 3)
    for (layer, head), gradient in report.gradients.items():
        if (layer, head) not in measured:
            name = f"L{layer}H{head}"
            texts = len(report.texts)
            stream.write(f'"{name}",{layer},{head},{name},{texts}{blanks}{gradient!r}\n')
