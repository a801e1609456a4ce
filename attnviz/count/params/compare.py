"""Compares cases in tables and sentences: values of an option of one architecture, or models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from attnviz.count.params.cost import BuiltCount, CostReport
from attnviz.count.params.report import Case
from attnviz.count.params.specs import AttentionSpec, ExpertsSpec, Shares, total
from attnviz.count.params.wording import (
    bytes_text,
    count,
    factor,
    operations,
    percentage,
    run_words,
    short,
)
from attnviz.draw import document as doc

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
    number: returns it for the counts of a case; None if a case has none. text: returns it as text.
    shape: whether it describes the architecture itself rather than running it.
    always: whether a model that was built has it too.
    """

    key: str
    title: str
    number: Callable[[Any], int | None]
    text: Callable[[int], str]
    shape: bool = False
    always: bool = False

    def value(self, case: Case) -> int | None:
        """Return the number of a case, or None."""
        if self.key == "context":
            return case.fit.tokens if case.fit else None
        counts = case.counts if self.always else case.cost
        return None if counts is None else self.number(counts)

    def changes(self, cases: Sequence[Case]) -> bool:
        """Return True if it differs between the cases that could be counted."""
        return len({self.value(case) for case in cases if case.counts is not None}) > 1

    def cell(self, case: Case) -> str:
        """Return the number of a case as text, a dash if there is none."""
        value = self.value(case)
        if self.key == "context" and case.fit is not None:
            return "any" if value is None else count(value) if value else "none"
        return self.text(value) if value else "–"


def _forward(cost: CostReport) -> int:
    forward = cost.spec.common.layer.feed_forward
    return 0 if forward is None else total(forward.terms)


def _per_token(count: CostReport | BuiltCount) -> int | None:
    return None if count.cache is None else count.cache.bytes_per_token


_METRICS = (
    Metric("head_dim", "head_dim", lambda a: a.spec.attention.head_dim, count, True),
    Metric("attention", "attention", lambda a: total(a.spec.attention.terms), count, True),
    Metric("ffn", "MLP", _forward, count, True),
    Metric("total", "total", lambda a: a.total, count, shape=True, always=True),
    Metric("active", "active", lambda a: a.spec.active, count, True),
    Metric("weights", "weights", lambda a: a.weight_bytes, bytes_text, always=True),
    Metric("cache_per_token", "cache/token", _per_token, bytes_text, always=True),
    Metric("cache", "cache", lambda a: a.cache and a.cache.bytes, bytes_text, always=True),
    Metric("flops", "FLOPs", lambda a: a.flops.total_visible, operations),
    Metric("scores", "attention FLOPs", lambda a: a.flops.attention_scores_visible, operations),
    Metric("maps", "attention weights", lambda a: a.maps.bytes, bytes_text),
    Metric("context", "fits tokens", lambda a: None, count),
)
"""All metrics, in the order of the columns."""


def telling_metrics(cases: Sequence[Case]) -> tuple[Metric, ...]:
    """Return the metrics that some case has and that do not merely repeat another metric."""
    costs = [case.cost for case in cases if case.cost is not None]
    left_out = set()
    if costs and all(cost.spec.attention_only for cost in costs):
        left_out = {"total", "ffn", "active"}
    elif all(cost.spec.active == cost.total for cost in costs):
        left_out = {"active"}
    return tuple(m for m in _METRICS if m.key not in left_out and any(map(m.value, cases)))


def compared_table(
    options: Sequence[str], cases: Sequence[Case], metrics: Sequence[Metric], brief: bool = False
) -> doc.Table:
    """Return a table with a row for each case, and a column for each compared option and metric.

    brief: True for a first screen: headings of metrics that differ are not marked, columns that do
        not fit are left out rather than put below, and rows are left out if there are few lines.
    """
    columns = [doc.Column(option, tone="strong") for option in options]
    for index, metric in enumerate(metrics):
        if metric.changes(cases):
            title = metric.title + f" {MARK}" * (not brief)
            columns.append(doc.Column(title, tone="strong", keep=8 - index % 8 if brief else 9))
        else:
            kept = metric.key in ("attention", "total")
            columns.append(doc.Column(metric.title, tone="faint", keep=9 if kept else 4))
    rows = [doc.Row([*case.values, *(m.cell(case) for m in metrics)]) for case in cases]
    rows = [
        row._replace(tone="faint", below=[f"not possible: {case.refusal}"]) if case.refusal else row
        for row, case in zip(rows, cases, strict=True)
    ]
    return doc.Table(columns, rows, lead=len(options), least=3 * brief)


def change_finding(options: Sequence[str], cases: Sequence[Case], metrics: Sequence[Metric]) -> str:
    """Return a sentence on which metrics change most between the first and last value of an option.

    The compared cases have the first value of all other options.
    """
    sentences = []
    for option, index, along in _along(options, cases):
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
        change = ", ".join(most) or "nothing of this changes"
        sentences.append(f"{option} {first.values[index]} → {last.values[index]}: {change}")
    return "; ".join(sentences) + "." if sentences else ""


