"""Compares the library's own attention with other implementations, case by case.

The naive loop is multi-head attention as the textbook reads: nested loops over plain numbers. It
shares no line with the library's own attention, so that a mistake there cannot hide here. The
others are layers of torch, transformers and Keras.
Vaswani et al. 2017, "Attention Is All You Need", sections 3.2.1 and 3.2.2.

The library's attention is also shown one step at a time, over whole numbers for a check on paper.

A model of its own is checked in ``loaded``.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from operator import mul
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.attention import functional
from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.draw.numbers import counted
from attnviz.errors import UsageError
from attnviz.learn.verify.report import Checked, ComputationStep, Sizes, VerifyReport
from attnviz.learn.verify.request import VerifyRequest
from attnviz.models.memory import require_room
from attnviz.models.own import check_sizes
from attnviz.models.threads import use_threads
from attnviz.progress import Advance

NAIVE = "naive loop"
KERAS = "keras.layers.MultiHeadAttention"

_BATCH = 2
_MORE_KEYS = 4  # number of keys of cross-attention beyond the queries
_COPIES = 12  # number of weight arrays in memory while one case is compared
_MOST_LOOPED = 30_000_000  # multiplications of the naive loop, which take some seconds


def verify_own(
    request: VerifyRequest, dtype: str = "float32", *, advance: Advance = lambda share: None
) -> VerifyReport:
    """Compare the library's own attention with other implementations; return the report.

    dtype: ``float32`` or ``float64``; ``auto`` is float32. advance: is called with the share of the
        cases that are compared. Raises UsageError if options do not fit, the memory is too small,
        or Keras was requested and is not installed.
    """
    request.refuse_model_options()
    sizes = _sizes(request)
    if dtype not in ("auto", "float32", "float64"):
        raise UsageError(
            f"attnviz's own attention is verified in float32 or float64, got --dtype {dtype}"
        )
    dtype = "float32" if dtype == "auto" else dtype
    use_threads(1)
    keras = None if request.keras is False else find_keras()
    if request.keras and keras is None:
        raise UsageError(
            "--keras was asked for and Keras is not installed: pip install keras, or leave it out"
        )
    cases, numbers = {}, list[Checked]()
    causal, steps = request.causal is not False, tuple[ComputationStep, ...]()
    if request.steps:
        plain = replace(sizes, kv_heads=request.kv_heads)
        steps = attention_steps(plain, dtype, causal)
        numbers += steps_check(plain, dtype, causal, steps)
        cases["steps"] = "the steps against NumPy in one call"
    compared = list(attention_cases(sizes, dtype))
    for done, case in enumerate(compared, start=1):
        numbers += compared_case(case, keras)
        cases[case.name] = case.words
        advance(done / len(compared))
    if sizes.kv_heads is None:
        heads = counted(sizes.heads, "head")
        reason = f"{heads} cannot share key/value heads: give --heads 2 or more"
        numbers.append(Checked("grouped", "all", skipped=reason))
    if keras is None:
        reason = "not installed, skipped" if request.keras is None else "left out by --no-keras"
        numbers.append(Checked("", KERAS, skipped=reason))
    libraries = ["numpy", "torch", "transformers", *["keras"] * (keras is not None)]
    return VerifyReport(
        dtype=dtype,
        rounds_in=dtype,
        epsilon=float(np.finfo(dtype).eps),
        numbers=tuple(numbers),
        sizes=sizes,
        cases=cases,
        steps=steps,
        causal=causal,
        versions={name: version(name) for name in libraries},
    )


def _sizes(request: VerifyRequest) -> Sizes:
    """Return the requested sizes with defaults, which are smaller for steps.

    Raises UsageError if the heads do not divide the width or the memory is too small.
    """
    usual = (4, 2, 3) if request.steps else (64, 8, 7)
    given = (request.d_model, request.heads, request.seq)
    d_model, heads, tokens = (
        default if size is None else size for size, default in zip(given, usual, strict=True)
    )
    check_sizes(d_model, heads, request.kv_heads, None)
    # The grouped case has the fewest key/value heads, above one if possible; one head has none.
    fewest = [part for part in range(1, heads) if heads % part == 0][:2]
    kv_heads = (fewest[-1] if fewest else None) if request.kv_heads is None else request.kv_heads
    keys = tokens + _MORE_KEYS
    require_room(
        "these sizes take about",
        8 * (_COPIES * _BATCH * heads * tokens * keys + 12 * d_model * d_model),
        "choose a smaller --seq or --d-model",
    )
    seed = request.seed
    return Sizes(d_model, heads, kv_heads, tokens, keys=keys, batch=_BATCH, seed=seed)


def compared_case(case: AttentionCase, keras: Any = None) -> Iterator[Checked]:
    """Yield the checks of a case, for each own and each other implementation; Keras if given."""
    ours = _own_answers(case)
    pairs: list[tuple[str, str, Answer]] = []
    (batch, tokens, width), keys = case.query.shape, case.key.shape[1]
    if batch * width * ((tokens + keys) * 2 * width + 2 * tokens * keys) <= _MOST_LOOPED:
        naive = naive_attention(case.attention, case.query, case.key, case.visible)
        pairs += [(name, NAIVE, naive) for name in ours]
    else:
        reason = "too many numbers for a loop in Python: choose smaller sizes"
        yield Checked(case.name, "own", NAIVE, skipped=reason)
    pairs += [
        ("torch", "NumPy", ours["NumPy"]),
        ("torch", "torch.nn.MultiheadAttention", layer_answer(case)),
        ("torch", "F.scaled_dot_product_attention", functional_answer(case)),
        ("torch", "transformers.BartAttention", transformers_answer(case)),
    ]
    if keras is not None:
        shared = case.attention.shape.groups > 1
        theirs = "keras.layers.GroupQueryAttention" if shared else KERAS
        pairs.append(("NumPy", theirs, keras_answer(keras, case)))
    tolerances = case.tolerances.items()
    for name, against, answer in pairs:
        for (part, within), mine, other in zip(tolerances, ours[name], answer, strict=True):
            if mine is not None and other is not None:
                off = float(np.abs(mine - other.astype(np.float64)).max())
                yield Checked(case.name, name, against, number=part, difference=off, **within)


def _own_answers(case: AttentionCase) -> dict[str, Answer]:
    """Return the library's own results of a case by ``NumPy``, ``torch`` and ``fused``."""
    attention, shape, padding = case.attention, case.attention.shape, case.padding
    module = MultiHeadAttention(shape.d_model, shape.heads, shape.kv_heads, causal=attention.causal)
    state = {
        f"{name}_projection.{part}": rows
        for name in PROJECTIONS
        for part, rows in _parameters(case, name).items()
    }
    module.to(state["query_projection.weight"].dtype).load_state_dict(state)
    module.eval()
    key = None if case.key is case.query else case.key
    given = [torch.from_numpy(x) for x in (case.query, key) if x is not None]
    mask = None if padding is None else padding_mask(torch.from_numpy(padding))
    with torch.inference_mode():
        output, weights = module(*given, mask=mask, return_weights=True)
        fused: torch.Tensor = module(*given, mask=mask)
    hidden = None if padding is None else padding_mask(padding)
    return {
        "NumPy": attention(case.query, key, mask=hidden),
        "torch": (output.numpy(), weights.numpy()),
        "fused": (fused.numpy(), None),
    }


