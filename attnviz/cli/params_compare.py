"""``--compare``: a case for each combination of the values of some options."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnviz.cli.params_designs import (
    Request,
    check_numbers,
    counted_case,
    found_design,
    named_case,
    refuse_both,
)
from attnviz.cli.params_values import parse_choices
from attnviz.errors import UsageError
from attnviz.models.design_options import OPTIONS, design_from_options
from attnviz.models.option_rules import nearest
from attnviz.render.params.metrics import Case

__all__ = ["compared_cases"]

_RUNNING = ("tokens", "source_tokens", "batch", "dtype", "cache_dtype", "memory")
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_MOST_ROWS = 500


def compared_cases(request: Request, wishes: Sequence[str]) -> tuple[tuple[str, ...], list[Case]]:
    """The compared options and a case for each combination of their values, the last fastest.

    Raises UsageError where nothing can be compared; values that do not go together become a case
    with the reason, unless that holds for all of them.
    """
    choices = [parse_choices(wish) for wish in wishes]
    options = tuple(name for name, _ in choices)
    for option in options:
        _check_option(option, request)
    if len(set(options)) < len(options):
        raise UsageError("--compare names an option twice: put all its values into one")
    if math.prod(len(values) for _, values in choices) > _MOST_ROWS:
        raise UsageError(f"--compare would make more than {_MOST_ROWS} rows: give fewer values")
    refuse_both(request)
    found = [found_design(name, request) for name in request.named]
    cases: list[Case] = []
    failure: UsageError | None = None
    for values in itertools.product(*(values for _, values in choices)):
        try:
            changed = _changed(request, options, values)
            check_numbers(changed)
            case = (
                named_case(found[0], changed)
                if found
                else counted_case(design_from_options(**changed.shape), changed)
            )
            cases.append(replace(case, values=values))
        except UsageError as error:
            failure = failure or error
            cases.append(Case("", values, refusal=str(error)))
    if failure is not None and all(case.account is None for case in cases):
        raise failure
    return options, cases


def _check_option(option: str, request: Request) -> None:
    """Raise UsageError for a compared option that does not exist or means nothing here."""
    name = option.replace("-", "_")
    if len(request.named) > 1:
        raise UsageError("--compare takes one design: name one model, or describe one shape")
    known = (*OPTIONS, *_RUNNING)
    if name not in known:
        written = [other.replace("_", "-") for other in known]
        raise UsageError(f"--compare {option}=…: no such option{nearest(option, written)}")
    if request.named and name not in _RUNNING:
        others = ", ".join(other.replace("_", "-") for other in _RUNNING)
        raise UsageError(
            f"--compare {option}=… changes a shape, and {next(iter(request.named))!r} has its own: "
            f"compare {others}, or describe the shape with --d-model, --heads, …"
        )


def _changed(request: Request, options: Sequence[str], values: Sequence[str]) -> Request:
    """The request with the compared options set."""
    shape = dict(request.shape)
    running: dict[str, Any] = {}
    for option, text in zip(options, values, strict=True):
        name = option.replace("-", "_")
        target = running if name in _RUNNING else shape
        target[name] = text if name in ("dtype", "cache_dtype", "memory") else _value(text)
    return replace(request, shape=shape, **running)


def _value(text: str) -> object:
    """A number, yes or no, or a word."""
    try:
        return int(text)
    except ValueError:
        return _WORDS.get(text.lower(), text)
