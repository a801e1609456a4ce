"""Compares cases in tables and sentences: values of an option of one architecture, or models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from attnviz.count.params.cases import Case
from attnviz.count.params.counting.built import BuiltCount
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.parts import attention_only, main_attention, main_group
from attnviz.count.params.specs import AttentionSpec, ExpertsSpec
from attnviz.count.params.words import (
    bytes_text,
    count,
    factor,
    operations,
    percentage,
    run_words,
    short,
)
from attnviz.draw.document import Column, Row, Table

MARK = "*"
"""Marks the heading of a column whose numbers differ, for readers without colour or bold."""

_SHARES = {
    "attention": "attention",
    "feed_forward": "MLP",
    "embedding": "embedding",
    "norm": "norms",
    "head": "LM head",
    "other": "other",
}
"""The shares of the parameters, and their names in a table."""

_MOST_TOLD = 3


class Metric(NamedTuple):
    """One quantity, such as the bytes of the cache, that cases are compared by.

    key: its name in JSON. title: its name above a column and in a sentence.
    value: returns the number, None if a case has none. text: returns the number as text.
    shape: whether it describes the architecture itself rather than running it.
    """

    key: str
    title: str
    value: Callable[[Case], int | None]
    text: Callable[[int], str]
    shape: bool = False


_ANY = (CostReport, BuiltCount)


def _of(
    number: Callable[[Any], int | None], kinds: type | tuple[type, ...] = CostReport
) -> Callable[[Case], int | None]:
    """Return the number of a case if its counts are of one of these kinds, else None."""
    return lambda case: number(case.counts) if isinstance(case.counts, kinds) else None


def _forward(cost: CostReport) -> int:
    forward = main_group(cost).layer.feed_forward
    return 0 if forward is None else forward.total


def _per_token(count: CostReport | BuiltCount) -> int | None:
    return None if count.cache is None else count.cache.bytes_per_token


_METRICS = (
    Metric("head_dim", "head_dim", _of(lambda a: main_attention(a).spec.head_dim), count, True),
    Metric("attention", "attention", _of(lambda a: main_attention(a).total), count, True),
    Metric("ffn", "MLP", _of(_forward), count, True),
    Metric("total", "total", _of(lambda a: a.total, _ANY), count, True),
    Metric("active", "active", _of(lambda a: a.parameters.active), count, True),
    Metric("weights", "weights", _of(lambda a: a.weight_bytes, _ANY), bytes_text),
    Metric("cache_per_token", "cache/token", _of(_per_token, _ANY), bytes_text),
    Metric("cache", "cache", _of(lambda a: a.cache and a.cache.bytes, _ANY), bytes_text),
    Metric("flops", "FLOPs", _of(lambda a: a.flops.total_visible), operations),
    Metric(
        "scores", "attention FLOPs", _of(lambda a: a.flops.attention_scores_visible), operations
    ),
    Metric("maps", "attention weights", _of(lambda a: a.maps.bytes), bytes_text),
    Metric("context", "fits tokens", lambda case: case.fit.tokens if case.fit else None, count),
)
"""All metrics, in the order of the columns."""


def telling_metrics(cases: Sequence[Case]) -> tuple[Metric, ...]:
    """Return the metrics that some case has and that do not merely repeat another metric."""
    counted = [case for case in cases if case.counts is not None]
    costs = [case.cost for case in cases if case.cost is not None]
    left_out = set()
    if costs and all(map(attention_only, costs)):
        left_out = {"total", "ffn", "active"}
    elif all(cost.parameters.active == cost.parameters.total for cost in costs):
        left_out = {"active"}
    return tuple(
        metric
        for metric in _METRICS
        if metric.key not in left_out and any(metric.value(case) for case in counted)
    )


def changed(metric: Metric, cases: Sequence[Case]) -> bool:
    """Return True if a metric differs between the cases that could be counted."""
    return len({metric.value(case) for case in cases if case.counts is not None}) > 1


def _cell(metric: Metric, case: Case) -> str:
    value = metric.value(case)
    if metric.key == "context" and case.fit is not None:
        return "any" if value is None else count(value) if value else "none"
    return metric.text(value) if value else "–"


def compared_table(
    options: Sequence[str], cases: Sequence[Case], metrics: Sequence[Metric], brief: bool = False
) -> Table:
    """Return a table with a row for each case, and a column for each compared option and metric.

    brief: True for a first screen: headings of metrics that differ are not marked, columns that do
        not fit are left out rather than put below, and rows are left out if there are few lines.
    """
    columns = [Column(option, tone="strong") for option in options]
    for metric in metrics:
        if changed(metric, cases):
            keep = 8 - metrics.index(metric) % 8 if brief else 9
            title = metric.title if brief else f"{metric.title} {MARK}"
            columns.append(Column(title, tone="strong", keep=keep))
        else:
            kept = metric.key in ("attention", "total")
            columns.append(Column(metric.title, tone="faint", keep=9 if kept else 4))
    blank = ("–",) * len(metrics)
    rows = [
        Row([*case.values, *blank], tone="faint", below=[f"not possible: {case.refusal}"])
        if case.counts is None
        else Row([*case.values, *(_cell(metric, case) for metric in metrics)])
        for case in cases
    ]
    return Table(columns, rows, lead=len(options), least=3 * brief)


def change_finding(options: Sequence[str], cases: Sequence[Case], metrics: Sequence[Metric]) -> str:
    """Return a sentence on which metrics change most between the first and last value of an option.

    The compared cases have the first value of all other options.
    """
    found = []
    for option, place, along in _along(options, cases):
        first, last = along[0], along[-1]
        moved = {}
        for metric in metrics:
            before, after = metric.value(first), metric.value(last)
            if before and after and before != after:
                moved[metric.title] = (max(before, after) / min(before, after), before, after)
        titles: dict[str, str] = {}
        for title in sorted(moved, key=lambda title: -moved[title][0]):
            titles.setdefault(factor(moved[title][2], moved[title][1]), title)
        most = [f"{title} {by}" for by, title in titles.items()][:_MOST_TOLD]
        what = ", ".join(most) or "nothing of this changes"
        found.append(f"{option} {first.values[place]} → {last.values[place]}: {what}")
    return "; ".join(found) + "." if found else ""


def _along(
    options: Sequence[str], cases: Sequence[Case]
) -> Iterator[tuple[str, int, Sequence[Case]]]:
    """Yield for each compared option its name, its index, and the cases that differ only in it.

    In these cases all other options have their first value.
    """
    counted = [case for case in cases if case.counts is not None]
    start = counted[0].values
    for place, option in enumerate(options):
        others = [at for at in range(len(options)) if at != place]
        along = [case for case in counted if all(case.values[at] == start[at] for at in others)]
        if len(along) > 1:
            yield option, place, along


def change_reasons(options: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Return sentences that explain why the metrics change with the options."""
    return [
        reason
        for option, _, along in _along(options, cases)
        for reason in _why(option, [case.cost for case in along if case.cost is not None])
    ]