def _along(
    options: Sequence[str], cases: Sequence[Case]
) -> Iterator[tuple[str, int, Sequence[Case]]]:
    """Yield for each option its name, its index, and the cases that differ only in it."""
    counted = [case for case in cases if case.counts is not None]
    start = counted[0].values
    for index, option in enumerate(options):
        others = [at for at in range(len(options)) if at != index]
        along = [case for case in counted if all(case.values[at] == start[at] for at in others)]
        if len(along) > 1:
            yield option, index, along


def change_reasons(options: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Return sentences that explain why the metrics change with the options."""
    return [
        reason
        for option, _, along in _along(options, cases)
        for reason in _why(option, [case.cost for case in along if case.cost is not None])
    ]


def _why(option: str, costs: Sequence[CostReport]) -> Iterator[str]:
    specs = [cost.spec.attention for cost in costs]
    grows = len({total(cost.spec.attention.terms) for cost in costs}) > 1
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


def model_table(cases: Sequence[Case]) -> doc.Table:
    """Return a table with a row of sizes and counts for each counted model.

    Of a model that was built the sizes are dashes.
    """
    pairs = [(case, case.counts) for case in cases if case.counts is not None]
    most, rows = max(cost.total for _, cost in pairs), []
    for case, cost in pairs:
        sizes, speed = ("–", "–", "–"), "–"
        if isinstance(cost, CostReport):
            spec, depth = cost.spec.attention, sum(stack.depth for stack in cost.spec.stacks)
            sizes = (count(depth), count(spec.heads), count(spec.d_model))
            speed = operations(cost.flops.per_token)
        weights = (short(cost.total), bytes_text(cost.weight_bytes))
        kept = bytes_text(_per_token(cost)) if cost.cache and cost.cache.lines else "–"
        fits = ("yes" if _fits(case) else "no") if case.fit else ""
        rows.append(doc.Row((case.name, *sizes, *weights, kept, speed, fits), (cost.total, most)))
    columns = [doc.Column(title, keep=keep) for title, keep in _KEEPS.items()]
    return doc.Table([doc.Column("", right=False), *columns], rows, least=3, bars="size")


def _fits(case: Case) -> bool:
    needed = None if case.counts is None else case.counts.needed_bytes
    return case.fit is not None and needed is not None and needed <= case.fit.memory


def side_by_side_table(cases: Sequence[Case]) -> doc.Table:
    """Return a table with a column for each counted model, and a row for each size and count."""
    costs = [case.cost for case in cases if case.cost is not None]

    def row(label: str, write: Callable[[CostReport], str], **more: Any) -> doc.Row:
        return doc.Row([label, *map(write, costs)], **more)

    def layers(cost: CostReport) -> str:
        return " + ".join(count(stack.depth) for stack in cost.spec.stacks)

    def size(name: str, cost: CostReport) -> str:
        return count(getattr(cost.spec.attention, name))

    sizes = {"d_model": "d_model", "heads": "heads", "key/value heads": "kv_heads"}
    sizes["head_dim"] = "head_dim"
    rows = [
        row("layers", layers),
        *(row(label, partial(size, name)) for label, name in sizes.items()),
        row("d_ff", _inner_width),
        row("Parameters", lambda cost: "", tone="strong", ruled=True),
        *_share_rows(costs),
        row("Running", lambda cost: "", tone="strong", ruled=True),
        row("counted for", run_words, tone="faint"),
    ]
    for metric in telling_metrics(cases):
        if not metric.shape:
            rows.append(doc.Row([metric.title, *map(metric.cell, cases)]))
    return doc.Table(
        [doc.Column("", right=False), *(doc.Column(case.name) for case in cases)], rows
    )


def _inner_width(cost: CostReport) -> str:
    forward = cost.spec.common.layer.feed_forward
    if isinstance(forward, ExpertsSpec):
        return f"{count(forward.experts)} × {count(forward.expert.d_ff)}"
    return "–" if forward is None else count(forward.d_ff)


def _share_rows(costs: Sequence[CostReport]) -> Iterator[doc.Row]:
    """Yield rows with the parameters by role, which add up, and their shares below."""
    totals = [cost.total for cost in costs]
    for name, label in _SHARES.items():
        numbers = [getattr(Shares.of(cost.spec.placed), name) for cost in costs]
        if any(numbers):
            yield doc.Row([label, *(count(number) if number else "–" for number in numbers)])
            pairs = zip(numbers, totals, strict=True)
            shares = [percentage(part, whole) if part else "" for part, whole in pairs]
            yield doc.Row(["", *shares], tone="faint")
    yield doc.Row(["total", *map(count, totals)], tone="strong")
    active = [cost.spec.active for cost in costs]
    if active != totals:
        yield doc.Row(["active a token", *map(count, active)], tone="strong")


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
