"""The library's attention one step at a time, over whole numbers for a check on paper.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention import functional
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.learn.verify.report import Checked, ComputationStep, Sizes


def attention_steps(sizes: Sizes, dtype: str, causal: bool) -> tuple[ComputationStep, ...]:
    """Return every step of the attention computation, for one text without biases.

    sizes: of the attention. dtype: such as ``float32``. causal: whether later tokens are hidden.
    The input has whole numbers from −1 to 2. Each column of a projection selects one number of a
    token, or its negative, so that queries, keys, values and scores are whole as well.
    """
    text, attention = _whole_numbers(sizes, dtype, causal)
    shape, step = attention.shape, ComputationStep
    grouped, dim = shape.groups > 1, shape.head_dim
    width, flat = ("tokens", "d_model"), ("tokens", "heads × head_dim")
    by_head, square = ("heads", "tokens", "head_dim"), ("heads", "queries", "keys")
    weights = {"Q": attention.query_weight, "K": attention.key_weight, "V": attention.value_weight}
    steps, heads = [step("input", "X", width, {"X": text})], {}
    for name, symbol in (("queries", "Q"), ("keys", "K"), ("values", "V")):
        shared = grouped and symbol != "Q"
        axes = ("tokens", "kv_heads × head_dim" if shared else flat[1])
        projected, w = functional.project(text, weights[symbol]), f"W_{symbol}"
        heads[symbol] = functional.split_heads(projected, shape.kv_heads if shared else shape.heads)
        # Stored as torch stores it, (out, in); textbooks multiply by its transpose.
        given = {w: weights[symbol].T}
        steps.append(step(name, f"{symbol} = X {w}", axes, {symbol: projected}, given))
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
        masked = np.where(
            functional.causal_mask(len(text), len(text), like=text), scaled, -math.inf
        )
    shares = functional.softmax(masked)
    mixed = functional.attention_output(shares, value)
    merged = functional.merge_heads(mixed)
    output, last_weight = (
        functional.project(merged, attention.output_weight),
        attention.output_weight.T,
    )
    # (out, head, dim) times (head, token, dim): a head reads its own columns alone, writes to all.
    rows = attention.output_weight.reshape(-1, shape.heads, mixed.shape[-1])
    of_heads, written = np.einsum("htd,ohd->hto", mixed, rows), ("heads", "tokens", "d_model")
    mixes = "before W_O a head has columns of its own; behind it, it writes to all"
    words, root = f"S / √head_dim = S / √{dim}", f"√{dim} = {math.sqrt(dim):.5g}"
    hidden = "masked keys become −∞" if causal else "no mask: all stays"
    softened, sums = "A = exp(s) / Σ exp(s) along each row", "each row sums to one"
    return (
        *steps,
        step("scores", "S = Q Kᵀ", square, {"S": scores}),
        step("scaled", words, square, {"scaled": scaled}, note=root),
        step("masked", hidden, square, {"masked": masked}),
        step("weights", softened, square, {"A": shares}, note=sums),
        step("mixed", "Z = A V", by_head, {"Z": mixed}),
        step("merged", "the heads' Z side by side", flat, {"Z": merged}),
        step("written", "Y_h = Z_h · head h's rows of W_O", written, {"Y": of_heads}, note=mixes),
        step("output", "Y = Z W_O", width, {"Y": output}, {"W_O": last_weight}, note="Y = Σ Y_h"),
    )


def steps_check(
    sizes: Sizes, dtype: str, causal: bool, steps: Sequence[ComputationStep]
) -> Iterator[Checked]:
    """Compare the computation steps with the same attention in one call.

    sizes, dtype, causal: the arguments of ``attention_steps`` for these steps.
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