def _why(option: str, costs: Sequence[CostReport]) -> Iterator[str]:
    specs = [main_attention(cost).spec for cost in costs]
    grows = len({main_attention(cost).total for cost in costs}) > 1
    whole = all(spec.heads * spec.head_dim == spec.d_model for spec in specs)
    if option == "heads":
        yield from _why_heads(specs, grows, whole)
    elif option == "kv-heads" and grows:
        rest = "query and output keep their size" if whole else "query and output stay"
        yield (
            f"Fewer key/value heads shrink key and value and the cache; {rest}, every query head "
            "still attends on its own, so attention FLOPs and weights stay."
        )
    elif option == "tokens" and len({cost.tokens for cost in costs}) > 1:
        yield "Longer texts: cache and projections grow as n, attention FLOPs and weights as n²."


def _why_heads(specs: Sequence[AttentionSpec], grows: bool, whole: bool) -> Iterator[str]:
    first, last = specs[0], specs[-1]
    if not grows and whole:
        cuts = " = ".join(f"{count(s.heads)} × {count(s.head_dim)}" for s in (first, last))
        yield (
            "The count does not depend on the number of heads: head_dim = d_model / heads, so "
            f"{cuts} = {count(first.d_model)} columns, the same matrices cut otherwise."
        )
    elif len({spec.head_dim for spec in specs}) == 1:
        yield (
            "The count grows with the number of heads: head_dim is fixed at "
            f"{count(first.head_dim)}, so each head brings columns of its own."
        )
    elif grows:
        yield (
            "The count changes with key and value alone: they have kv_heads × head_dim columns, "
            "and head_dim is d_model / heads."
        )


_KEEPS = {
    "layers": 5,
    "heads": 4,
    "d_model": 4,
    "parameters": 9,
    "weights": 8,
    "cache/token": 7,
    "FLOPs/token": 3,
    "fits": 9,
}


