"""Comparison of the library's own attention with itself and with others, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.errors import UsageError
from attnviz.learn.verify.cases import Answer, AttentionCase, attention_cases
from attnviz.learn.verify.examinee import differences
from attnviz.learn.verify.others import (
    find_keras,
    functional_answer,
    keras_answer,
    layer_answer,
    multiplications,
    naive_attention,
)
from attnviz.learn.verify.records import Check, ComparedNumber, Sizes, Tolerance

NAIVE = "naive loop"
KERAS = "keras.layers.MultiHeadAttention"
_GROUPED_KERAS = "keras.layers.GroupQueryAttention"
_LAYER = "torch.nn.MultiheadAttention"
_KERNEL = "F.scaled_dot_product_attention"

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
    is installed.
    on_case: called before each case is computed.
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
        checks += _compared(case, sizes, package)
    if sizes.kv_heads is None:
        heads = f"{sizes.heads} head{'s' * (sizes.heads != 1)}"
        reason = f"{heads} cannot share key/value heads: give --heads 2 or more"
        checks.append(Check("grouped", "all", skipped=reason))
    if package is None:
        reason = "left out by --no-keras" if keras is False else "not installed, skipped"
        checks.append(Check("", KERAS, skipped=reason))
    return tuple(checks)


def _compared(case: AttentionCase, sizes: Sizes, keras: Any) -> Iterator[Check]:
    ours = _own_answers(case)
    shape = (sizes.batch, case.query.shape[1], case.key.shape[1], sizes.d_model)
    naive = None
    if multiplications(*shape) <= _MOST_LOOPED:
        naive = naive_attention(
            case.state, case.query, case.key, case.visible, heads=case.heads, kv_heads=case.kv_heads
        )
    else:
        reason = "too many numbers for a loop in Python: choose smaller sizes"
        yield Check(case.name, "own", NAIVE, skipped=reason)
    if naive is not None:
        for name in ours:
            yield _check(case, name, ours[name], NAIVE, naive)
    yield _check(case, "torch", ours["torch"], "NumPy", ours["NumPy"])
    yield _check(case, "torch", ours["torch"], _LAYER, layer_answer(case))
    yield _check(case, "torch", ours["torch"], _KERNEL, functional_answer(case))
    if keras is not None:
        theirs = KERAS if case.kv_heads == case.heads else _GROUPED_KERAS
        yield _check(case, "NumPy", ours["NumPy"], theirs, keras_answer(keras, case))


def _check(case: AttentionCase, name: str, ours: Answer, against: str, theirs: Answer) -> Check:
    epsilon, largest = float(np.finfo(case.query.dtype).eps), case.largest
    tolerance = Tolerance(epsilon, case.output_roundings, largest)
    measures = [ComparedNumber("outputs", float(differences(ours[0], theirs[0]).max()), tolerance)]
    if ours[1] is not None and theirs[1] is not None:
        tolerance = Tolerance(epsilon, case.weight_roundings, largest)
        measures.append(
            ComparedNumber("weights", float(differences(ours[1], theirs[1]).max()), tolerance)
        )
    return Check(case.name, name, against, measures=tuple(measures))


def _own_answers(case: AttentionCase) -> Mapping[str, Answer]:
    """Return the library's own outputs and weights for a case, by the way of computing.

    The ways are ``NumPy``, ``torch`` and ``fused``.
    """
    attention = _module(case)
    given = [torch.from_numpy(case.query)]
    given += [] if case.key is case.query else [torch.from_numpy(case.key)]
    padding = case.padding
    mask = None if padding is None else padding_mask(torch.from_numpy(padding))
    with torch.inference_mode():
        output, weights = attention(*given, mask=mask, return_weights=True)
        fused: torch.Tensor = attention(*given, mask=mask)
    return {
        "NumPy": _in_numpy(case),
        "torch": (output.numpy(), weights.numpy()),
        "fused": (fused.numpy(), None),
    }


def _in_numpy(case: AttentionCase) -> Answer:
    attention = NumpyAttention.from_state(case.state, case.heads, case.kv_heads, causal=case.causal)
    key = None if case.key is case.query else case.key
    padding = case.padding
    mask = None if padding is None else padding_mask(padding)
    return attention(case.query, key, mask=mask)


def _module(case: AttentionCase) -> MultiHeadAttention:
    width = case.query.shape[2]
    attention = MultiHeadAttention(width, case.heads, case.kv_heads, causal=case.causal).eval()
    state = {name: torch.from_numpy(array) for name, array in case.state.items()}
    attention.to(next(iter(state.values())).dtype).load_state_dict(state)
    return attention
