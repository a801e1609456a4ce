"""The library's attention one step at a time, over whole numbers for a check on paper.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import (
    attention_output,
    attention_scores,
    causal_mask,
    merge_heads,
    project,
    repeat_kv_heads,
    softmax,
    split_heads,
)
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.learn.verify.records import (
    Check,
    ComparedNumber,
    ComputationStep,
    Matrix,
    Sizes,
    Tolerance,
)

Floats = NDArray[Any]

_FLAT = ("tokens", "heads × head_dim")
_SHARED = ("tokens", "kv_heads × head_dim")


def attention_steps(sizes: Sizes, dtype: str, causal: bool) -> tuple[ComputationStep, ...]:
    """Return every step of the attention computation, for one text without biases.

    sizes: of the attention. dtype: such as ``float32``. causal: whether later tokens are hidden.
    The input has whole numbers from −1 to 2. Each column of a projection selects one number of a
    token, or its negative, so that queries, keys, values and scores are whole as well.
    """
    text, attention = _whole_numbers(sizes, dtype, causal)
    shape = attention.shape
    grouped = shape.kv_heads != shape.heads
    weights = (attention.query_weight, attention.key_weight, attention.value_weight)
    parts = {
        name: split_heads(project(text, weight), shape.heads if name == "Q" else shape.kv_heads)
        for name, weight in zip("QKV", weights, strict=True)
    }
    steps = [
        ComputationStep("input", "X", ("tokens", "d_model"), (Matrix("X", text),)),
        _projection("queries", "Q", _FLAT, text, attention.query_weight),
        _projection("keys", "K", _SHARED if grouped else _FLAT, text, attention.key_weight),
        _projection("values", "V", _SHARED if grouped else _FLAT, text, attention.value_weight),
        ComputationStep(
            "split into heads",
            "head h: columns h·head_dim … (h+1)·head_dim − 1",
            ("kv_heads" if grouped else "heads", "tokens", "head_dim"),
            tuple(Matrix(name, part) for name, part in parts.items()),
            note=f"Q has {shape.heads} heads" if grouped else "",
        ),
    ]
    key, value = (repeat_kv_heads(parts[name], shape.groups) for name in "KV")
    if grouped:
        steps.append(
            ComputationStep(
                "shared",
                f"query heads {shape.groups}k … {shape.groups}k + {shape.groups - 1} read "
                "key/value head k",
                ("heads", "tokens", "head_dim"),
                (Matrix("K", key), Matrix("V", value)),
            )
        )
    return (*steps, *_weighing(parts["Q"], key, value, attention))


def _projection(
    name: str, symbol: str, axes: tuple[str, ...], x: Floats, weight: Floats
) -> ComputationStep:
    # Stored as torch stores it, (out, in); textbooks multiply by its transpose.
    given = (Matrix(f"W_{symbol}", weight.T),)
    return ComputationStep(
        name, f"{symbol} = X W_{symbol}", axes, (Matrix(symbol, project(x, weight)),), given
    )


def _weighing(
    query: Floats, key: Floats, value: Floats, attention: NumpyAttention
) -> tuple[ComputationStep, ...]:
    """Return the computation steps from the heads' queries, keys and values to the output.

    query, key, value: (head, token, head_dim).
    """
    square = ("heads", "queries", "keys")
    root = math.sqrt(query.shape[-1])
    scores = attention_scores(query, key, 1.0)
    scaled = attention_scores(query, key)
    masked = scaled
    if attention.causal:
        visible = causal_mask(query.shape[-2], key.shape[-2], like=query)
        masked = np.where(visible, scaled, np.full_like(scaled, -math.inf))
    weights = softmax(masked)
    mixed = attention_output(weights, value)
    merged = merge_heads(mixed)
    output = project(merged, attention.output_weight)
    hidden = "masked keys become −∞" if attention.causal else "no mask: all stays"
    return (
        ComputationStep("scores", "S = Q Kᵀ", square, (Matrix("S", scores),)),
        ComputationStep(
            "scaled",
            f"S / √head_dim = S / √{query.shape[-1]}",
            square,
            (Matrix("scaled", scaled),),
            note=f"√{query.shape[-1]} = {root:.5g}",
        ),
        ComputationStep("masked", hidden, square, (Matrix("masked", masked),)),
        ComputationStep(
            "weights",
            "A = exp(s) / Σ exp(s) along each row",
            square,
            (Matrix("A", weights),),
            note="each row sums to one",
        ),
        ComputationStep("mixed", "Z = A V", ("heads", "tokens", "head_dim"), (Matrix("Z", mixed),)),
        ComputationStep("merged", "the heads' Z side by side", _FLAT, (Matrix("Z", merged),)),
        ComputationStep(
            "output",
            "Y = Z W_O",
            ("tokens", "d_model"),
            (Matrix("Y", output),),
            (Matrix("W_O", attention.output_weight.T),),
        ),
    )


def steps_check(
    sizes: Sizes, dtype: str, causal: bool, steps: tuple[ComputationStep, ...]
) -> Check:
    """Compare the computation steps with the same attention in one call.

    sizes, dtype, causal: the arguments of ``attention_steps`` for these steps.
    """
    text, attention = _whole_numbers(sizes, dtype, causal)
    output, weights = attention(text)
    found = {step.name: step.found[0].values for step in steps}
    largest = max(1.0, *(float(np.abs(found[name]).max()) for name in ("scores", "output")))
    terms = 2 * sizes.d_model + sizes.head_dim + 2 * sizes.tokens
    tolerance = Tolerance(float(np.finfo(dtype).eps), terms, largest)
    pairs = {"outputs": (found["output"], output), "weights": (found["weights"], weights)}
    measures = [
        ComparedNumber(name, float(np.abs(ours - whole).max()), tolerance)
        for name, (ours, whole) in pairs.items()
    ]
    return Check("steps", "steps", "NumPy in one call", measures=tuple(measures))


def _whole_numbers(sizes: Sizes, dtype: str, causal: bool) -> tuple[Floats, NumpyAttention]:
    """Return a text (token, d_model) of whole numbers, and an attention without biases.

    sizes: of the attention. dtype: such as ``float32``. causal: whether later tokens are hidden.
    """
    generator = np.random.default_rng(sizes.seed)
    text = generator.integers(-1, 3, (sizes.tokens, sizes.d_model)).astype(dtype)
    shared = sizes.kv_heads or sizes.heads

    def picking(out: int, inputs: int) -> Floats:
        weight = np.zeros((out, inputs), dtype)
        chosen = np.concatenate([generator.permutation(inputs) for _ in range(out // inputs + 1)])
        weight[np.arange(out), chosen[:out]] = generator.choice([1, 1, -1], out)
        return weight

    query, key, value = (
        picking(heads * sizes.head_dim, sizes.d_model) for heads in (sizes.heads, shared, shared)
    )
    output = picking(sizes.d_model, sizes.d_model)
    return text, NumpyAttention(
        query, key, value, output, heads=sizes.heads, kv_heads=shared, causal=causal
    )
