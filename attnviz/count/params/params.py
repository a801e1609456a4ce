"""Answers ``params``: parameters, caches, operations and memory of a model or a shape, exactly.

In the object of ``--json`` one model is the object itself; several are in ``models``, and the rows
of ``--compare`` in ``rows``. Whole numbers stay whole, however large. Parameters of ``attention``,
``per_head`` and ``ffn`` are those of one layer, of the kind that the model has most of; everything
else is of the whole model.

The table of a CSV file has one line for each number: the compared options, then ``model, section,
stack, item, detail, value, unit``. Lines of the section ``parameters`` without ``detail`` add up to
its ``total``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnviz.count.params.cases import (
    Case,
    CountedCases,
    NamedModel,
    compared_cases,
    requested_cases,
    tellable,
)
from attnviz.count.params.counting.built import BuiltCount
from attnviz.count.params.counting.cache import CacheCount
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.parts import PartLine, layer_kind, main_attention, main_group, part_lines
from attnviz.count.params.request import ParamsRequest
from attnviz.draw.report import Report
from attnviz.options import read_size

if TYPE_CHECKING:  # the options of the program need no drawing
    from _typeshed import SupportsWrite

    from attnviz.count.params.counting.serving import CardFit
    from attnviz.draw.document import Document

_COLUMNS = ("model", "section", "stack", "item", "detail", "value", "unit")

_LENGTH = ("tokens", "source_tokens", "batch")
_ATTENTION = ("query", "key", "value", "output", "latent", "bias", "norm", "other", "total")
_FORWARD = (
    *("total", "active", "up", "gate", "down", "bias", "router", "shared", "other", "per_expert"),
)
_FLOPS = (
    *("attention_projections", "attention_scores", "attention_scores_visible", "ffn", "head"),
    *("other", "total", "total_visible", "per_token", "scores_per_token"),
)
_MAPS = ("bytes", "values", "maps")
_CARD = ("name", "vendor", "year", "source", "memory", "bandwidth")
_CARD_FIT = ("rate", "fits", "free", "cards", "batch", "context")
_CARD_UNITS = {
    "needs": "bytes",
    "free": "bytes",
    "cards": "cards",
    "batch": "sequences",
    "context": "tokens",
    "decode": "tokens/s",
    "decode_full": "tokens/s",
    "prefill_seconds": "s",
}
_DECODE = ("batch", "read", "operations", "seconds", "bound", "each", "tokens_per_second")


@dataclass(frozen=True, repr=False)
class ParamsReport(Report):
    """The report of ``attnviz params``: the counts of all cases.

    models: how many models were named; 0 if options gave the sizes. request: the options.
    """

    counted: CountedCases
    models: int
    request: ParamsRequest

    command = "params"

    def data(self) -> dict[str, Any]:
        return {"schema": "attnviz.params/1", **params_data(self.counted)}

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Write ``data`` indented, in ASCII because names may come from anywhere."""
        stream.write(json.dumps(self.data(), indent=2, allow_nan=False) + "\n")

    def rows(self) -> Iterator[tuple[object, ...]]:
        counted = self.counted
        yield (*(option.replace("-", "_") for option in counted.options), *_COLUMNS)
        for case in counted.cases:
            if (counts := case.counts) is None:
                yield (*case.values, case.name, "refused", "", case.refusal, "", None, "")
            else:
                for line in (*_lines(counts), *_memory_lines(case, counts)):
                    yield (*case.values, case.name, *line)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.count.params.document import params_document

        return params_document(self).shown(explain=explain, hints=hints and not explain)


def params(models: Sequence[NamedModel], request: ParamsRequest) -> ParamsReport:
    """Count parameters, KV cache, operations and memory of each model, or of given sizes.

    models: the models; empty if the options in ``request`` give the sizes of an architecture.
    Raises UsageError for neither a model nor sizes, for both, numbers that do not fit together, or
    an unknown GPU; LoadError or OfflineError for a name whose config cannot be read.
    """
    count = compared_cases if request.compare else requested_cases
    if not request.gpu:
        return ParamsReport(count(models, request), len(models), request)
    from attnviz.count.params.cards import find_cards  # most runs name no card
    from attnviz.count.params.counting.serving import fit_cards

    cards = find_cards(request.gpu)
    counted, overhead = count(models, request), read_size(request.overhead, "--overhead", 0)
    cases = tuple(
        case._replace(gpus=fit_cards(tellable(case), cards, chunk=request.chunk, overhead=overhead))
        if case.counts is not None
        else case
        for case in counted.cases
    )
    return ParamsReport(counted._replace(cases=cases), len(models), request)


