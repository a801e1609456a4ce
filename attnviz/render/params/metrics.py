"""The numbers by which designs are compared, each with its name, its unit and its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnviz.accounts.account import Account
from attnviz.accounts.running import Fit
from attnviz.render.params.fit import longest_words
from attnviz.render.params.numbers import bytes_text, count, short
from attnviz.render.params.subject import attention_only, main_attention, main_group

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
    account: Account | None = None
    fit: Fit | None = None
    refusal: str = ""
    revision: str | None = None


@dataclass(frozen=True)
class Metric:
    """One number of a design.

    name: in a sentence. title: above a column. key: in JSON.
    value: the number, None where a design has none.
    text: the number as it is written.
    kind: ``shape``, ``parameters`` or ``running``.
    """

    key: str
    title: str
    name: str
    value: Callable[[Case], int | None]
    text: Callable[[int], str]
    kind: str = "running"


def _of(number: Callable[[Account], int]) -> Callable[[Case], int | None]:
    """The number of an account, None where there is no account."""
    return lambda case: None if case.account is None else number(case.account)


def _forward(account: Account) -> int:
    forward = main_group(account).layer.feed_forward
    return 0 if forward is None else forward.total


def _longest(case: Case) -> int | None:
    return None if case.fit is None else case.fit.tokens


METRICS = (
    Metric(
        "head_dim",
        "head_dim",
        "the width of a head",
        _of(lambda account: main_attention(account).design.head_dim),
        count,
        "shape",
    ),
    Metric(
        "attention",
        "attention",
        "the attention of a layer",
        _of(lambda account: main_attention(account).total),
        count,
        "parameters",
    ),
    Metric("ffn", "feed-forward", "the feed-forward part", _of(_forward), count, "parameters"),
    Metric(
        "total",
        "total",
        "the whole model",
        _of(lambda account: account.parameters.total),
        count,
        "parameters",
    ),
    Metric(
        "active",
        "active",
        "the active parameters",
        _of(lambda account: account.parameters.active),
        count,
        "parameters",
    ),
    Metric(
        "weights",
        "weights",
        "the memory of the weights",
        _of(lambda account: account.weight_bytes),
        bytes_text,
    ),
    Metric(
        "cache_per_token",
        "cache/token",
        "the cache of a token",
        _of(lambda account: account.cache.bytes_per_token),
        bytes_text,
    ),
    Metric("cache", "cache", "the cache", _of(lambda account: account.cache.bytes), bytes_text),
    Metric(
        "flops",
        "FLOPs",
        "the forward pass",
        _of(lambda account: account.flops.total),
        short,
    ),
    Metric(
        "scores",
        "of scores",
        "its scores",
        _of(lambda account: account.flops.attention_scores),
        short,
    ),
    Metric("maps", "maps", "the attention maps", _of(lambda a: a.maps.bytes), bytes_text),
    Metric(
        "context",
        "fits tokens",
        "the longest context that fits",
        _longest,
        count,
    ),
)
"""All of them, in the order of the columns."""


def telling_metrics(cases: Sequence[Case]) -> tuple[Metric, ...]:
    """Those that these cases have, without one that only repeats another."""
    counted = [case for case in cases if case.account is not None]
    alone = all(case.account is not None and attention_only(case.account) for case in counted)
    same_active = all(
        case.account is not None and case.account.parameters.active == case.account.parameters.total
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