Answer: TypeAlias = tuple[NDArray[Any], NDArray[Any] | None]
"""Output (text, query, width) and weights (text, head, query, key), None if not returned."""

PROJECTIONS = ("query", "key", "value", "output")
PARTS = ("weight", "bias")


@dataclass(frozen=True, eq=False)
class AttentionCase:
    """One call of the library's own attention, which several implementations compute.

    name: ``self``, ``cross``, ``causal``, ``padding`` or ``grouped``. words: a description of it.
    attention: has the parameters, the heads and whether later keys are hidden.
    query, key: (text, token, d_model); the same array if a text attends to itself.
    real_keys: number of keys of each text that are not padding.
    """

    name: str
    words: str
    attention: NumpyAttention
    query: NDArray[Any]
    key: NDArray[Any]
    real_keys: tuple[int, ...]

    @property
    def padding(self) -> NDArray[np.bool_] | None:
        """Return a mask (text, key), True at keys that are not padding; None without padding."""
        real = np.arange(self.key.shape[1]) < np.array(self.real_keys)[:, None]
        return None if real.all() else real

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Return a mask (text, query, key) of keys that are seen, without the library's own."""
        i, j = np.ogrid[: self.query.shape[1], : self.key.shape[1]]
        real = np.array(self.real_keys)[:, None, None]
        return (j < real) & ((j <= i) | (not self.attention.causal))

    @property
    def tolerances(self) -> dict[str, dict[str, Any]]:
        """Return the tolerances of the outputs and the weights, as fields of ``Checked``.

        A weight is rounded in projection, score, scale and softmax; an output in mixing and the
        output projection as well. The largest number is an input, a projection or a scaled score.
        """
        width, keys, shape = self.query.shape[2], self.key.shape[1], self.attention.shape
        query, key, value = self.attention.heads_of(self.query, self.key, self.key)
        shared = functional.repeat_kv_heads(key, query.shape[1] // key.shape[1])
        scores = functional.attention_scores(query, shared)
        arrays = (self.query, self.key, query, key, value, scores)
        largest = max(1.0, *(float(np.abs(array).max()) for array in arrays))
        weight = (width + 1) + shape.head_dim + 1 + (keys + 2)
        roundings = {"outputs": weight + keys + width + 1, "weights": weight}
        epsilon = float(np.finfo(self.query.dtype).eps)
        return {
            name: {"epsilon": epsilon, "largest": largest, "roundings": count}
            for name, count in roundings.items()
        }


def attention_cases(sizes: Sizes, dtype: str) -> Iterator[AttentionCase]:
    """Yield the cases in the order of the report; the grouped one only if heads can share keys.

    sizes: of the attention. dtype: such as ``float32``.
    """
    own, real = counted(sizes.tokens, "token"), max(1, sizes.tokens - 2)
    texts = f"{counted(sizes.batch, 'text')} of {own}"
    kinds = {
        "self": f"{texts}, no mask",
        "cross": f"{own} attend to {sizes.keys} of another text",
        "causal": f"{texts}, causal mask",
        "padding": f"{sizes.tokens - real} of {own} in one text are padding",
    }
    if (kv_heads := sizes.kv_heads) is not None:
        shared = counted(kv_heads, "key/value head")
        kinds["grouped"] = f"{sizes.heads} query heads share {shared}"
    batch, width = sizes.batch, sizes.d_model
    for name, words in kinds.items():
        generator = np.random.default_rng((sizes.seed, len(name), ord(name[0])))
        groups = kv_heads if name == "grouped" and kv_heads else sizes.heads
        narrow, arrays = groups * sizes.head_dim, dict[str, Any]()
        for projection, out in zip(PROJECTIONS, (width, narrow, narrow, width), strict=True):
            bound = math.sqrt(6 / (width + out))  # Glorot & Bengio 2010
            drawn = generator.uniform(-bound, bound, (out, width))
            arrays[f"{projection}_weight"] = drawn.astype(dtype)
            arrays[f"{projection}_bias"] = generator.normal(size=out).astype(dtype)
        key = query = generator.normal(size=(batch, sizes.tokens, width)).astype(dtype)
        if name == "cross":
            key = generator.normal(size=(batch, sizes.keys, width)).astype(dtype)
        last = real if name == "padding" else key.shape[1]
        attention = NumpyAttention(
            **arrays, heads=sizes.heads, kv_heads=groups, causal=name == "causal"
        )
        real_keys = (*[key.shape[1]] * (batch - 1), last)
        yield AttentionCase(name, words, attention, query, key, real_keys)


# Other implementations ----------------------------------------------------------------------


def naive_attention(
    attention: NumpyAttention, query: NDArray[Any], key: NDArray[Any], visible: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute attention with nested loops; return outputs and weights in float64.

    They are (text, query, width) and (text, head, query, key). attention: has the parameters and
    the numbers of heads; nothing else of it is used. query, key: (text, token, d_model).
    visible: (text, query, key), True if the query sees the key; each query must see one.
    """
    heads, kv_heads = attention.shape.heads, attention.shape.kv_heads
    outputs, weights = [], []
    for text, others, seen in zip(query.tolist(), key.tolist(), visible, strict=True):
        queries = _projected(attention, "query", text)
        keys, values = (_projected(attention, name, others) for name in ("key", "value"))
        merged: list[list[float]] = [[] for _ in queries]
        maps = []
        for head in range(heads):
            shared, rows = head * kv_heads // heads, []
            for i, query_i in enumerate(queries):
                own = _part(query_i, head, heads)
                scores = [
                    _dot(own, _part(key_j, shared, kv_heads)) / math.sqrt(len(own))
                    if seen[i, j]
                    else -math.inf
                    for j, key_j in enumerate(keys)
                ]
                peak = max(scores)
                powers = [math.exp(score - peak) for score in scores]
                total = math.fsum(powers)
                row = [power / total for power in powers]
                columns = zip(*(_part(value, shared, kv_heads) for value in values), strict=True)
                merged[i] += [_dot(row, column) for column in columns]
                rows.append(row)
            maps.append(rows)
        outputs.append(_projected(attention, "output", merged))
        weights.append(maps)
    return np.array(outputs), np.array(weights)


def _projected(
    attention: NumpyAttention, name: str, tokens: Sequence[Sequence[float]]
) -> list[list[float]]:
    rows, biases = (getattr(attention, f"{name}_{part}").tolist() for part in PARTS)
    parts = list(zip(rows, biases, strict=True))
    return [[_dot(row, token) + bias for row, bias in parts] for token in tokens]


def _part(token: Sequence[float], part: int, parts: int) -> Sequence[float]:
    width = len(token) // parts
    return token[part * width : (part + 1) * width]


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(map(mul, first, second))


def _parameters(case: AttentionCase, name: str, *, repeat: bool = False) -> dict[str, Tensor]:
    """Return the ``weight`` and the ``bias`` of a projection, with a row for each output.

    repeat: True repeats the rows of a key/value head for each query head that shares it.
    """
    parameters, shape = {}, case.attention.shape
    for part in PARTS:
        rows: NDArray[Any] = getattr(case.attention, f"{name}_{part}")
        if repeat and name in ("key", "value"):
            by_head = rows.reshape(shape.kv_heads, -1, *rows.shape[1:])
            rows = by_head.repeat(shape.groups, axis=0).reshape(-1, *rows.shape[1:])
        parameters[part] = torch.from_numpy(rows)
    return parameters


@torch.inference_mode()
def layer_answer(case: AttentionCase) -> Answer:
    """Return a case by ``torch.nn.MultiheadAttention``, for which shared heads are copied."""
    query, key = torch.from_numpy(case.query), torch.from_numpy(case.key)
    heads, state = case.attention.shape.heads, {}
    layer = nn.MultiheadAttention(query.shape[2], heads, batch_first=True, dtype=query.dtype)
    copied = [_parameters(case, name, repeat=True) for name in PROJECTIONS]
    for part in PARTS:
        state[f"in_proj_{part}"] = torch.cat([parameters[part] for parameters in copied[:3]])
        state[f"out_proj.{part}"] = copied[3][part]
    layer.eval().load_state_dict(state)
    hidden = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).triu(1)
    output, weights = layer(
        query,
        key,
        key,
        key_padding_mask=None if case.padding is None else torch.from_numpy(~case.padding),
        attn_mask=hidden if case.attention.causal else None,
        average_attn_weights=False,
    )
    return output.numpy(), weights.numpy()


@torch.inference_mode()
def functional_answer(case: AttentionCase) -> Answer:
    """Return the outputs and weights by ``F.scaled_dot_product_attention`` for a case.

    It stands between plain linear maps. The function returns no attention weights; with the
    identity matrix as values, its output is the weights.
    """

    def split(name: str, x: NDArray[Any]) -> Tensor:
        flat = nn.functional.linear(torch.from_numpy(x), **_parameters(case, name))
        return flat.view(*flat.shape[:-1], -1, case.attention.shape.head_dim).transpose(1, 2)

    query, key, value = split("query", case.query), split("key", case.key), split("value", case.key)
    visible = torch.from_numpy(case.visible)[:, None]
    identity = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:3], -1)
    output, weights = (
        nn.functional.scaled_dot_product_attention(
            query, key, values, attn_mask=visible, enable_gqa=case.attention.shape.groups > 1
        )
        for values in (value, identity)
    )
    merged = output.transpose(1, 2).flatten(2)
    return nn.functional.linear(merged, **_parameters(case, "output")).numpy(), weights.numpy()


@torch.inference_mode()
def transformers_answer(case: AttentionCase) -> Answer:
    """Return a case by transformers' eager ``BartAttention``; shared heads are copied."""
    from transformers import BartConfig
    from transformers.models.bart.modeling_bart import BartAttention

    config = BartConfig()
    config._attn_implementation = "eager"
    layer = BartAttention(case.query.shape[2], case.attention.shape.heads, config=config).eval()
    query, key = torch.from_numpy(case.query), torch.from_numpy(case.key)
    layer.to(query.dtype)
    theirs = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    for name, projection in zip(PROJECTIONS, theirs, strict=True):
        projection.load_state_dict(_parameters(case, name, repeat=True))
    hidden = torch.from_numpy(~case.visible)[:, None]
    mask = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill(hidden, -math.inf)
    output, weights = layer(query, key, attention_mask=mask)
    return output.numpy(), weights.numpy()


def find_keras() -> Any:
    """Return the Keras package, or None if it is not installed.

    Its backend is that of ``KERAS_BACKEND``, or torch. Its settings file is neither read nor
    written, so that it cannot change the results.
    """
    if importlib.util.find_spec("keras") is None:
        return None
    with tempfile.TemporaryDirectory() as home:
        settings = {"KERAS_BACKEND": "torch", "KERAS_HOME": home}
        ours = settings.keys() - os.environ.keys()
        os.environ.update({name: settings[name] for name in ours})
        try:
            return importlib.import_module("keras")
        finally:
            for name in ours:
                del os.environ[name]


def keras_answer(keras: Any, case: AttentionCase) -> Answer:
    """Return the outputs and weights of Keras's attention layer for a case.

    It is ``MultiHeadAttention``, or with shared heads ``GroupQueryAttention``. keras: the package.
    """
    attention, shape, dtype = case.attention, case.attention.shape, str(case.query.dtype)
    if shape.groups == 1:
        layer = keras.layers.MultiHeadAttention(shape.heads, shape.head_dim, dtype=dtype)
    else:
        sizes = shape.head_dim, shape.heads, shape.kv_heads
        layer = keras.layers.GroupQueryAttention(*sizes, dtype=dtype)
    layer.build(case.query.shape, case.key.shape)
    kernels: list[NDArray[Any]] = []  # (width, heads, head_dim), and biases (heads, head_dim)
    for name in PROJECTIONS[:3]:
        weight, bias = (getattr(attention, f"{name}_{part}") for part in PARTS)
        kernels.append(weight.T.reshape(shape.d_model, -1, shape.head_dim))
        kernels.append(bias.reshape(-1, shape.head_dim))
    joined = attention.output_weight.T.reshape(-1, shape.head_dim, shape.d_model)
    layer.set_weights([*kernels, joined, attention.output_bias])
    padding = None if case.padding is None else case.padding[:, None, :]
    answer = layer(
        case.query,
        case.key,
        attention_mask=None if padding is None else np.broadcast_to(padding, case.visible.shape),
        use_causal_mask=attention.causal,
        return_attention_scores=True,
        training=False,
    )
    # Keras's own conversion of a torch tensor makes NumPy 2 warn.
    output, weights = (
        part.detach().cpu().numpy() if hasattr(part, "detach") else keras.ops.convert_to_numpy(part)
        for part in answer
    )
    return output, weights


# Step by step ---------------------------------------------------------------------------------


def attention_steps(sizes: Sizes, dtype: str, causal: bool) -> tuple[ComputationStep, ...]:
    """Return every step of the attention computation, for one text without biases.

    sizes: of the attention. dtype: such as ``float32``. causal: whether later tokens are hidden.
    The input has whole numbers from −1 to 2. Each column of a projection selects one number of a
    token, or its negative, so that queries, keys, values and scores are whole as well.
    """
    text, attention = _whole_numbers(sizes, dtype, causal)
    shape, step, grouped = attention.shape, ComputationStep, attention.shape.groups > 1
    width, flat = ("tokens", "d_model"), ("tokens", "heads × head_dim")
    by_head, square = ("heads", "tokens", "head_dim"), ("heads", "queries", "keys")
    weights = {"Q": attention.query_weight, "K": attention.key_weight, "V": attention.value_weight}
    steps, heads = [step("input", "X", width, {"X": text})], {}
    for name, symbol in (("queries", "Q"), ("keys", "K"), ("values", "V")):
        shared = grouped and symbol != "Q"
        axes = ("tokens", "kv_heads × head_dim" if shared else flat[1])
        projected = functional.project(text, weights[symbol])
        heads[symbol] = functional.split_heads(projected, shape.kv_heads if shared else shape.heads)
        # Stored as torch stores it, (out, in); textbooks multiply by its transpose.
        given = {f"W_{symbol}": weights[symbol].T}
        steps.append(step(name, f"{symbol} = X W_{symbol}", axes, {symbol: projected}, given))
    words = "head h: columns h·head_dim … (h+1)·head_dim − 1"
    own = ("kv_heads" if grouped else "heads", *by_head[1:])
    note = f"Q has {shape.heads} heads" if grouped else ""
    steps.append(step("split into heads", words, own, heads, note=note))
    key, value = (functional.repeat_kv_heads(heads[symbol], shape.groups) for symbol in "KV")
    if grouped:
        last = f"{shape.groups}k + {shape.groups - 1}"
        words = f"query heads {shape.groups}k … {last} read key/value head k"
        steps.append(step("shared", words, by_head, {"K": key, "V": value}))
    scores = functional.attention_scores(heads["Q"], key, 1.0)
    scaled = masked = functional.attention_scores(heads["Q"], key)
    if causal:
        seen = functional.causal_mask(len(text), len(text), like=text)
        masked = np.where(seen, scaled, -math.inf)
    shares = functional.softmax(masked)
    mixed = functional.attention_output(shares, value)
    merged = functional.merge_heads(mixed)
    output = functional.project(merged, attention.output_weight)
    # (out, head, dim) times (head, token, dim): a head reads its own columns alone, writes to all.
    rows = attention.output_weight.reshape(-1, shape.heads, mixed.shape[-1])
    of_heads, written = np.einsum("htd,ohd->hto", mixed, rows), ("heads", "tokens", "d_model")
    mixes = "before W_O a head has columns of its own; behind it, it writes to all"
    dim, root = shape.head_dim, f"√{shape.head_dim} = {math.sqrt(shape.head_dim):.5g}"
    hidden = "masked keys become −∞" if causal else "no mask: all stays"
    softened = "A = exp(s) / Σ exp(s) along each row"
    return (
        *steps,
        step("scores", "S = Q Kᵀ", square, {"S": scores}),
        step("scaled", f"S / √head_dim = S / √{dim}", square, {"scaled": scaled}, note=root),
        step("masked", hidden, square, {"masked": masked}),
        step("weights", softened, square, {"A": shares}, note="each row sums to one"),
        step("mixed", "Z = A V", by_head, {"Z": mixed}),
        step("merged", "the heads' Z side by side", flat, {"Z": merged}),
        step("written", "Y_h = Z_h · head h's rows of W_O", written, {"Y": of_heads}, note=mixes),
        step(
            "output",
            "Y = Z W_O",
            width,
            {"Y": output},
            {"W_O": attention.output_weight.T},
            note="Y = Σ Y_h",
        ),
    )


def steps_check(
    sizes: Sizes, dtype: str, causal: bool, steps: Sequence[ComputationStep]
) -> Iterator[Checked]:
    """Compare attention that was computed one step at a time with the same in one call.

    steps: those over the text of whole numbers that ``sizes``, ``dtype`` and ``causal`` give.
    """
    text, attention = _whole_numbers(sizes, dtype, causal)
    result = {step.name: step.result for step in steps}
    largest = max(1.0, *(float(np.abs(result[name]).max()) for name in ("scores", "output")))
    for name, whole in zip(("output", "weights"), attention(text), strict=True):
        yield Checked(
            *("steps", "steps", "NumPy in one call"),
            number="weights" if name == "weights" else "outputs",
            difference=float(np.abs(result[name] - whole).max()),
            epsilon=float(np.finfo(dtype).eps),
            roundings=2 * sizes.d_model + sizes.head_dim + 2 * sizes.tokens,
            largest=largest,
        )


def _whole_numbers(sizes: Sizes, dtype: str, causal: bool) -> tuple[NDArray[Any], NumpyAttention]:
    """Return a text (token, d_model) of whole numbers, and an attention without biases."""
    generator, inputs = np.random.default_rng(sizes.seed), sizes.d_model
    text = generator.integers(-1, 3, (sizes.tokens, inputs)).astype(dtype)
    shared, picked = sizes.kv_heads or sizes.heads, []
    for heads in (sizes.heads, shared, shared, sizes.heads):
        out = heads * sizes.head_dim
        weight = np.zeros((out, inputs), dtype)
        chosen = np.concatenate([generator.permutation(inputs) for _ in range(out // inputs + 1)])
        weight[np.arange(out), chosen[:out]] = generator.choice([1, 1, -1], out)
        picked.append(weight)
    query, key, value, output = picked
    return text, NumpyAttention(
        query, key, value, output, heads=sizes.heads, kv_heads=shared, causal=causal
    )
