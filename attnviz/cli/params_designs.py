"""What the options of ``attnviz params`` ask for, and the designs and accounts behind it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnviz.accounts.account import Account
from attnviz.accounts.built import BuiltCount
from attnviz.accounts.running import Fit
from attnviz.analysis.accounting.account import account
from attnviz.analysis.accounting.dtypes import byte_count
from attnviz.analysis.accounting.memory import longest_context
from attnviz.cli.params_values import MOST, parse_choices, parse_memory
from attnviz.designs import Design
from attnviz.errors import UsageError
from attnviz.models.design_options import OPTIONS, design_from_options
from attnviz.models.option_rules import nearest
from attnviz.render.params.metrics import Case

if TYPE_CHECKING:
    from attnviz.models.find_design import FoundDesign

__all__ = ["Request", "compared_cases", "requested_cases"]

_RUNNING = ("tokens", "source_tokens", "batch", "dtype", "cache_dtype", "memory")
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_MOST_ROWS = 500
_NARROW = ("int8", "int4")
_USUAL = "bfloat16"


@dataclass(frozen=True)
class Request:
    """The options of the same names.

    names: named shapes first, whatever the hub calls the same.
    models: what ``--model`` means everywhere.
    shape: the options that describe a shape.
    """

    names: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    shape: Mapping[str, Any] = field(default_factory=dict)
    tokens: int | None = None
    source_tokens: int | None = None
    batch: int = 1
    dtype: str = "auto"
    cache_dtype: str = "auto"
    memory: str | None = None
    revision: str | None = None
    offline: bool = False

    @property
    def named(self) -> dict[str, bool]:
        """Every model, and whether a named shape comes first."""
        return dict.fromkeys(self.models, False) | dict.fromkeys(self.names, True)


def requested_cases(request: Request) -> list[Case] | BuiltCount:
    """The designs that were asked for, counted; one for a shape, one for each name.

    A lone model whose class the arithmetic does not know is counted by building it.

    Raises:
        UsageError: neither a shape nor a name, both, or numbers that do not go together.
        LoadError, OfflineError: a name that stands for nothing that can be read.
    """
    _check_numbers(request)
    _refuse_both(request)
    if request.revision is not None and not request.named:
        raise UsageError("--revision is for models of the hub: a shape has none")
    found = [_found(name, request) for name in request.named]
    if len(found) == 1 and found[0].design is None and request.memory is None:
        return _built(found[0], request)
    if found:
        return [_of_found(item, request) for item in found]
    if not request.shape:
        raise UsageError(
            "expected a shape or a model: attnviz params --d-model 4096 --heads 32, or attnviz "
            "params llama-2-7b"
        )
    return [_counted(design_from_options(**request.shape), request)]


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
    _refuse_both(request)
    found = [_found(name, request) for name in request.named]
    cases: list[Case] = []
    failure: UsageError | None = None
    for values in itertools.product(*(values for _, values in choices)):
        try:
            changed = _changed(request, options, values)
            _check_numbers(changed)
            case = (
                _of_found(found[0], changed)
                if found
                else _counted(design_from_options(**changed.shape), changed)
            )
            cases.append(replace(case, values=values))
        except UsageError as error:
            failure = failure or error
            cases.append(Case("", values, refusal=str(error)))
    if failure is not None and all(case.account is None for case in cases):
        raise failure
    return options, cases


def _refuse_both(request: Request) -> None:
    """Raise UsageError for a model together with a shape."""
    if request.named and request.shape:
        option = "--" + next(iter(request.shape)).replace("_", "-")
        raise UsageError(
            f"{option} describes a shape, and {next(iter(request.named))!r} has its own: give one "
            "of the two"
        )


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


def _check_numbers(request: Request) -> None:
    """Raise UsageError for a number that is no number of tokens or parts."""
    given = {**request.shape, "tokens": request.tokens, "batch": request.batch}
    given["source_tokens"] = request.source_tokens
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if name in ("tokens", "source_tokens", "batch") and value is not None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise UsageError(f"{option} must be a whole number, not {value!r}")
            if value < 1:
                raise UsageError(f"{option} must be 1 or more, not {value}")
        if isinstance(value, int) and value > MOST:
            raise UsageError(f"{option} is more than {MOST:,}: is this the number you meant?")


def _found(name: str, request: Request) -> FoundDesign:
    """What a name stands for."""
    from attnviz.models.find_design import find_design  # a shape typed in needs no names

    found = find_design(
        name,
        revision=request.revision,
        offline=request.offline,
        shapes_first=request.named[name],
    )
    if request.revision is not None and found.revision is None:
        raise UsageError(f"--revision is for models of the hub: {name!r} has none")
    return found


def _of_found(found: FoundDesign, request: Request) -> Case:
    """A named model with what it costs; UsageError where the arithmetic does not know its class."""
    if found.design is None:
        raise UsageError(
            f"the arithmetic does not know the class of {found.name!r}, so only its parameters can "
            f"be counted, and alone: attnviz params {found.name}"
        )
    return replace(_counted(found.design, request), revision=found.revision)


def _built(found: FoundDesign, request: Request) -> BuiltCount:
    """The parameters of a model that is built without weights to count them."""
    from attnviz.models.meta_count import count_on_meta  # imports torch and transformers

    made = count_on_meta(found.config, name=found.name, architecture=found.architecture)
    stored = found.config.get("torch_dtype") or found.config.get("dtype")
    dtype = request.dtype
    if dtype == "auto":
        dtype = stored if isinstance(stored, str) else _USUAL
    return BuiltCount(
        found.name,
        found.source,
        found.revision,
        made.architecture,
        made.total,
        made.buffers,
        made.parts,
        dtype,
        byte_count(made.total, dtype),
    )


def _counted(design: Design, request: Request) -> Case:
    """A design with what it costs."""
    dtype = request.dtype if request.dtype != "auto" else design.dtype or _USUAL
    cache_dtype = request.cache_dtype
    if cache_dtype == "auto":
        cache_dtype = _USUAL if dtype in _NARROW else dtype
    counted: Account = account(
        design,
        tokens=request.tokens,
        source_tokens=request.source_tokens,
        batch=request.batch,
        dtype=dtype,
        cache_dtype=cache_dtype,
    )
    fit: Fit | None = None
    if request.memory is not None:
        fit = longest_context(
            design,
            parse_memory(request.memory),
            batch=request.batch,
            dtype=dtype,
            cache_dtype=cache_dtype,
            source_tokens=request.source_tokens,
        )
    return Case(design.name, account=counted, fit=fit)
