"""Makes the report of ``attnviz verify`` on the library's own attention: case by case with others.

A model of its own is checked in ``loaded``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.draw.numbers import counted
from attnviz.errors import UsageError
from attnviz.learn.verify.references import (
    PARTS,
    PROJECTIONS,
    Answer,
    AttentionCase,
    attention_cases,
    find_keras,
    functional_answer,
    keras_answer,
    layer_answer,
    naive_attention,
    transformers_answer,
)
from attnviz.learn.verify.report import Checked, ComputationStep, Sizes, VerifyReport
from attnviz.learn.verify.request import VerifyRequest
from attnviz.learn.verify.steps import attention_steps, steps_check
from attnviz.models.memory import require_room
from attnviz.models.own import check_sizes
from attnviz.models.threads import use_threads
from attnviz.progress import Advance

NAIVE = "naive loop"
KERAS = "keras.layers.MultiHeadAttention"

_BATCH = 2
_MORE_KEYS = 4
"""Number of keys of cross-attention beyond the queries."""

_COPIES = 12
"""Number of weight arrays in memory while one case is compared."""

_MOST_LOOPED = 30_000_000
"""Largest number of multiplications of the naive loop, which take some seconds."""


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
            f"the library's own attention is verified in float32 or float64, got --dtype {dtype}"
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
    usual_kv = fewest[-1] if fewest else None
    kv_heads = usual_kv if request.kv_heads is None else request.kv_heads
    keys = tokens + _MORE_KEYS
    require_room(
        "these sizes take about",
        8 * (_COPIES * _BATCH * heads * tokens * keys + 12 * d_model * d_model),
        "choose a smaller --seq or --d-model",
    )
    seed = request.seed
    return Sizes(d_model, heads, kv_heads, tokens, keys=keys, batch=_BATCH, seed=seed)


def compared_case(case: AttentionCase, keras: Any = None) -> Iterator[Checked]:
    """Yield the checks of a case, one for each pair of an own and another implementation.

    Outputs are compared, and attention weights if both implementations return them.
    keras: the package; None leaves it out.
    """
    ours = _own_answers(case)
    pairs: list[tuple[str, str, Answer]] = []
    if case.multiplications <= _MOST_LOOPED:
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
    """Return the library's own outputs and weights for a case, by the way of computing.

    The ways are ``NumPy``, ``torch`` and ``fused``.
    """
    attention, shape, padding = case.attention, case.attention.shape, case.padding
    module = MultiHeadAttention(shape.d_model, shape.heads, shape.kv_heads, causal=attention.causal)
    state = {
        f"{name}_projection.{part}": torch.from_numpy(getattr(attention, f"{name}_{part}"))
        for name in PROJECTIONS
        for part in PARTS
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
