"""Comparison of the library's own attention with itself and with others, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.draw.numbers import counted
from attnviz.errors import UsageError
from attnviz.learn.verify.cases import PARTS, PROJECTIONS, Answer, AttentionCase, attention_cases
from attnviz.learn.verify.examinee import differences
from attnviz.learn.verify.others import (
    find_keras,
    functional_answer,
    keras_answer,
    layer_answer,
    naive_attention,
)
from attnviz.learn.verify.report import Check, ComparedNumber, Sizes

NAIVE = "naive loop"
KERAS = "keras.layers.MultiHeadAttention"

_MOST_LOOPED = 30_000_000
"""Largest number of multiplications of the naive loop, which take some seconds."""


def own_checks(
    sizes: Sizes,
    dtype: str,
    keras: bool | None = None,
    on_case: Callable[[AttentionCase], None] = lambda case: None,
) -> tuple[Check, ...]:
    """Compare the library's own attention with others in all cases; return the checks.

    Outputs are compared, and attention weights if both implementations return them. sizes: of the
    attention. dtype: such as ``float32``. keras: whether to compare with Keras; None for yes if it
    is installed. on_case: called before each case is computed.
    Raises UsageError if Keras was requested and is not installed.
    """
    package = None if keras is False else find_keras()
    if keras and package is None:
        raise UsageError(
            "--keras was asked for and Keras is not installed: pip install keras, or leave it out"
        )
    checks: list[Check] = []
    for case in attention_cases(sizes, dtype):
        on_case(case)
        checks += _compared(case, package)
    if sizes.kv_heads is None:
        heads = counted(sizes.heads, "head")
        reason = f"{heads} cannot share key/value heads: give --heads 2 or more"
        checks.append(Check("grouped", "all", skipped=reason))
    if package is None:
        reason = "left out by --no-keras" if keras is False else "not installed, skipped"
        checks.append(Check("", KERAS, skipped=reason))
    return tuple(checks)


_Pair: TypeAlias = tuple[str, Answer, str, Answer]
"""The names and the answers of the own way and of another implementation."""


def _compared(case: AttentionCase, keras: Any) -> Iterator[Check]:
    ours = _own_answers(case)
    pairs: list[_Pair] = []
    if case.multiplications <= _MOST_LOOPED:
        naive = naive_attention(case.attention, case.query, case.key, case.visible)
        pairs += [(name, answer, NAIVE, naive) for name, answer in ours.items()]
    else:
        reason = "too many numbers for a loop in Python: choose smaller sizes"
        yield Check(case.name, "own", NAIVE, skipped=reason)
    pairs += [
        ("torch", ours["torch"], "NumPy", ours["NumPy"]),
        ("torch", ours["torch"], "torch.nn.MultiheadAttention", layer_answer(case)),
        ("torch", ours["torch"], "F.scaled_dot_product_attention", functional_answer(case)),
    ]
    if keras is not None:
        shape = case.attention.shape
        theirs = KERAS if shape.groups == 1 else "keras.layers.GroupQueryAttention"
        pairs.append(("NumPy", ours["NumPy"], theirs, keras_answer(keras, case)))
    tolerances = case.tolerances
    for name, answer, against, other in pairs:
        measures = tuple(
            ComparedNumber(part, float(differences(mine, theirs).max()), tolerances[part])
            for part, mine, theirs in zip(tolerances, answer, other, strict=True)
            if mine is not None and theirs is not None
        )
        yield Check(case.name, name, against, measures=measures)


def _own_answers(case: AttentionCase) -> dict[str, Answer]:
    """Return the library's own outputs and weights for a case, by the way of computing.

    The ways are ``NumPy``, ``torch`` and ``fused``.
    """
    attention = torch_attention(case.attention)
    key = None if case.key is case.query else case.key
    given = [torch.from_numpy(x) for x in (case.query, key) if x is not None]
    padding = case.padding
    mask = None if padding is None else padding_mask(torch.from_numpy(padding))
    with torch.inference_mode():
        output, weights = attention(*given, mask=mask, return_weights=True)
        fused: torch.Tensor = attention(*given, mask=mask)
    hidden = None if padding is None else padding_mask(padding)
    return {
        "NumPy": case.attention(case.query, key, mask=hidden),
        "torch": (output.numpy(), weights.numpy()),
        "fused": (fused.numpy(), None),
    }


def torch_attention(attention: NumpyAttention) -> MultiHeadAttention:
    """Return the torch module with the parameters of an attention in NumPy."""
    shape = attention.shape
    module = MultiHeadAttention(
        shape.d_model,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        causal=attention.causal,
        score=attention.score,
    )
    arrays = {
        f"{name}_projection.{part}": getattr(attention, f"{name}_{part}")
        for name in PROJECTIONS
        for part in PARTS
    } | {"score_weight": attention.score_weight}
    state = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
    module.to(state["query_projection.weight"].dtype).load_state_dict(state)
    return module.eval()
