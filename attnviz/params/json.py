"""The object that ``attnviz params --json`` prints and ``--save FILE.json`` writes.

One design is the object itself; several stand in ``models``, the rows of ``--compare`` in ``rows``.
Whole numbers stay whole, however large. Parameters of ``attention``, ``per_head`` and ``ffn`` are
those of one layer, the kind that the model has most of; everything else is of the whole model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.built import BuiltCount
from attnviz.params.compare import changed
from attnviz.params.metrics import Case, telling_metrics
from attnviz.params.parts import PartLine, part_lines
from attnviz.params.per_layer import layer_kind
from attnviz.params.subject import main_attention, main_group

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = [
    "SCHEMA",
    "built_document",
    "compare_document",
    "cost_document",
    "models_document",
    "write_params_json",
]

SCHEMA = "attnviz.params/1"


def cost_document(case: Case) -> dict[str, Any]:
    """Everything that was counted of one design, as one JSON object."""
    return {"schema": SCHEMA, **_facts(case)}


def built_document(built: BuiltCount) -> dict[str, Any]:
    """A model that was counted by building it: its parameters, and what its layers keep or null."""
    return {
        "schema": SCHEMA,
        "model": {
            "name": built.name,
            "revision": built.revision,
            "dtype": built.dtype,
            "layers": None,
            "heads": None,
            "kv_heads": None,
            "head_dim": None,
            "source": built.source,
            "architecture": built.architecture,
        },
        "counted_by": "building",
        "total": built.total,
        "parts": [{"name": name, "count": number} for name, number in built.parts],
        "buffer_total": built.buffers,
        "weights": {"dtype": built.dtype, "bytes": built.weight_bytes},
        "kv_cache": None if built.cache is None else asdict(built.cache),
    }


def models_document(cases: Sequence[Case]) -> dict[str, Any]:
    """Several designs: ``models`` holds an object like that of one design for each."""
    return {"schema": SCHEMA, "models": [_facts(case) for case in cases]}


def compare_document(
    options: Sequence[str], cases: Sequence[Case], sentences: Sequence[str]
) -> dict[str, Any]:
    """The rows of a comparison.

    ``compare``: the options in the order of their columns. ``changed``: the numbers that differ
    between rows. ``rows``: for each the ``values`` of the options and the object of its design, or
    ``error`` where the values do not go together. ``reading``: what changed, in words.
    """
    return {
        "schema": SCHEMA,
        "compare": list(options),
        "changed": [metric.key for metric in telling_metrics(cases) if changed(metric, cases)],
        "rows": [_row(options, case) for case in cases],
        "reading": list(sentences),
    }


def _row(options: Sequence[str], case: Case) -> dict[str, Any]:
    values: dict[str, int | str] = {
        option.replace("-", "_"): int(value) if value.isdecimal() else value
        for option, value in zip(options, case.values, strict=True)
    }
    if case.cost is None:
        return {"values": values, "error": case.refusal}
    return {"values": values, **_facts(case)}


def _facts(case: Case) -> dict[str, Any]:
    cost, fit = case.cost, case.fit
    assert cost is not None
    parameters = cost.parameters
    document = {
        "model": _model(cost, case.revision),
        "counted_by": "arithmetic",
        "tokens": cost.tokens,
        "source_tokens": cost.source_tokens,
        "batch": cost.batch,
        **_one_layer(cost),
        "embedding": parameters.shares.embedding,
        "norm": parameters.shares.norm,
        "head": parameters.shares.head,
        "other": parameters.shares.other,
        "layers": sum(stack.spec.depth for stack in parameters.stacks),
        "total": parameters.total,
        "active": parameters.active,
        "shares": asdict(parameters.shares),
        "parts": [_part(line) for line in part_lines(parameters)],
        "layer_kinds": _kinds(cost),
        "buffers": [{"name": term.label, "count": term.count} for term in parameters.buffers],
        "weights": {
            "dtype": cost.dtype,
            "bytes": cost.weight_bytes,
            "buffer_bytes": cost.buffer_bytes,
        },
        **_running(cost),
    }
    if fit is not None:
        document["memory"] = asdict(fit)
    return document


def _model(cost: CostReport, revision: str | None) -> dict[str, Any]:
    spec, attention = cost.spec, main_attention(cost).spec
    return {
        "name": spec.name,
        "revision": revision,
        "dtype": cost.dtype,
        "layers": spec.main.depth,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "value_dim": attention.value_dim,
        "d_model": attention.d_model,
        "max_positions": spec.main.max_positions,
        "source": spec.source,
        "architecture": spec.architecture,
        "notes": list(spec.notes),
    }


def _one_layer(cost: CostReport) -> dict[str, Any]:
    """Attention, a head and the feed-forward part of one layer."""
    attention = main_attention(cost)
    forward = main_group(cost).layer.feed_forward
    names = ("total", "active", "up", "gate", "down", "bias", "router", "shared", "other")
    ffn = {name: 0 if forward is None else getattr(forward, name) for name in names}
    names = ("query", "key", "value", "output", "latent", "bias", "norm", "other", "total")
    return {
        "attention": {name: getattr(attention, name) for name in names},
        "per_head": asdict(attention.per_head),
        "ffn": {**ffn, "per_expert": 0 if forward is None else forward.per_expert},
    }


def _part(line: PartLine) -> dict[str, Any]:
    """A line of the screen's table; lines with ``detail`` are parts of the one above."""
    return {
        "name": line.label,
        "role": line.role,
        "stack": line.tower,
        "detail": line.detail,
        "count": line.count,
        "one_layer": line.each,
        "layers": line.layers,
        "one_head": line.per_head,
        "formulas": [
            {"name": term.label, "count": term.count, "formula": term.formula}
            for term in line.terms
        ],
    }


def _kinds(cost: CostReport) -> list[dict[str, Any]]:
    """Equal layers together; ``indices`` is null where a stack has only these."""
    return [
        {
            "stack": stack.spec.name,
            "kind": layer_kind(group),
            "layers": group.repeat,
            "stored": group.stored,
            "indices": None if group.indices is None else list(group.indices),
            "attention": group.layer.shares.attention,
            "ffn": group.layer.shares.feed_forward,
            "norm": group.layer.shares.norm,
            "other": group.layer.shares.other,
            "total": group.layer.total,
            "active": group.layer.active,
        }
        for stack in cost.parameters.stacks
        for group in stack.groups
    ]


def _running(cost: CostReport) -> dict[str, Any]:
    """Cache, operations and maps, under the names of their counts."""
    flops = {name: value for name, value in vars(cost.flops).items() if name != "terms"}
    maps = cost.maps
    return {
        "kv_cache": asdict(cost.cache),
        "flops": flops,
        "attention_maps": {"bytes": maps.bytes, "values": maps.values, "maps": maps.maps},
    }


def write_params_json(document: dict[str, Any], stream: SupportsWrite[str]) -> None:
    """Write a document as indented JSON, ASCII only: names come from strangers."""
    stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
