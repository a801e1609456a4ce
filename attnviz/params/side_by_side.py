"""Several designs beside each other: a column for each, a row for each number."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.params.accounts.account import CostReport
from attnviz.params.metrics import Case, cell, telling_metrics
from attnviz.params.numbers import count, share, times
from attnviz.params.running import run_words
from attnviz.params.sheet import Column, Grid, Row, Sheet
from attnviz.params.specs import ExpertsSpec
from attnviz.params.subject import main_attention, main_group

__all__ = ["side_by_side_sheet"]

_SHARES = (
    ("attention", "attention"),
    ("feed-forward", "feed_forward"),
    ("embedding", "embedding"),
    ("norms", "norm"),
    ("head", "head"),
    ("other", "other"),
)


def side_by_side_sheet(cases: Sequence[Case]) -> Sheet:
    """The designs of all cases, which must all have been counted."""
    costs = [case.cost for case in cases if case.cost is not None]
    columns = (Column("", right=False), *(Column(case.name) for case in cases))
    lines = [
        f"{case.name}: {case.cost.spec.source}"
        for case in cases
        if case.cost is not None and case.cost.spec.source
    ]
    return Sheet(
        (f"{len(cases)} models", *sorted({cost.dtype for cost in costs})),
        tuple(lines),
        (
            Grid(
                columns,
                (
                    *_shape_rows(costs),
                    _heading("Parameters", cases),
                    *_share_rows(costs),
                    _heading("Running", cases),
                    *_running_rows(cases, costs),
                ),
            ),
        ),
        {},
        tuple(_sentences(cases, costs)),
    )


def _heading(text: str, cases: Sequence[Case]) -> Row:
    return Row((text, *("" for _ in cases)), "strong", ruled=True)


def _shape_rows(costs: Sequence[CostReport]) -> list[Row]:
    """The shapes."""
    rows = {
        "layers": [" + ".join(count(s.depth) for s in a.spec.stacks) for a in costs],
        "d_model": [count(main_attention(a).spec.d_model) for a in costs],
        "heads": [count(main_attention(a).spec.heads) for a in costs],
        "key/value heads": [count(main_attention(a).spec.kv_heads) for a in costs],
        "head_dim": [count(main_attention(a).spec.head_dim) for a in costs],
        "d_ff": [_inner_width(a) for a in costs],
    }
    return [Row((label, *cells)) for label, cells in rows.items()]


def _inner_width(cost: CostReport) -> str:
    forward = main_group(cost).layer.spec.feed_forward
    if forward is None:
        return "–"
    if isinstance(forward, ExpertsSpec):
        return f"{count(forward.experts)} × {count(forward.expert.d_ff)}"
    return count(forward.d_ff)


def _share_rows(costs: Sequence[CostReport]) -> list[Row]:
    """Counts by role, each with its share below; the counts add up to the total."""
    rows = []
    for label, name in _SHARES:
        numbers = [getattr(cost.parameters.shares, name) for cost in costs]
        if not any(numbers):
            continue
        wholes = [cost.parameters.total for cost in costs]
        shares = [
            share(part, whole) if part else "" for part, whole in zip(numbers, wholes, strict=True)
        ]
        rows.append(Row((label, *(count(number) if number else "–" for number in numbers))))
        rows.append(Row(("", *shares), "faint"))
    totals = [cost.parameters.total for cost in costs]
    rows.append(Row(("total", *map(count, totals)), "strong"))
    active = [cost.parameters.active for cost in costs]
    if active != totals:
        rows.append(Row(("active a token", *map(count, active)), "strong"))
    return rows


def _running_rows(cases: Sequence[Case], costs: Sequence[CostReport]) -> list[Row]:
    rows = [Row(("counted for", *map(run_words, costs)), "faint")]
    for metric in telling_metrics(cases):
        if not metric.shape:
            rows.append(Row((metric.title, *(cell(metric, case) for case in cases))))
    return rows


def _sentences(cases: Sequence[Case], costs: Sequence[CostReport]) -> list[str]:
    """How the largest compares with the smallest."""
    pairs = list(zip(cases, costs, strict=True))
    small, few = min(pairs, key=lambda pair: pair[1].parameters.total)
    large, many = max(pairs, key=lambda pair: pair[1].parameters.total)
    if few.parameters.total == many.parameters.total:
        return []
    text = (
        f"{large.name} has {times(many.parameters.total, few.parameters.total)} the parameters "
        f"of {small.name}"
    )
    before, after = few.cache.bytes_per_token, many.cache.bytes_per_token
    if before and after:
        text += f" and keeps {times(after, before)} the cache of a token"
    return [f"{text}."]
