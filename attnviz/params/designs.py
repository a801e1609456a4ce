"""What the options of ``attnviz params`` ask for, and the designs and accounts behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnviz.errors import LoadError, UsageError
from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.built import BuiltCount
from attnviz.params.accounts.running import Fit
from attnviz.params.counting.account import DEFAULT_TOKENS, count_cost
from attnviz.params.counting.cache import count_kept
from attnviz.params.counting.dtypes import bits, byte_count
from attnviz.params.counting.lengths import Lengths
from attnviz.params.counting.memory import longest_context
from attnviz.params.design_options import spec_from_options
from attnviz.params.metrics import Case
from attnviz.params.specs import ModelSpec
from attnviz.params.values import MOST, parse_memory

if TYPE_CHECKING:
    from attnviz.params.find_design import FoundSpec

__all__ = [
    "Request",
    "check_numbers",
    "counted_case",
    "found_spec",
    "named_case",
    "refuse_both",
    "requested_cases",
]

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
        first = dict.fromkeys(self.names, True)
        return first | {name: False for name in self.models if name not in first}


def requested_cases(request: Request) -> list[Case] | BuiltCount:
    """The designs that were asked for, counted; one for a shape, one for each name.

    A lone model whose class the arithmetic does not know is counted by building it.

    Raises:
        UsageError: neither a shape nor a name, both, or numbers that do not go together.
        LoadError, OfflineError: a name that stands for nothing that can be read.
    """
    check_numbers(request)
    refuse_both(request)
    if request.revision is not None and not request.named:
        raise UsageError("--revision is for models of the hub: a shape has none")
    found = [found_spec(name, request) for name in request.named]
    if len(found) == 1 and found[0].spec is None and request.memory is None:
        return _built(found[0], request)
    if found:
        return [named_case(item, request) for item in found]
    if not request.shape:
        raise UsageError(
            "expected a shape or a model: attnviz params --d-model 4096 --heads 32, or attnviz "
            "params llama-2-7b"
        )
    return [counted_case(spec_from_options(**request.shape), request)]


def refuse_both(request: Request) -> None:
    """Raise UsageError for a model together with a shape."""
    if request.named and request.shape:
        option = "--" + next(iter(request.shape)).replace("_", "-")
        raise UsageError(
            f"{option} describes a shape, and {next(iter(request.named))!r} has its own: give one "
            "of the two"
        )


def check_numbers(request: Request) -> None:
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


def found_spec(name: str, request: Request) -> FoundSpec:
    """What a name stands for."""
    from attnviz.params.find_design import find_spec  # a shape typed in needs no names

    found = find_spec(
        name,
        revision=request.revision,
        offline=request.offline,
        shapes_first=request.named[name],
    )
    if request.revision is not None and found.revision is None:
        raise UsageError(f"--revision is for models of the hub: {name!r} has none")
    return found


def named_case(found: FoundSpec, request: Request) -> Case:
    """A named model with what it costs; UsageError where the arithmetic does not know its class."""
    if found.spec is None:
        raise UsageError(
            f"the arithmetic does not know the class of {found.name!r}, so only its parameters can "
            f"be counted, and alone: attnviz params {found.name}"
        )
    return replace(counted_case(found.spec, request), revision=found.revision)


def _built(found: FoundSpec, request: Request) -> BuiltCount:
    """The parameters of a model that is built without weights to count them."""
    from attnviz.params.config.read import stored_dtype
    from attnviz.params.meta_count import count_on_meta  # imports torch and transformers

    made = count_on_meta(found.config, name=found.name, architecture=found.architecture, run=True)
    dtype, cache_dtype = _dtypes(request, stored_dtype(found.config), found.name)
    tokens = request.tokens or DEFAULT_TOKENS
    cache = None
    if made.kept is not None:
        kept = Counter((kept, tokens) for kept in made.kept)
        length = Lengths(tokens, tokens)
        cache = count_kept(kept, length, batch=request.batch, dtype=cache_dtype)
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
        cache,
    )


def _dtypes(request: Request, stored: str, name: str) -> tuple[str, str]:
    """The dtypes of weights and cache; LoadError where a config names one that is not known."""
    dtype = request.dtype
    if dtype == "auto":
        dtype = stored or _USUAL
        try:
            bits(dtype)
        except UsageError as error:
            raise LoadError(f"the config of {name!r} has dtype = {dtype!r}: {error}") from error
    cache_dtype = request.cache_dtype
    if cache_dtype == "auto":
        cache_dtype = _USUAL if dtype in _NARROW else dtype
    return dtype, cache_dtype


def counted_case(spec: ModelSpec, request: Request) -> Case:
    """A design with what it costs."""
    dtype, cache_dtype = _dtypes(request, spec.dtype, spec.name)
    counted: CostReport = count_cost(
        spec,
        tokens=request.tokens,
        source_tokens=request.source_tokens,
        batch=request.batch,
        dtype=dtype,
        cache_dtype=cache_dtype,
    )
    fit: Fit | None = None
    if request.memory is not None:
        fit = longest_context(
            spec,
            parse_memory(request.memory),
            batch=request.batch,
            dtype=dtype,
            cache_dtype=cache_dtype,
            source_tokens=request.source_tokens,
        )
    return Case(spec.name, cost=counted, fit=fit)