# The object and the rows --------------------------------------------------------------------


def params_data(counted: CountedCases) -> dict[str, Any]:
    """Return the object that ``--json`` prints, without its schema."""
    if counted.options:
        return _comparison(counted)
    if len(counted.cases) > 1:
        return {"models": [_case(case) for case in counted.cases]}
    return _case(counted.cases[0])


def _named(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _built(case: Case, built: BuiltCount) -> dict[str, Any]:
    """Return the JSON object of a model that was counted by building it; ``cache`` may be null."""
    made, cache = built.made, built.cache
    return {
        "model": {
            "name": built.name,
            "revision": built.revision,
            "dtype": built.dtype,
            "layers": None,
            "heads": None,
            "kv_heads": None,
            "head_dim": None,
            "source": built.source,
            "architecture": made.architecture,
            "max_positions": made.limit,
            "notes": list(made.notes),
        },
        "counted_by": made.way,
        "tokens": built.tokens,
        "batch": built.batch,
        "total": built.total,
        "parts": [{"name": name, "count": number} for name, number in made.parts],
        "buffer_total": made.buffers,
        "weights": _weights(built),
        "needed_bytes": built.needed_bytes,
        "kv_cache": None if cache is None else _cache(cache),
        **_fits(case),
    }


def _weights(count: CostReport | BuiltCount) -> dict[str, Any]:
    """Return the JSON object of the bytes of weights, null if nothing tells them."""
    scheme: dict[str, Any] | None = None
    if count.storage is not None:
        lines = [line._asdict() for line in count.storage.lines]
        scheme = {"scheme": count.storage.scheme, "lines": lines}
    return {
        "dtype": count.dtype,
        "stated_by": count.stated or None,
        "other_dtypes": dict(count.others),
        "bytes": count.weight_bytes,
        "buffer_bytes": count.buffer_bytes,
        "quantisation": scheme,
    }


def _fits(case: Case) -> dict[str, Any]:
    """Return the JSON fields on the given memory and GPUs, none of them if none were given."""
    data = {} if case.fit is None else {"memory": case.fit._asdict()}
    return data | ({"gpus": [_card(one) for one in case.gpus]} if case.gpus else {})


def _comparison(counted: CountedCases) -> dict[str, Any]:
    """Return the JSON object of a comparison of cases.

    ``compare``: the options in the order of their columns. ``changed``: the numbers that differ
    between rows. ``rows``: for each case the ``values`` of the options and the object of its model,
    or ``error`` if the values do not fit together. ``reading``: the changes in words.
    """
    from attnviz.count.params.compare import (
        change_finding,
        change_reasons,
        changed,
        telling_metrics,
    )

    metrics = telling_metrics(counted.cases)
    return {
        "compare": list(counted.options),
        "changed": [metric.key for metric in metrics if changed(metric, counted.cases)],
        "rows": [_row(counted.options, case) for case in counted.cases],
        "reading": [
            change_finding(counted.options, counted.cases, metrics),
            *change_reasons(counted.options, counted.cases),
        ],
    }


def _row(options: tuple[str, ...], case: Case) -> dict[str, Any]:
    values: dict[str, int | str] = {
        option.replace("-", "_"): int(value) if value.isdecimal() else value
        for option, value in zip(options, case.values, strict=True)
    }
    if case.counts is None:
        return {"values": values, "error": case.refusal}
    return {"values": values, **_case(case)}


def _case(case: Case) -> dict[str, Any]:
    if case.built is not None:
        return _built(case, case.built)
    cost = case.cost
    assert cost is not None
    parameters = cost.parameters
    attention, forward = main_attention(cost), main_group(cost).layer.feed_forward
    length = _named(cost, _LENGTH)
    return {
        "model": _model(cost, case.revision),
        "counted_by": "arithmetic",
        **length,
        "attention": _named(attention, _ATTENTION),
        "per_head": attention.per_head._asdict(),
        "ffn": dict.fromkeys(_FORWARD, 0) if forward is None else _named(forward, _FORWARD),
        "embedding": parameters.shares.embedding,
        "norm": parameters.shares.norm,
        "head": parameters.shares.head,
        "other": parameters.shares.other,
        "layers": sum(stack.spec.depth for stack in parameters.stacks),
        "total": parameters.total,
        "active": parameters.active,
        "shares": parameters.shares._asdict(),
        "parts": [_part(line) for line in part_lines(parameters)],
        "layer_kinds": _kinds(cost),
        "buffers": [{"name": term.label, "count": term.number} for term in parameters.buffers],
        "weights": _weights(cost),
        "needed_bytes": cost.needed_bytes,
        "kv_cache": _cache(cost.cache),
        "flops": {**length, **_named(cost.flops, _FLOPS)},
        "attention_maps": _named(cost.maps, _MAPS),
        **_fits(case),
    }


def _card(fit: CardFit) -> dict[str, Any]:
    """Return the JSON object of how a GPU can run a model; its decode times are bounds."""
    bounds = {"decode": fit.decode, "decode_full": fit.full}
    return {
        **_named(fit.card, _CARD),
        "needs": {**fit.need._asdict(), "total": fit.need.total},
        **_named(fit, _CARD_FIT),
        **{name: None if one is None else _named(one, _DECODE) for name, one in bounds.items()},
        "prefill_seconds": fit.prefill,
    }


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


def _part(line: PartLine) -> dict[str, Any]:
    """Return a line of the table of parameters as JSON.

    With ``detail`` it is a part of the last line without.
    """
    return {
        "name": line.label,
        "role": line.role,
        "stack": line.stack,
        "detail": line.detail,
        "count": line.number,
        "one_layer": line.each,
        "layers": line.layers,
        "one_head": line.per_head,
        "formulas": [
            {"name": term.label, "count": term.number, "formula": term.formula}
            for term in line.terms
        ],
    }


def _kinds(cost: CostReport) -> list[dict[str, Any]]:
    """Return a JSON object for each kind of layer of a model.

    ``indices`` is null if a stack has one kind.
    """
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


def _cache(cache: CacheCount) -> dict[str, Any]:
    return {**cache._asdict(), "lines": [line._asdict() for line in cache.lines]}


_Line = tuple[str, str, str, str, float | None, str]
"""Section, stack, item, detail, value and unit of a number."""


def _lines(cost: CostReport | BuiltCount) -> Iterator[_Line]:
    """Yield a line for each number of parameters and operations."""
    section = unit = "parameters"
    if isinstance(cost, BuiltCount):
        for name, number in (*cost.made.parts, ("total", cost.total)):
            yield section, "", name, "sum" if name == "total" else "", number, unit
        return
    for line in part_lines(cost.parameters):
        yield section, line.stack, line.label, ("detail" if line.detail else ""), line.number, unit
    yield section, "", "total", "sum", cost.parameters.total, unit
    yield section, "", "active", "sum", cost.parameters.active, unit
    for term in cost.parameters.buffers:
        yield "buffers", "", term.label, "", term.number, "numbers"
    for name in ("attention_projections", "attention_scores", "ffn", "head", "other", "total"):
        yield "flops", "", name, "", getattr(cost.flops, name), "operations"
    yield "attention_maps", "", "all maps", "", cost.maps.bytes, "bytes"


def _memory_lines(case: Case, cost: CostReport | BuiltCount) -> Iterator[_Line]:
    kind, cache = cost.storage.scheme if cost.storage else cost.dtype, cost.cache
    yield "weights", "", kind, "", cost.weight_bytes, "bytes"
    if cache is not None:
        yield "kv_cache", "", "one token", "", cache.bytes_per_token, "bytes"
        yield "kv_cache", "", f"{cost.batch} x {cost.tokens} tokens", "", cache.bytes, "bytes"
    if case.fit is not None and case.fit.tokens is not None:
        yield "memory", "", "longest context", "", case.fit.tokens, "tokens"
    for one in case.gpus:
        for name, unit in _CARD_UNITS.items():
            value = _card(one)[name]
            if isinstance(value, dict):
                value = value.get("total", value.get("tokens_per_second"))
            yield "gpus", "", one.card.name, name, value, unit
