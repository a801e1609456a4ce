"""Accounts as a long table: one line for each number.

Columns: the compared options, then ``model, section, stack, item, detail, value, unit``. Lines of
the section ``parameters`` without ``detail`` add up to its ``total``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnviz.draw.csv_cells import CsvTable
from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.built import BuiltCount
from attnviz.params.metrics import Case
from attnviz.params.parts import part_lines

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["COLUMNS", "write_built_csv", "write_params_csv"]

COLUMNS = ("model", "section", "stack", "item", "detail", "value", "unit")

_Line = tuple[str, str, str, str, int, str]


def write_params_csv(
    options: Sequence[str], cases: Sequence[Case], stream: SupportsWrite[str]
) -> None:
    """Write every number of every case; refused cases have one line that says why."""
    writer = CsvTable(stream)
    writer.writerow([*(option.replace("-", "_") for option in options), *COLUMNS])
    for case in cases:
        if case.cost is None:
            writer.writerow([*case.values, case.name, "refused", "", case.refusal, "", "", ""])
            continue
        for line in (*_parameters(case.cost), *_running(case)):
            writer.writerow([*case.values, case.name, *line])


def write_built_csv(built: BuiltCount, stream: SupportsWrite[str]) -> None:
    """Write the parts of a model that was counted by building it."""
    writer = CsvTable(stream)
    writer.writerow(COLUMNS)
    for name, number in built.parts:
        writer.writerow([built.name, "parameters", "", name, "", number, "parameters"])
    writer.writerow([built.name, "parameters", "", "total", "sum", built.total, "parameters"])


def _parameters(cost: CostReport) -> Iterator[_Line]:
    section, unit = "parameters", "parameters"
    for line in part_lines(cost.parameters):
        detail = "detail" if line.detail else ""
        yield section, line.tower, line.label, detail, line.count, unit
    yield section, "", "total", "sum", cost.parameters.total, unit
    yield section, "", "active", "sum", cost.parameters.active, unit
    for term in cost.parameters.buffers:
        yield "buffers", "", term.label, "", term.count, "numbers"


def _running(case: Case) -> Iterator[_Line]:
    cost = case.cost
    assert cost is not None
    yield "weights", "", cost.dtype, "", cost.weight_bytes, "bytes"
    cache, flops = cost.cache, cost.flops
    yield "kv_cache", "", "one token", "", cache.bytes_per_token, "bytes"
    yield "kv_cache", "", f"{cost.batch} x {cost.tokens} tokens", "", cache.bytes, "bytes"
    for name in ("attention_projections", "attention_scores", "ffn", "head", "other", "total"):
        yield "flops", "", name, "", getattr(flops, name), "operations"
    yield "attention_maps", "", "all maps", "", cost.maps.bytes, "bytes"
    if case.fit is not None and case.fit.tokens is not None:
        yield "memory", "", "longest context", "", case.fit.tokens, "tokens"
