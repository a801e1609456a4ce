"""The real queries and keys of a model, softened without and with its scale."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import observe_queries_keys
from attnviz.engine.queries_keys import QueriesKeys, products
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import Model
from attnviz.records import Tokens
from attnviz.scaling.estimates import Side
from attnviz.scaling.measures import visible_rows
from attnviz.scaling.records import ScalingCase, ScalingReport

__all__ = ["model_scaling", "needed_text_bytes"]

_MATRICES = 10
"""float64 arrays (query, key) that measuring one head has at once."""


def needed_text_bytes(tokens: int) -> int:
    """The memory that ``model_scaling`` takes at its height for a text, in bytes.

    The model itself, and what it computes while it runs, not counted.
    """
    return 8 * _MATRICES * tokens * tokens


def model_scaling(
    model: Model,
    tokens: Tokens,
    heads: Mapping[int, frozenset[int]] | None = None,
    *,
    seed: int = 0,
    by_head: bool = False,
    index_base: int = 0,
) -> ScalingReport:
    """Measure each layer's queries and keys over one text, in float64.

    heads: of each layer; None for all. by_head: a case for each head rather than each layer, whose
    measures are then the means over its heads. Queries that see one key only are left out: there
    is nothing to choose. There are no standard errors: the queries of one text are not independent.

    Raises UsageError where no query sees two keys or no layer has a chosen head, UnsupportedError
    where the model does not show its queries and keys, or has no scale.
    """
    cases: list[ScalingCase] = []

    def take(found: QueriesKeys) -> None:
        every = range(len(found.query))
        chosen = [head for head in every if heads is None or head in heads[found.layer]]
        if found.scale == 1:
            raise UnsupportedError(
                f"{model.info.name!r} does not scale its scores, so there is nothing to compare: "
                "choose another --model"
            )
        groups = [[head] for head in chosen] if by_head else [chosen]
        cases.extend(_case(found, group, by_head) for group in groups if group)

    notes = observe_queries_keys(model, tokens, lambda layer: heads is None or layer in heads, take)
    if not cases:
        raise UsageError(
            "none of the chosen layers has such a head: choose others with --layer or --head"
        )
    cases.sort(key=lambda case: (case.layer or 0, case.head or 0))
    return ScalingReport(
        tuple(cases),
        seed,
        len(tokens),
        model=model.info,
        notes=notes,
        index_base=index_base,
    )


def _case(found: QueriesKeys, heads: list[int], by_head: bool) -> ScalingCase:
    d_k = found.query.shape[-1]
    plain, scaled = Side(1.0), Side(found.scale)
    queries = weights = 0
    for head in heads:
        query, key, bias = found.head(head)
        visible = _visible(bias, len(query), len(key))
        rows = visible_rows(visible)
        if not rows.any():
            raise UsageError(
                "every query of this text sees one key only: expected a text of at least two tokens"
            )
        scores = products(query.astype(np.float64), key.astype(np.float64))
        for side in (plain, scaled):
            side.add(scores, bias, rows)
        queries += int(rows.sum())
        weights += int(visible[rows].sum())
    return ScalingCase(
        d_k,
        plain.result(d_k, independent=False),
        scaled.result(d_k, independent=False),
        queries,
        weights,
        found.layer,
        heads[0] if by_head else None,
        len(heads),
    )


def _visible(bias: NDArray[np.floating] | None, queries: int, keys: int) -> NDArray[np.bool_]:
    if bias is None:
        return np.ones((queries, keys), bool)
    return bias > -np.inf
