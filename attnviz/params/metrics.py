"""The numbers by which designs are compared, each with its name, its unit and its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.running import Fit
from attnviz.params.fit import longest_words
from attnviz.params.numbers import bytes_text, count, short
from attnviz.params.subject import attention_only, main_attention, main_group

__all__ = ["METRICS", "Case", "Metric", "cell", "telling_metrics"]


@dataclass(frozen=True)
class Case:
    """One design of a comparison.

    name: how a person tells it from the others.
    values: the values of the compared options, as they were given.
    account: what it costs; None where the values do not go together.
    fit: what fits into the memory that was asked for.
    refusal: why the values do not go together.
    revision: the commit of a model of the hub.
    """

    name: str
    values: tuple[str, ...] = ()
    cost: CostReport | None = None
    fit: Fit | None = None
    refusal: str = ""
    revision: str | None = None


@dataclass(frozen=True)
class Metric:
    """One number of a design.

    key: in JSON. title: above a column and in a sentence.
    value: the number, None where a design has none.
    text: the number as it is written.
    shape: whether it tells of the design itself and not of running it.
    """

    key: str
    title: str
    value: Callable[[Case], int | None]
    text: Callable[[int], str]
    shape: bool = False


def _of(number: Callable[[CostReport], int]) -> Callable[[Case], int | None]:
    """The number of an account, None where there is no account."""
    return lambda case: None if case.cost is None else number(case.cost)


def _forward(cost: CostReport) -> int:
    forward = main_group(cost).layer.feed_forward
    return 0 if forward is None else forward.total


def _longest(case: Case) -> int | None:
    return None if case.fit is None else case.fit.tokens


METRICS = (
    Metric("head_dim", "head_dim", _of(lambda a: main_attention(a).spec.head_dim), count, True),
    Metric("attention", "attention", _of(lambda a: main_attention(a).total), count, True),
    Metric("ffn", "feed-forward", _of(_forward), count, True),
    Metric("total", "total", _of(lambda a: a.parameters.total), count, True),
    Metric("active", "active", _of(lambda a: a.parameters.active), count, True),
    Metric("weights", "weights", _of(lambda a: a.weight_bytes), bytes_text),
    Metric("cache_per_token", "cache/token", _of(lambda a: a.cache.bytes_per_token), bytes_text),
    Metric("cache", "cache", _of(lambda a: a.cache.bytes), bytes_text),
    Metric("flops", "FLOPs", _of(lambda a: a.flops.total), short),
    Metric("scores", "scores", _of(lambda a: a.flops.attention_scores), short),
    Metric("maps", "maps", _of(lambda a: a.maps.bytes), bytes_text),
    Metric("context", "fits tokens", _longest, count),
)
"""All of them, in the order of the columns."""


def telling_metrics(cases: Sequence[Case]) -> tuple[Metric, ...]:
    """Those that these cases have, without one that only repeats another."""
    counted = [case for case in cases if case.cost is not None]
    alone = all(case.cost is not None and attention_only(case.cost) for case in counted)
    same_active = all(
        case.cost is not None and case.cost.parameters.active == case.cost.parameters.total
        for case in counted
    )
    left_out = {"total", "ffn"} if alone else set()
    if same_active or alone:
        left_out.add("active")
    return tuple(
        metric
        for metric in METRICS
        if metric.key not in left_out and any(metric.value(case) for case in counted)
    )


def cell(metric: Metric, case: Case) -> str:
    """A metric of a case as it stands in a table."""
    if metric.key == "context" and case.fit is not None:
        return longest_words(case.fit)
    value = metric.value(case)
    return metric.text(value) if value else "–"
