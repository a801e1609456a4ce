"""Answers ``params``: counts what options describe, each named model, or each compared value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.count.params.cache import BITS, bits, byte_count, count_cache, kept_by
from attnviz.count.params.cost import (
    DEFAULT_TOKENS,
    BuiltCount,
    CostReport,
    MadeModel,
    Stated,
    count_cost,
    longest_context,
)
from attnviz.count.params.parts import Case
from attnviz.count.params.report import ParamsReport
from attnviz.count.params.request import (
    RUNNING,
    SHAPE,
    WHAT_IF,
    NamedModel,
    ParamsRequest,
    Running,
    check_size,
    parse_choices,
    spec_from_options,
)
from attnviz.count.params.specs import AttentionSpec, ModelSpec, with_kv_heads
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.shapes import nearest
from attnviz.options import read_size

if TYPE_CHECKING:  # a shape given by options needs no names
    from attnviz.count.params.find_spec import FoundSpec
    from attnviz.records import Kind

_NARROW = ("int8", "int4")
_USUAL = "bfloat16"
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_MOST_ROWS = 500


def params(models: Sequence[NamedModel], request: ParamsRequest) -> ParamsReport:
    """Count parameters, KV cache, operations and memory of each model, or of given sizes.

    models: the models; empty if the options in ``request`` give the sizes of an architecture.
    A model of a class that ``families.toml`` lacks is counted by building it. Compared values that
    do not fit together become a case with the reason, unless all cases have one.

    Raises UsageError for neither a model nor sizes, for both, numbers that do not fit together, or
    an unknown GPU; LoadError or OfflineError for a name whose config cannot be read.
    """
    cards = None
    if request.gpu:  # most runs name no card
        from attnviz.count.params.cards import find_cards, fit_cards

        cards = find_cards(request.gpu)
    choices = [parse_choices(text) for text in request.compare]
    options = tuple(option for option, _ in choices)
    _check(models, request, options)
    if request.compare:
        cases = _compared(models, request, choices)
    elif models:
        cases = [_of_name(_spec_of(model, request), request.running) for model in models]
    elif request.shape:
        cases = [_of_shape(request.shape, request.running)]
    else:
        raise UsageError(
            "expected a shape or a model: attnviz params --d-model 4096 --heads 32, or attnviz "
            "params llama-2-7b"
        )
    if cards is not None:
        sizes = {"chunk": request.chunk, "overhead": read_size(request.overhead, "--overhead", 0)}
        cases = [
            case._replace(gpus=fit_cards(_tellable(case), cards, **sizes)) if case.counts else case
            for case in cases
        ]
    return ParamsReport(tuple(cases), request, options, len(models))


# What is asked --------------------------------------------------------------------------------


def _check(models: Sequence[NamedModel], request: ParamsRequest, options: Sequence[str]) -> None:
    """Raise UsageError for options that exclude each other, or that have no effect."""
    known = (*SHAPE, *RUNNING)
    for option in options:
        name = option.replace("-", "_")
        if len(models) > 1:
            raise UsageError("--compare takes one design: name one model, or describe one shape")
        if name not in known:
            written = [other.replace("_", "-") for other in known]
            raise UsageError(f"--compare {option}=…: no such option{nearest(option, written)}")
        if models and name not in (*WHAT_IF, *RUNNING):
            others = ", ".join(other.replace("_", "-") for other in (*WHAT_IF, *RUNNING))
            raise UsageError(
                f"--compare {option}=… changes a shape, and {models[0].name!r} has its own: "
                f"compare {others}, or describe the shape with --d-model, --heads, …"
            )
    if len(set(options)) < len(options):
        raise UsageError("--compare names an option twice: put all its values into one")
    if models and request.shape:
        option = "--" + next(iter(request.shape)).replace("_", "-")
        raise UsageError(
            f"{option} describes a shape, and {models[0].name!r} has its own: give one of the two"
        )
    if request.revision is not None and not models and not options:
        raise UsageError("--revision is for models on the Hub: a shape has none")


def _compared(
    models: Sequence[NamedModel],
    request: ParamsRequest,
    choices: Sequence[tuple[str, Sequence[str]]],
) -> list[Case]:
    """Return a case for each combination of values; those of the last option vary fastest."""
    if math.prod(len(values) for _, values in choices) > _MOST_ROWS:
        raise UsageError(f"--compare would make more than {_MOST_ROWS} rows: give fewer values")
    named = [_spec_of(model, request) for model in models]
    names = [option.replace("-", "_") for option, _ in choices]
    cases: list[Case] = []
    failure: UsageError | None = None
    for values in itertools.product(*(values for _, values in choices)):
        given = {name: _value(name, text) for name, text in zip(names, values, strict=True)}
        shape = request.shape | {name: given[name] for name in names if name not in RUNNING}
        try:
            run = replace(request.running, **{n: given[n] for n in names if n in RUNNING})
            changed = {name: given[name] for name in names if name in WHAT_IF}
            case = _of_name(_what_if(named[0], changed), run) if named else _of_shape(shape, run)
            cases.append(case._replace(values=values))
        except UsageError as error:
            failure = failure or error
            cases.append(Case("", values=values, refusal=str(error)))
    if failure is not None and all(case.cost is None for case in cases):
        raise failure
    return cases


def _value(name: str, text: str) -> Any:
    """Return a typed value of an option as an integer, a bool or a string."""
    if name in ("dtype", "cache_dtype", "memory"):
        return text
    try:
        return int(text)
    except ValueError:
        return _WORDS.get(text.lower(), text)


def _spec_of(model: NamedModel, request: ParamsRequest) -> FoundSpec:
    from attnviz.count.params.find_spec import find_spec, spec_of_loaded

    if model.loaded is not None:
        named = spec_of_loaded(model.loaded)
    else:
        named = find_spec(
            model.name,
            revision=request.revision,
            offline=request.offline,
            shapes_first=model.shapes_first,
        )
    if request.revision is not None and named.revision is None:
        raise UsageError(f"--revision is for models on the Hub: {model.name!r} has none")
    if named.spec is not None or named.made is not None:
        return named
    from attnviz.count.params.meta_count import count_on_meta  # imports torch and transformers

    config, kind = named.config, named.architecture
    return named._replace(made=count_on_meta(config, name=named.name, architecture=kind, run=True))


def _what_if(named: FoundSpec, changed: Mapping[str, Any]) -> FoundSpec:
    """Return the model with another number of key/value heads; its own files do not hold that one.

    changed: the options of ``WHAT_IF`` and their values. Raises UsageError for numbers that do not
    fit its heads, and for a model that was counted without a description of its attention.
    """
    if not changed:
        return named
    kv_heads = changed["kv_heads"]
    if named.spec is None:
        raise UsageError(
            f"--compare kv-heads: {named.name!r} was counted by building it, as it is; describe "
            "the shape with --d-model, --heads, …"
        )
    if type(kv_heads) is not int or kv_heads < 1:
        raise UsageError(f"--kv-heads {kv_heads} is not a number of heads: expected 1 or more")
    return named._replace(spec=with_kv_heads(named.spec, kv_heads), stored=None)


# What is counted ------------------------------------------------------------------------------


def _of_shape(shape: Mapping[str, Any], running: Running) -> Case:
    for name, value in shape.items():
        check_size(name, value)
    return _counted(spec_from_options(**shape), running)


def _of_name(named: FoundSpec, running: Running) -> Case:
    counted = named.spec or named.made
    assert counted is not None
    return _counted(counted, running, named)._replace(revision=named.revision)


def _counted(
    counted: ModelSpec | MadeModel, running: Running, named: FoundSpec | None = None
) -> Case:
    """Return the counts of a model, with the context that fits into a memory if one was given."""
    stored = _stored(running, counted, named)
    if isinstance(counted, ModelSpec):
        tokens, source = running.tokens, running.source_tokens
        count = count_cost(
            counted, batch=running.batch, tokens=tokens, source_tokens=source, **stored
        )
        case = Case(counted.name, count)
    else:
        assert named is not None
        built = BuiltCount(
            name=named.name,
            source=named.source,
            revision=named.revision,
            made=counted,
            tokens=running.tokens or min(DEFAULT_TOKENS, counted.limit or DEFAULT_TOKENS),
            batch=running.batch,
            total=counted.total,
            buffer_total=counted.buffers,
            limit=counted.limit,
            **stored,
        )
        case = Case(named.name, built)
    if running.memory is None:
        return case
    memory = read_size(running.memory, "--memory")
    return case._replace(fit=longest_context(_tellable(case), memory))


def _tellable(case: Case) -> CostReport | BuiltCount:
    """Return the counts of a case; raise UsageError unless they tell what its model needs."""
    count = case.counts
    assert count is not None
    if count.weight_bytes is None and count.storage is not None:
        raise UsageError(
            f"{case.name!r} is quantised as {count.storage.scheme}, whose bytes are not known, so "
            "nothing tells what fits: --dtype int4 counts it with numbers of 4 bits"
        )
    if count.odd_cache:
        raise UsageError(
            f"{case.name!r} caches keys and values as {count.odd_cache}, whose bytes are not "
            "known, so nothing tells what fits: --cache-dtype int4 counts them with 4 bits"
        )
    if count.cache is None:
        raise UsageError(
            f"nothing tells what {case.name!r} caches, so only its weights are known: "
            f"attnviz params {case.name}"
        )
    return count


def _stored(
    running: Running, counted: ModelSpec | MadeModel, named: FoundSpec | None
) -> dict[str, Any]:
    """Return the fields of ``Count`` on how parameters and cache are stored.

    The dtypes are the requested ones, else those of files or config, or bfloat16. If the files hold
    more numbers than the model has parameters, only their main dtype counts.
    Raises LoadError if the config names an unknown dtype.
    """
    dtype, others, storage = str(running.dtype), dict[str, int](), None
    stated: Stated = "option"
    if dtype == "auto":
        dtype, stated = _USUAL, ""
        if named is not None:
            dtype, stated, others = _dtypes(named, counted.total)
            storage = named.storage(counted, dtype)
            stated = "files" if storage is not None and storage.buffered else stated
    cache, odd = str(running.cache_dtype), ""
    if cache == running.dtype == "auto" and named is not None and (stored := named.cached):
        cache, odd = (stored, "") if stored in (*BITS, "nvfp4") else (cache, stored)
    if cache == "auto":
        cache = _USUAL if dtype in _NARROW or dtype.startswith("float8_") else dtype
    return {
        "dtype": dtype,
        "cache_dtype": cache,
        "odd_cache": odd,
        "others": others,
        "stated": stated,
        "storage": storage,
    }


def _dtypes(named: FoundSpec, total: int) -> tuple[str, Stated, dict[str, int]]:
    """Return the main dtype, what states it, and how many parameters have which other dtypes."""
    stored = named.stored
    if stored is not None and stored.numbers and not stored.quantised:
        (main, _), *rest = stored.numbers.items()
        return main, "files", dict(rest) if sum(many for _, many in rest) < total else {}
    if not named.dtype:
        return _USUAL, "", {}
    try:
        bits(named.dtype)
    except UsageError as error:
        message = f"the config of {named.name!r} has dtype = {named.dtype!r}: {error}"
        raise LoadError(message) from error
    return named.dtype, "config", {}


# One head, and short caches -------------------------------------------------------------------


_UNKNOWN = "the arithmetic of attnviz params does not know this attention"


class HeadCost(NamedTuple):
    """The parameters of one head, and the cache of its keys and values.

    query, key, value, output: parameters of its projections, without biases. Those of key and value
        belong to all heads in ``group``.
    group: how many query heads share its keys and values, itself counted. cache_bytes: the bytes of
        these keys and values in the cache for each token; 0 if they are not cached.
    dtype: of the cache.
    """

    query: int
    key: int
    value: int
    output: int
    group: int
    cache_bytes: int
    dtype: str

    @property
    def total(self) -> int:
        """Return the number of the head's parameters, including those that other heads share."""
        return self.query + self.key + self.value + self.output


