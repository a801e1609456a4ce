"""The trade-off table: one row for each value of an option, and what changed in words."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.params.accounts.account import CostReport
from attnviz.params.metrics import Case, Metric, cell, telling_metrics
from attnviz.params.numbers import count, factor
from attnviz.params.running import run_words
from attnviz.params.sheet import Column, Grid, Row, Sheet
from attnviz.params.subject import attention_only, main_attention
from attnviz.params.title import origin_lines, title_words

__all__ = ["MARK", "changed", "compare_sheet"]

MARK = "*"
"""Stands in the heading of a column whose numbers differ, for eyes without colour or bold."""


def changed(metric: Metric, cases: Sequence[Case]) -> bool:
    """Whether a metric differs between the cases that could be counted."""
    return len({metric.value(case) for case in cases if case.cost is not None}) > 1


def compare_sheet(options: Sequence[str], cases: Sequence[Case]) -> Sheet:
    """The table of all cases; at least one of them must have been counted."""
    first = next(case.cost for case in cases if case.cost is not None)
    metrics = telling_metrics(cases)
    columns = [Column(option, tone="strong") for option in options]
    for metric in metrics:
        differs = changed(metric, cases)
        title = f"{metric.title} {MARK}" if differs else metric.title
        kept = differs or metric.key in ("attention", "total")
        columns.append(Column(title, tone="strong" if differs else "faint", keep=9 if kept else 4))
    rows = [_row(case, metrics) for case in cases]
    return Sheet(
        _title(options, cases, first),
        (*origin_lines(first), _caption(cases, first, metrics)),
        (Grid(tuple(columns), tuple(rows), lead=len(options)),),
        {},
        tuple(_sentences(options, cases, metrics)),
    )


def _row(case: Case, metrics: Sequence[Metric]) -> Row:
    if case.cost is None:
        blank = ("–",) * len(metrics)
        return Row((*case.values, *blank), "faint", below=(f"not possible: {case.refusal}",))
    return Row((*case.values, *(cell(metric, case) for metric in metrics)))


def _title(options: Sequence[str], cases: Sequence[Case], first: CostReport) -> tuple[str, ...]:
    """What all cases share: the words of the title that are equal in each."""
    titles = [title_words(case.cost) for case in cases if case.cost is not None]
    name = titles[0][0]
    others = [word for word in titles[0][1:] if all(word in title for title in titles)]
    return (name, f"by {' and '.join(options)}", *others)


def _caption(cases: Sequence[Case], first: CostReport, metrics: Sequence[Metric]) -> str:
    """What the numbers of the columns are counted for."""
    parts = ["parameters"] if attention_only(first) else ["attention and feed-forward of one layer"]
    runs = {run_words(case.cost) for case in cases if case.cost is not None}
    if len(runs) == 1:
        parts.append(f"cache, FLOPs (scores are part of them), maps for {runs.pop()}")
    if any(changed(metric, cases) for metric in metrics):
        parts.insert(0, f"{MARK} changes from row to row")
    return "; ".join(parts)


def _sentences(
    options: Sequence[str], cases: Sequence[Case], metrics: Sequence[Metric]
) -> list[str]:
    """For each option what changes along it, the others held at their first value, and why."""
    sentences = []
    for place, option in enumerate(options):
        start = next(case for case in cases if case.cost is not None).values
        along = [
            case
            for case in cases
            if case.cost is not None
            and all(case.values[i] == start[i] for i in range(len(options)) if i != place)
        ]
        if len(along) < 2:
            continue
        sentences.append(_what(option, place, along, metrics))
        sentences += _why(option, along)
    return sentences


def _what(option: str, place: int, along: Sequence[Case], metrics: Sequence[Metric]) -> str:
    first, last = along[0], along[-1]
    moved, stay = [], []
    for metric in metrics:
        before, after = metric.value(first), metric.value(last)
        if not changed(metric, along):
            stay.append(metric.title)
        elif before and after and before != after:
            change = factor(after, before)
            moved.append(f"{metric.title} {cell(metric, first)} → {cell(metric, last)} ({change})")
        else:
            moved.append(f"{metric.title} {cell(metric, first)} → {cell(metric, last)}")
    head = f"{option} {first.values[place]} → {last.values[place]}: "
    text = ", ".join(moved) if moved else "nothing of this changes"
    return head + text + (f"; unchanged: {', '.join(stay)}." if moved and stay else ".")


def _why(option: str, along: Sequence[Case]) -> list[str]:
    """The reason behind the change, where the numbers bear it out."""
    costs = [case.cost for case in along if case.cost is not None]
    specs_ = [main_attention(cost).spec for cost in costs]
    totals = [main_attention(cost).total for cost in costs]
    if option == "heads":
        fixed = all(spec.heads * spec.head_dim == spec.d_model for spec in specs_)
        if len(set(totals)) == 1 and fixed:
            cuts = " = ".join(
                f"{count(spec.heads)} × {count(spec.head_dim)}" for spec in (specs_[0], specs_[-1])
            )
            return [
                "The count does not depend on the number of heads: head_dim = d_model / heads, so "
                f"{cuts} = {count(specs_[0].d_model)} columns, the same matrices cut otherwise."
            ]
        if len({spec.head_dim for spec in specs_}) == 1:
            return [
                "The count grows with the number of heads: head_dim is fixed at "
                f"{count(specs_[0].head_dim)}, so each head brings columns of its own."
            ]
        if len(set(totals)) > 1:
            return [
                "The count changes with key and value alone: they have kv_heads × head_dim "
                "columns, and head_dim is d_model / heads."
            ]
    if option == "kv-heads" and len(set(totals)) > 1:
        whole = all(spec.heads * spec.head_dim == spec.d_model for spec in specs_)
        rest = "query and output keep their size" if whole else "query and output stay"
        return [
            f"Fewer key/value heads shrink key and value and the cache; {rest}, every query head "
            "still looks for itself, so scores and maps stay."
        ]
    if option == "tokens" and len({cost.tokens for cost in costs}) > 1:
        return ["Longer texts: cache and projections grow with the length, scores and maps as n²."]
    return []
