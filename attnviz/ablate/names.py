"""What a removal is called on screen and in files."""

from __future__ import annotations

from attnviz.engine.effects import AblationReport, Variant

__all__ = ["cell_of", "column_name", "variant_name"]

_MOST_LISTED = 4


def cell_of(report: AblationReport, variant: Variant) -> tuple[int, int] | None:
    """The place (layer, column) of a removal in the map: its head, key/value head, or column 0.

    None for heads that were removed together beyond the report's unit.
    """
    layer, head = variant.heads[0]
    heads = variant.in_layer(layer)
    if len(variant.layers) > 1 or variant.name is not None:
        return None
    info = report.model
    if report.unit == "layer":
        return (layer, 0) if len(heads) == info.heads else None
    if report.unit == "kv-head":
        group = info.heads // info.kv_heads
        whole = tuple(range(head, head + group))
        return (layer, head // group) if heads == whole and head % group == 0 else None
    return (layer, head) if len(heads) == 1 else None


def column_name(report: AblationReport, column: int, index_base: int) -> str:
    """The name over a column of the map."""
    if report.unit == "layer":
        return "layer"
    return f"{'KV' if report.unit == 'kv-head' else 'H'}{column + index_base}"


def variant_name(report: AblationReport, variant: Variant, index_base: int) -> str:
    """Such as ``L2H5``, ``L2KV1``, ``L2``, or the names of heads that went together."""
    place = cell_of(report, variant)
    if place is not None:
        layer, column = place[0] + index_base, place[1] + index_base
        letters = {"head": f"H{column}", "kv-head": f"KV{column}", "layer": ""}[report.unit]
        return f"L{layer}{letters}"
    if variant.name is not None:
        return variant.name
    names = [f"L{layer + index_base}H{head + index_base}" for layer, head in variant.heads]
    if len(names) <= _MOST_LISTED:
        return " ".join(names)
    return f"{' '.join(names[: _MOST_LISTED - 1])} and {len(names) - _MOST_LISTED + 1} more"
