"""How alike attention and a 0/1 template are, by the two formulas of TransformerLens.

``transformer_lens/head_detector.py``, ``compute_head_attention_similarity_score``; the template of
a text says which key each query ought to look at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "abs_score",
    "duplicate_template",
    "induction_template",
    "mul_score",
    "previous_template",
]

Weights = NDArray[np.floating]
Template = NDArray[np.float64]

_DIGITS = 3


def mul_score(
    weights: Weights,
    template: Template,
    *,
    exclude_first: bool = False,
    exclude_self: bool = False,
) -> NDArray[np.float64]:
    """Σ(A∘D) / ΣA of weights (..., query, key); the share of all weight on the template, in [0, 1].

    exclude_first, exclude_self: of a copy of the weights, take out key 0, or the diagonal. NaN
        where no weight is left.
    """
    kept = _without(weights, exclude_first, exclude_self)
    on, every = (kept * template).sum((-2, -1)), kept.sum((-2, -1))
    return np.asarray(np.divide(on, every, out=np.full_like(on, np.nan), where=every != 0))


def abs_score(
    weights: Weights,
    template: Template,
    *,
    exclude_first: bool = False,
    exclude_self: bool = False,
) -> NDArray[np.float64]:
    """1 − round(mean|A − D|·n, 3) of weights (..., query, key) of n queries; at most 1.

    exclude_first, exclude_self: what weights and template differ by there does not count; the mean
        is still over all cells.
    """
    differences = np.abs(np.asarray(weights, np.float64) - template)
    gap = _without(differences, exclude_first, exclude_self).mean((-2, -1)) * len(template)
    return np.asarray(1 - np.round(gap, _DIGITS))


def _without(cells: Weights, first: bool, diagonal: bool) -> NDArray[np.float64]:
    kept = np.array(cells, np.float64)
    if first:
        kept[..., 0] = 0
    if diagonal:
        every = np.arange(min(kept.shape[-2:]))
        kept[..., every, every] = 0
    return kept


def previous_template(tokens: int) -> Template:
    """One at (i, i − 1); the first query has none."""
    template: Template = np.eye(tokens, k=-1)
    return template


def duplicate_template(ids: Sequence[int]) -> Template:
    """One at every earlier token equal to the query's."""
    tokens = np.asarray(ids)
    equal: NDArray[np.bool_] = tokens[:, None] == tokens[None, :]
    return np.asarray(np.tril(equal, -1), np.float64)


def induction_template(ids: Sequence[int]) -> Template:
    """One at every token behind an earlier one equal to the query's.

    As TransformerLens has it, a query whose neighbour before it is equal finds itself; the measure
    ``measures.induction`` leaves that out.
    """
    template = np.zeros((len(ids), len(ids)))
    template[:, 1:] = duplicate_template(ids)[:, :-1]
    return template
