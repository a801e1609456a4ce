"""Counts the requested architectures: from options, by name, or for each compared value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.count.params.counting.built import BuiltCount
from attnviz.count.params.counting.cache import (
    NO_OTHERS,
    bits,
)
from attnviz.count.params.counting.cost import (
    DEFAULT_TOKENS,
    CostReport,
    Stated,
    count_cost,
    stored_bytes,
)
from attnviz.count.params.counting.memory import MemoryFit, longest_context
from attnviz.count.params.counting.parameters import count_parameters
from attnviz.count.params.counting.storage import Storage
from attnviz.count.params.request import (
    RUNNING,
    SHAPE,
    ParamsRequest,
    Running,
    check_size,
    parse_choices,
)
from attnviz.count.params.shapes import spec_from_options
from attnviz.count.params.specs import ModelSpec
from attnviz.errors import LoadError, UsageError
from attnviz.models.shapes import nearest
from attnviz.options import read_size

if TYPE_CHECKING:  # a shape given by options needs no names
    from attnviz.count.params.counting.serving import CardFit
    from attnviz.count.params.find_spec import FoundSpec, StoredWeights

Shape = Mapping[str, Any]
"""The options of a shape that were given, with their values."""

_NARROW = ("int8", "int4")
_USUAL = "bfloat16"
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_MOST_ROWS = 500


class Case(NamedTuple):
    """One architecture with its counts; a row of a comparison.

    name: distinguishes it from other cases.
    values: the values of the compared options, as they were typed. cost: the counted parameters,
        cache, operations and memory; None if the values do not fit together or the model was built.
    built: the counts of a model that the arithmetic does not know.
    fit: the context that fits into the memory that was given; None if none was given.
    gpus: for each named GPU, whether and how fast it can run the model.
    refusal: why the values do not fit together; else empty.
    revision: the commit of a model from the hub, or None.
    """

    name: str
    values: tuple[str, ...] = ()
    cost: CostReport | None = None
    fit: MemoryFit | None = None
    refusal: str = ""
    revision: str | None = None
    gpus: tuple[CardFit, ...] = ()
    built: BuiltCount | None = None

    @property
    def counts(self) -> CostReport | BuiltCount | None:
        """Return what was counted; None if the values do not fit together."""
        return self.cost or self.built


class CountedCases(NamedTuple):
    """The counts of all cases of one call of ``params``.

    options: the compared options. cases: one for each model or combination of values.
    """

    options: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()

    @property
    def built(self) -> BuiltCount | None:
        """Return the counts of the only model if the arithmetic does not know it, else None."""
        return self.cases[0].built if len(self.cases) == 1 and not self.options else None


class NamedModel(NamedTuple):
    """The name of a model to be counted, with how to find it.

    shapes_first: whether a bare name means a built-in model configuration even if it is a hub id as
        well. loaded: the model itself, if Python code has loaded it.
    """

    name: str
    shapes_first: bool = False
    loaded: Any = None


def requested_cases(models: Sequence[NamedModel], request: ParamsRequest) -> CountedCases:
    """Count the architecture that the options describe, or each named model.

    models: the named models; empty if the options give the sizes of an architecture.
    A model of a class that ``families.toml`` lacks is counted by building it.

    Raises UsageError for neither sizes nor a name, for both, and for numbers that do not fit
    together; LoadError or OfflineError if the config of a name cannot be read.
    """
    shape, running = request.shape, request.running
    _refuse_both(models, shape)
    if request.revision is not None and not models:
        raise UsageError("--revision is for models of the hub: a shape has none")
    found = [_found(model, request) for model in models]
    if found:
        return CountedCases(cases=tuple(_named_case(item, running) for item in found))
    if not shape:
        raise UsageError(
            "expected a shape or a model: attnviz params --d-model 4096 --heads 32, or attnviz "
            "params llama-2-7b"
        )
    return CountedCases(cases=(_shape_case(shape, running),))


def compared_cases(models: Sequence[NamedModel], request: ParamsRequest) -> CountedCases:
    """Return a case for each combination of compared values; those of the last option vary fastest.

    models: at most one named model; empty if the options give the sizes of an architecture.
    Raises UsageError if nothing can be compared. Values that do not fit together become a case with
    the reason, unless all cases have one.
    """
    choices = [parse_choices(text) for text in request.compare]
    options = tuple(name for name, _ in choices)
    for option in options:
        _check_option(option, models)
    if len(set(options)) < len(options):
        raise UsageError("--compare names an option twice: put all its values into one")
    if math.prod(len(values) for _, values in choices) > _MOST_ROWS:
        raise UsageError(f"--compare would make more than {_MOST_ROWS} rows: give fewer values")
    shape, running = request.shape, request.running
    _refuse_both(models, shape)
    found = [_found(model, request) for model in models]
    cases: list[Case] = []
    failure: UsageError | None = None
    for values in itertools.product(*(values for _, values in choices)):
        try:
            shaped, run = _changed(shape, running, options, values)
            case = _named_case(found[0], run) if found else _shape_case(shaped, run)
            cases.append(case._replace(values=values))
        except UsageError as error:
            failure = failure or error
            cases.append(Case("", values, refusal=str(error)))
    if failure is not None and all(case.cost is None for case in cases):
        raise failure
    return CountedCases(options, tuple(cases))


def _refuse_both(models: Sequence[NamedModel], shape: Shape) -> None:
    if models and shape:
        option = "--" + next(iter(shape)).replace("_", "-")
        raise UsageError(
            f"{option} describes a shape, and {models[0].name!r} has its own: give one of the two"
        )


def _check_option(option: str, models: Sequence[NamedModel]) -> None:
    """Raise UsageError for a compared option that does not exist or has no effect here."""
    name = option.replace("-", "_")
    if len(models) > 1:
        raise UsageError("--compare takes one design: name one model, or describe one shape")
    known = (*SHAPE, *RUNNING)
    if name not in known:
        written = [other.replace("_", "-") for other in known]
        raise UsageError(f"--compare {option}=…: no such option{nearest(option, written)}")
    if models and name not in RUNNING:
        others = ", ".join(other.replace("_", "-") for other in RUNNING)
        raise UsageError(
            f"--compare {option}=… changes a shape, and {models[0].name!r} has its own: "
            f"compare {others}, or describe the shape with --d-model, --heads, …"
        )


def _changed(
    shape: Shape, running: Running, options: Sequence[str], values: Sequence[str]
) -> tuple[Shape, Running]:
    """Return the sizes and the run settings with the compared options set to these values."""
    shaped, run = dict(shape), dict[str, Any]()
    for option, text in zip(options, values, strict=True):
        name = option.replace("-", "_")
        target = run if name in RUNNING else shaped
        target[name] = text if name in ("dtype", "cache_dtype", "memory") else _value(text)
    return shaped, replace(running, **run)


def _value(text: str) -> object:
    """Return a typed value as an integer, a bool or a string."""
    try:
        return int(text)
    except ValueError:
        return _WORDS.get(text.lower(), text)


def _found(model: NamedModel, request: ParamsRequest) -> FoundSpec:
    from attnviz.count.params.find_spec import find_spec, spec_of_loaded

    if model.loaded is not None:
        found = spec_of_loaded(model.loaded)
    else:
        found = find_spec(
            model.name,
            revision=request.revision,
            offline=request.offline,
            shapes_first=model.shapes_first,
        )
    if request.revision is not None and found.revision is None:
        raise UsageError(f"--revision is for models of the hub: {model.name!r} has none")
    if found.spec is not None or found.made is not None:
        return found
    from attnviz.count.params.meta_count import count_on_meta  # imports torch and transformers

    config, kind = found.config, found.architecture
    return found._replace(made=count_on_meta(config, name=found.name, architecture=kind, run=True))


def _named_case(found: FoundSpec, running: Running) -> Case:
    """Return a counted case for a named model."""
    if found.spec is not None:
        return _counted(found.spec, running, found)._replace(revision=found.revision)
    from attnviz.count.params.config.read import stored_dtype

    made = found.made
    assert made is not None
    dtype = stored_dtype(found.config)
    types = _dtypes(running, dtype, found.name, found.stored, made.total)
    storage = made.storage
    if types.stated != "option" and storage is None:
        storage = found.storage(made, types.dtype)
    storage = None if types.stated == "option" else storage
    weights, buffers = stored_bytes(made.total, made.buffers, types.dtype, types.others, storage)
    built = BuiltCount(
        name=found.name,
        source=found.source,
        revision=found.revision,
        made=made,
        tokens=running.tokens or min(DEFAULT_TOKENS, made.limit or DEFAULT_TOKENS),
        batch=running.batch,
        dtype=types.dtype,
        cache_dtype=types.cache,
        cache=None,
        weight_bytes=weights,
        buffer_bytes=buffers,
        others=types.others,
        stated=_stated(types.stated, storage),
        storage=storage,
    )
    if made.kept is not None:
        built = built._replace(cache=built.cache_at(built.tokens))
    return _fitted(Case(found.name, built=built, revision=found.revision), running)


def _shape_case(shape: Shape, running: Running) -> Case:
    for name, value in shape.items():
        check_size(name, value)
    return _counted(spec_from_options(**shape), running)


def _counted(spec: ModelSpec, running: Running, found: FoundSpec | None = None) -> Case:
    parameters, storage = count_parameters(spec), None
    stored = None if found is None else found.stored
    types = _dtypes(running, spec.dtype, spec.name, stored, parameters.total)
    if found is not None and types.stated != "option":
        storage = found.storage(parameters, types.dtype)
    cost = count_cost(
        spec,
        tokens=running.tokens,
        source_tokens=running.source_tokens,
        batch=running.batch,
        dtype=types.dtype,
        cache_dtype=types.cache,
        others=types.others,
        stated=_stated(types.stated, storage),
        storage=storage,
    )
    return _fitted(Case(spec.name, cost=cost), running)


def _stated(stated: Stated, storage: Storage | None) -> Stated:
    return "files" if storage is not None and storage.buffered and stated != "option" else stated


def _fitted(case: Case, running: Running) -> Case:
    """Return the case with the context that fits into the requested memory, if one was given."""
    if running.memory is None:
        return case
    memory = read_size(running.memory, "--memory")
    return case._replace(fit=longest_context(tellable(case), memory))


def tellable(case: Case) -> CostReport | BuiltCount:
    """Return the counts of a case; raise UsageError unless they tell what its model needs."""
    count = case.counts
    assert count is not None
    if count.weight_bytes is None and count.storage is not None:
        raise UsageError(
            f"{case.name!r} is quantised as {count.storage.scheme}, whose bytes are not known, so "
            "nothing tells what fits: --dtype int4 counts it with numbers of 4 bits"
        )
    if count.cache is None:
        raise UsageError(
            f"nothing tells what {case.name!r} caches, so only its weights are known: "
            f"attnviz params {case.name}"
        )
    return count


class _Dtypes(NamedTuple):
    """The dtypes in which a model's parameters and cache are counted.

    dtype, cache: of the parameters, and of keys and values.
    others: how many parameters are stored in which other dtypes.
    stated: what states the dtype: ``option``, ``files``, ``config``, or empty for an assumption.
    """

    dtype: str
    cache: str
    others: Mapping[str, int]
    stated: Stated


def _dtypes(
    running: Running, named: str, name: str, stored: StoredWeights | None, total: int
) -> _Dtypes:
    """Return the dtypes to count: the requested ones, else those of files or config, or bfloat16.

    running: has the requested dtypes. named: the dtype that the config names. name: of the model,
        for messages. stored: what the weight files contain, or None.
    total: the model's parameters; if the files hold more numbers, only their main dtype is used.
    Raises LoadError if the config names an unknown dtype.
    """
    dtype: str = running.dtype
    stated: Stated = "option"
    others: Mapping[str, int] = NO_OTHERS
    if dtype == "auto" and stored is not None and stored.numbers and not stored.quantised:
        dtype, *rest = stored.numbers
        beside = {kind: stored.numbers[kind] for kind in rest}
        others = beside if sum(beside.values()) < total else NO_OTHERS
        stated = "files"
    elif dtype == "auto":
        dtype, stated = (named, "config") if named else (_USUAL, "")
        try:
            bits(dtype)
        except UsageError as error:
            raise LoadError(f"the config of {name!r} has dtype = {dtype!r}: {error}") from error
    cache: str = running.cache_dtype
    if cache == "auto":
        cache = _USUAL if dtype in _NARROW or dtype.startswith("float8_") else dtype
    return _Dtypes(dtype, cache, others, stated)