def counted_model(model: Any) -> ParamsReport:
    """Return the counts of a loaded model, as ``attnviz.params`` returns them."""
    return params([NamedModel(model.info.name, loaded=model)], ParamsRequest())


def head_cost(counted: ParamsReport, layer: int, kind: Kind) -> HeadCost:
    """Return the costs of a head of a layer; all heads of a layer cost the same.

    counted: the counts of its model. layer: the index of the layer. kind: of the attention.
    Raises UnsupportedError if the model's class or this layer cannot be counted.
    """
    cost = _cost_of(counted)
    if (spec := _attention(cost, layer, kind)) is None:
        raise UnsupportedError(_UNKNOWN)
    writes = cost.spec.main.causal or len(cost.spec.stacks) > 1
    group = spec.heads if spec.latent is not None else spec.heads // spec.kv_heads
    kept = kept_by(spec)
    shared = 1 if spec.latent is not None else spec.heads // group
    keeps = writes and kind != "encoder" and kept.kind != "linear"
    cached = byte_count(kept.per_token // shared if keeps else 0, cost.cache_dtype)
    return HeadCost(**spec.per_head, group=group, cache_bytes=cached, dtype=cost.cache_dtype)


SHORT_SINK, SHORT_RECENT = 64, 256
"""The first and the last tokens that a streaming head keeps (Xiao et al. 2024, "DuoAttention")."""


class ShortCache(NamedTuple):
    """The bytes of a cache for one sequence: if all heads keep every token, and if few do.

    tokens: the length. whole, short: bytes. dtype: of the cached numbers.
    """

    tokens: int
    whole: int
    short: int
    dtype: str


def short_cache(
    counted: ParamsReport, tokens: int, kept: Collection[tuple[int, int]]
) -> ShortCache:
    """Return the bytes of a cache in which only some key/value heads keep every token.

    The others keep the first ``SHORT_SINK`` tokens and the last ``SHORT_RECENT``. Latent keys and
    states, which heads share, stay whole.
    counted: the counts of the model. tokens: the length. kept: the (layer, key/value
        head) of those that keep every token.
    Raises UnsupportedError if the model's class cannot be counted.
    """
    cost, saved = _cost_of(counted), 0
    for layer in range(cost.spec.main.depth):
        attention = _attention(cost, layer, "self")
        if attention is None or (cache := kept_by(attention)).kind not in ("full", "sliding"):
            continue
        heads, held = attention.kv_heads, min(tokens, cache.window or tokens)
        others = heads - sum(at == layer for at, _ in kept)
        cut = max(held - SHORT_SINK - SHORT_RECENT, 0)
        saved += others * (cache.per_token // heads) * cut
    whole = count_cache(cost.spec, cost.at(tokens), batch=1, dtype=cost.cache_dtype).bytes
    short = whole - byte_count(saved, cost.cache_dtype)
    return ShortCache(tokens, whole, short, cost.cache_dtype)


def _cost_of(counted: ParamsReport) -> CostReport:
    if (cost := counted.cases[0].cost) is None:
        raise UnsupportedError(_UNKNOWN)
    return cost


def _attention(cost: CostReport, layer: int, kind: Kind) -> AttentionSpec | None:
    """Return a layer's attention of a kind; None if it is not counted."""
    stacks = cost.spec.stacks
    named = [stack for stack in stacks if (stack.name == "encoder") == (kind == "encoder")]
    for stack in [cost.spec.main] if kind == "self" else named:
        for group in stack.groups:
            if group.indices is None or layer in group.indices:
                matching = [a for a in group.layer.attentions if a.cross == (kind == "cross")]
                return matching[0] if matching else None
    return None