def model_table(cases: Sequence[Case]) -> Table:
    """Return a table with a row of sizes and counts for each counted model.

    Of a model that was built the sizes are dashes.
    """
    pairs = [(case, case.counts) for case in cases if case.counts is not None]
    most = max(cost.total for _, cost in pairs)
    rows = []
    for case, cost in pairs:
        sizes, speed = ("–", "–", "–"), "–"
        if isinstance(cost, CostReport):
            spec, depth = main_attention(cost).spec, sum(one.depth for one in cost.spec.stacks)
            sizes = (count(depth), count(spec.heads), count(spec.d_model))
            speed = operations(cost.flops.per_token)
        cells = (
            case.name,
            *sizes,
            short(cost.total),
            bytes_text(cost.weight_bytes),
            bytes_text(_per_token(cost)) if cost.cache and cost.cache.lines else "–",
            speed,
            ("yes" if _fits(case) else "no") if case.fit else "",
        )
        rows.append(Row(cells, (cost.total, most)))
    columns = [Column(title, keep=keep) for title, keep in _KEEPS.items()]
    return Table([Column("", right=False), *columns], rows, least=3, bars="size")


def _fits(case: Case) -> bool:
    needed = None if case.counts is None else case.counts.needed_bytes
    return case.fit is not None and needed is not None and needed <= case.fit.memory


def side_by_side_table(cases: Sequence[Case]) -> Table:
    """Return a table with a column for each counted model, and a row for each size and count."""
    costs = [case.cost for case in cases if case.cost is not None]
    blank = [""] * len(cases)
    rows = [
        *_shape_rows(costs),
        Row(["Parameters", *blank], tone="strong", ruled=True),
        *_share_rows(costs),
        Row(["Running", *blank], tone="strong", ruled=True),
        Row(["counted for", *map(run_words, costs)], tone="faint"),
    ]
    for metric in telling_metrics(cases):
        if not metric.shape:
            rows.append(Row([metric.title, *(_cell(metric, case) for case in cases)]))
    return Table([Column("", right=False), *(Column(case.name) for case in cases)], rows)


def _shape_rows(costs: Sequence[CostReport]) -> Iterator[Row]:
    yield Row(["layers", *(" + ".join(count(s.depth) for s in cost.spec.stacks) for cost in costs)])
    labels = {"d_model": "d_model", "heads": "heads", "kv_heads": "key/value heads"}
    for name, label in {**labels, "head_dim": "head_dim"}.items():
        yield Row([label, *(count(getattr(main_attention(cost).spec, name)) for cost in costs)])
    yield Row(["d_ff", *map(_inner_width, costs)])


def _inner_width(cost: CostReport) -> str:
    forward = main_group(cost).layer.spec.feed_forward
    if isinstance(forward, ExpertsSpec):
        return f"{count(forward.experts)} × {count(forward.expert.d_ff)}"
    return "–" if forward is None else count(forward.d_ff)


def _share_rows(costs: Sequence[CostReport]) -> Iterator[Row]:
    """Yield table rows with the parameters by role, a cell for each cost, and their shares below.

    The numbers add up to the total.
    """
    totals = [cost.parameters.total for cost in costs]
    for name, label in _SHARES.items():
        numbers = [getattr(cost.parameters.shares, name) for cost in costs]
        if any(numbers):
            yield Row([label, *(count(number) if number else "–" for number in numbers)])
            pairs = zip(numbers, totals, strict=True)
            shares = [percentage(part, whole) if part else "" for part, whole in pairs]
            yield Row(["", *shares], tone="faint")
    yield Row(["total", *map(count, totals)], tone="strong")
    active = [cost.parameters.active for cost in costs]
    if active != totals:
        yield Row(["active a token", *map(count, active)], tone="strong")


def size_sentences(cases: Sequence[Case]) -> Iterator[str]:
    """Yield sentences: which models fit the memory, how the largest relates to the smallest."""
    pairs = [(case, case.counts) for case in cases if case.counts is not None]
    if (fit := cases[0].fit) is not None:
        names = [case.name for case, _ in pairs if _fits(case)]
        listed = f": {', '.join(names)}" if 0 < len(names) <= _MOST_TOLD else ""
        yield f"{len(names)} of {len(pairs)} fit in {bytes_text(fit.memory)}{listed}."
    small, few = min(pairs, key=lambda pair: pair[1].total)
    large, many = max(pairs, key=lambda pair: pair[1].total)
    if few.total == many.total:
        yield f"All have {count(few.total)} parameters."
        return
    text = f"{large.name} against {small.name}: parameters {factor(many.total, few.total)}"
    before, after = _per_token(few), _per_token(many)
    if before and after:
        text += f", cache/token {factor(after, before)}"
    yield f"{text}."
