"""The report of ``attnviz params``: the counts of one model, of several, or of compared sizes.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnviz.count.params.cost import BuiltCount, CostReport
from attnviz.count.params.parts import Case, PartLine, part_lines
from attnviz.count.params.request import ParamsRequest
from attnviz.count.params.specs import ExpertsSpec, FeedForwardSpec, ModelSpec, shares_of, total
from attnviz.draw.report import Report, fields_of

if TYPE_CHECKING:  # the options of the program need no drawing, most runs name no card
    from _typeshed import SupportsWrite

    from attnviz.count.params.cards import CardFit
    from attnviz.draw.document import Document

_COLUMNS = ("model", "section", "stack", "item", "detail", "value", "unit")

_ATTENTION = ("query", "key", "value", "output", "latent", "bias", "norm", "other")
_FLOPS = (
    *("attention_projections", "attention_scores", "attention_scores_visible", "ffn", "head"),
    *("other", "total", "total_visible", "per_token", "scores_per_token"),
)
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

    cases: one for each model or combination of values. request: the options.
    options: the compared ones. models: how many were named; 0 if options gave the sizes.
    """

    cases: tuple[Case, ...]
    request: ParamsRequest
    options: tuple[str, ...] = ()
    models: int = 0

    command = "params"

    def data(self) -> dict[str, Any]:
        return {"schema": "attnviz.params/1", **self.facts()}

    def facts(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints, without its schema."""
        if self.options:
            return _comparison(self)
        if len(self.cases) > 1:
            return {"models": [_case(case) for case in self.cases]}
        return _case(self.cases[0])

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Write ``data`` indented, in ASCII because names may come from anywhere."""
        stream.write(json.dumps(self.data(), indent=2, allow_nan=False) + "\n")

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        """Return the document; hints are left out beside an explanation."""
        return super().document(explain=explain, hints=hints and not explain)

    def rows(self) -> Iterator[tuple[object, ...]]:
        yield (*(option.replace("-", "_") for option in self.options), *_COLUMNS)
        for case in self.cases:
            if (counts := case.counts) is None:
                yield (*case.values, case.name, "refused", "", case.refusal, "", None, "")
            else:
                for line in _lines(case, counts):
                    yield (*case.values, case.name, *line)


def _plain(value: Any) -> Any:
    """Return a named tuple and all that are inside it as JSON objects."""
    if hasattr(value, "_asdict"):
        return {name: _plain(member) for name, member in value._asdict().items()}
    return [_plain(member) for member in value] if isinstance(value, tuple) else value


def _comparison(report: ParamsReport) -> dict[str, Any]:
    """Return the JSON object of a comparison of cases.

    ``compare``: the options in the order of their columns. ``changed``: the numbers that differ
    between rows. ``rows``: for each case the ``values`` of the options and the object of its model,
    or ``error`` if the values do not fit together. ``reading``: the changes in words.
    """
    from attnviz.count.params.compare import change_finding, change_reasons, telling_metrics

    metrics = telling_metrics(report.cases)
    return {
        "compare": report.options,
        "changed": [metric.key for metric in metrics if metric.changes(report.cases)],
        "rows": [
            {"values": _values(report.options, case)}
            | ({"error": case.refusal} if case.counts is None else _case(case))
            for case in report.cases
        ],
        "reading": [
            change_finding(report.options, report.cases, metrics),
            *change_reasons(report.options, report.cases),
        ],
    }


def _values(options: tuple[str, ...], case: Case) -> dict[str, int | str]:
    names = (option.replace("-", "_") for option in options)
    values = (int(value) if value.isdecimal() else value for value in case.values)
    return dict(zip(names, values, strict=True))


def _case(case: Case) -> dict[str, Any]:
    """Return the JSON object of a case; a part of it for a model that was built."""
    assert case.counts is not None
    count = case.counts
    told = {
        "weights": _weights(count),
        "needed_bytes": count.needed_bytes,
        "kv_cache": _plain(count.cache),
    }
    fits: dict[str, Any] = {} if case.fit is None else {"memory": case.fit._asdict()}
    fits |= {"gpus": [_card(fit) for fit in case.gpus]} if case.gpus else {}
    if isinstance(count, BuiltCount):
        return {**_built(count), **told, **fits}
    spec, length = count.spec, fields_of(count, ("tokens", "source_tokens", "batch"))
    attention, shares = spec.attention.terms, shares_of(spec.placed)
    return {
        "model": {
            "name": spec.name,
            "revision": case.revision,
            "dtype": count.dtype,
            "layers": spec.main.depth,
            **fields_of(spec.attention, ("heads", "kv_heads", "head_dim", "value_dim", "d_model")),
            "max_positions": spec.main.max_positions,
            **fields_of(spec, ("source", "architecture", "notes")),
        },
        "counted_by": "arithmetic",
        **length,
        "attention": {
            **{role: total(attention, role) for role in _ATTENTION},
            "total": total(attention),
        },
        "per_head": spec.attention.per_head,
        "ffn": _forward(spec),
        **{name: shares[name] for name in ("embedding", "norm", "head", "other")},
        "layers": sum(stack.depth for stack in spec.stacks),
        "total": count.total,
        "active": spec.active,
        "shares": shares,
        "parts": [_part(line) for line in part_lines(spec)],
        "layer_kinds": _kinds(spec),
        "buffers": [{"name": term.label, "count": term.number} for term in spec.buffers],
        **told,
        "flops": {**length, **fields_of(count.flops, _FLOPS)},
        "attention_maps": fields_of(count.maps, ("bytes", "values", "maps")),
        **fits,
    }


def _built(built: BuiltCount) -> dict[str, Any]:
    made = built.made
    return {
        "model": {
            **fields_of(built, ("name", "revision", "dtype")),
            **dict.fromkeys(("layers", "heads", "kv_heads", "head_dim")),
            "source": built.source,
            "architecture": made.architecture,
            "max_positions": made.limit,
            "notes": made.notes,
        },
        "counted_by": made.way,
        **fields_of(built, ("tokens", "batch", "total")),
        "parts": [{"name": name, "count": number} for name, number in made.parts],
        "buffer_total": made.buffers,
    }


def _weights(count: CostReport | BuiltCount) -> dict[str, Any]:
    stored = count.storage
    return {
        "dtype": count.dtype,
        "stated_by": count.stated or None,
        "other_dtypes": dict(count.others),
        "bytes": count.weight_bytes,
        "buffer_bytes": count.buffer_bytes,
        "quantisation": stored and {"scheme": stored.scheme, "lines": _plain(stored.lines)},
    }


def _forward(spec: ModelSpec) -> dict[str, Any]:
    """Return the JSON object of a feed-forward part; all numbers are 0 without one."""
    layer = spec.common.layer
    forward = layer.feed_forward or FeedForwardSpec(0, 0)
    terms, roles = forward.terms, ("up", "gate", "down", "bias", "router")
    shared, expert = None, None
    if isinstance(forward, ExpertsSpec):
        shared, expert = forward.shared, forward.expert
    return {
        "total": total(terms),
        "active": total(terms) - layer.idle,
        **{role: total(terms, role) for role in roles},
        "shared": total(shared.terms) if shared else 0,
        "other": total(terms, "other", "norm"),
        "per_expert": total(expert.terms) if expert else 0,
    }


def _part(line: PartLine) -> dict[str, Any]:
    """Return the JSON object of a line of parameters; with ``detail`` it is a part of another."""
    return {
        "name": line.label,
        **fields_of(line, ("role", "stack", "detail")),
        "count": line.number,
        **fields_of(line, ("one_layer", "layers")),
        "one_head": line.per_head,
        "formulas": [
            {"name": term.label, "count": term.number, "formula": term.formula}
            for term in line.terms
        ],
    }


def _kinds(spec: ModelSpec) -> list[dict[str, Any]]:
    """Return a JSON object for each kind of layer; ``indices`` is null if a stack has one kind."""
    kinds = []
    for stack in spec.stacks:
        for group in stack.groups:
            shares = shares_of(group.layer.placed)
            kinds.append(
                {
                    "stack": stack.name,
                    "kind": group.kind,
                    "layers": group.repeat,
                    **fields_of(group, ("stored", "indices")),
                    "attention": shares["attention"],
                    "ffn": shares["feed_forward"],
                    "norm": shares["norm"],
                    "other": shares["other"],
                    "total": sum(shares.values()),
                    "active": sum(shares.values()) - group.layer.idle,
                }
            )
    return kinds


def _card(fit: CardFit) -> dict[str, Any]:
    """Return the JSON object of how a GPU can run a model; its decode times are bounds."""
    bounds = {"decode": fit.decode, "decode_full": fit.full}
    return {
        **fields_of(fit.card, _CARD),
        "needs": {**fit.need._asdict(), "total": fit.need.total},
        **fields_of(fit, _CARD_FIT),
        **{name: bound and fields_of(bound, _DECODE) for name, bound in bounds.items()},
        "prefill_seconds": fit.prefill,
    }


_Line = tuple[str, str, str, str, float | None, str]  # section, stack, item, detail, value, unit


def _lines(case: Case, cost: CostReport | BuiltCount) -> Iterator[_Line]:
    section = unit = "parameters"
    if isinstance(cost, BuiltCount):
        for name, number in (*cost.made.parts, ("total", cost.total)):
            yield section, "", name, "sum" if name == "total" else "", number, unit
    else:
        for line in part_lines(cost.spec):
            yield section, line.stack, line.label, "detail" * line.detail, line.number, unit
        yield section, "", "total", "sum", cost.total, unit
        yield section, "", "active", "sum", cost.spec.active, unit
        for term in cost.spec.buffers:
            yield "buffers", "", term.label, "", term.number, "numbers"
        for name in ("attention_projections", "attention_scores", "ffn", "head", "other", "total"):
            yield "flops", "", name, "", getattr(cost.flops, name), "operations"
        yield "attention_maps", "", "all maps", "", cost.maps.bytes, "bytes"
    kind, cache = cost.storage.scheme if cost.storage else cost.dtype, cost.cache
    yield "weights", "", kind, "", cost.weight_bytes, "bytes"
    if cache is not None:
        yield "kv_cache", "", "one token", "", cache.bytes_per_token, "bytes"
        yield "kv_cache", "", f"{cost.batch} x {cost.tokens} tokens", "", cache.bytes, "bytes"
    if case.fit is not None and case.fit.tokens is not None:
        yield "memory", "", "longest context", "", case.fit.tokens, "tokens"
    for card in map(_card, case.gpus):
        for name, unit in _CARD_UNITS.items():
            value = card[name]
            if isinstance(value, Mapping):
                value = value.get("total", value.get("tokens_per_second"))
            yield "gpus", "", card["name"], name, value, unit
