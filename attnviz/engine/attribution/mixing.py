"""Record the weights and values of each attention call, whichever functions compute them.

A head's output is z_i = Σ_j α_ij v_j. The weights are the result of a softmax over the keys; the
values are what these are then multiplied by. Torch's fused attention has both among its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnviz.engine.attention_calls import FUSED_INPUTS, Compute, SoftmaxWatch
from attnviz.engine.hook_points import Function, HookedCall
from attnviz.records import Input

_PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}
_WEIGHTS = "are_attention_weights"
"""The mark of a tensor that holds the weights of an attention call."""


@dataclass(frozen=True)
class Mixing:
    """The attention weights and the values of one attention call.

    weights: (head, row, key), of the chosen queries. values: (head, key, dim).
    """

    weights: Tensor
    values: Tensor

    def written(self, slope: Tensor) -> Tensor:
        """Return how much each key's value changes the target: ⟨slope_i, α_ij v_j⟩.

        The result is (head, row, key). slope: (row, head, dim), the derivative of the target, such
        as a logit, by the heads' outputs.
        """
        return self.weights * torch.einsum("ihd,hjd->hij", slope.to(self.values), self.values)


class MixingWatch(SoftmaxWatch):
    """Records the attention weights and values of the last attention call over one text."""

    def __init__(self, given: Input) -> None:
        lengths = {len(given.text), len(given.predicted)}
        # A sink may stand next to the keys.
        super().__init__(1, lengths | {length + 1 for length in lengths})
        self._last: tuple[Callable[[slice], Tensor], Tensor] | None = None

    def take(self, point: HookedCall, rows: slice) -> Mixing | None:
        """Return the attention weights and values recorded since the last call of ``take``.

        None is returned if there are none, or if their shape does not fit.
        point: the attention call. rows: the queries whose weights are wanted.
        """
        found, self._last = self._last, None
        if found is None:
            return None
        weigh, values = found
        weights = weigh(rows)
        heads, keys = point.heads, weights.shape[-1]
        if values.shape[-2:] != (keys, point.dim):
            return None
        weights, values = weights.flatten(0, -3), values.flatten(0, -3)
        if len(weights) != heads or heads % len(values):
            return None
        return Mixing(weights.to(values.dtype), values.repeat_interleave(heads // len(values), 0))

    def notice(self, scores: Any, compute: Compute) -> Tensor:
        weights = compute()
        setattr(weights, _WEIGHTS, True)
        return weights

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is functional.scaled_dot_product_attention:
            named = {**dict(zip(FUSED_INPUTS, args, strict=False)), **kwargs}
            query, key = named["query"], named["key"]
            self._last = (
                lambda rows: fused_scores(query, key, named, rows).softmax(-1),
                named["value"],
            )
            return func(*args, **kwargs)
        result = super().call(func, args, kwargs)
        first = args[0] if args else None
        if isinstance(first, Tensor) and isinstance(result, Tensor) and hasattr(first, _WEIGHTS):
            if func in _PRODUCTS:
                self._last = lambda rows: first[..., rows, :], args[1]
            else:  # in another layout, or without the sink's
                setattr(result, _WEIGHTS, True)
        return result


def fused_scores(query: Tensor, key: Tensor, given: Mapping[str, Any], rows: slice) -> Tensor:
    """Return the scores (..., head, row, key) that torch's fused attention puts into its softmax.

    query: (..., head, query, dim). key: (..., head, key, dim), of as many heads or of fewer.
    given: the other arguments by name. rows: the wanted queries.
    """
    mask, scale = given.get("attn_mask"), given.get("scale")
    size = query.shape[-2], key.shape[-2]
    if given.get("is_causal"):
        mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query[..., rows, :].float() @ key.float().mT
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if isinstance(mask, Tensor):
        mask = mask.expand(*mask.shape[:-2], *size)[..., rows, :]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
    found: Tensor = scores
    return found
