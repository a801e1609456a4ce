"""The scores, weights and values of attention that a model computes by itself, such as BLOOM's.

Such a model hands no queries and keys over. They are the two factors of the last product before the
softmax over keys, or what torch's fused attention is given. What the model makes of that product is
found by two passes: as it is, and with the product at zero. The second gives what is added to the
scores, such as a bias by distance (Press et al. 2022, "Train Short, Test Long", ALiBi) and the
mask; the difference gives the scale.

A head's output is z_i = Σ_j α_ij v_j. The weights are the result of the softmax; the values are
what these are then multiplied by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from attnviz.engine.attention_calls import FUSED_INPUTS, HIDING, Compute, SoftmaxWatch
from attnviz.engine.attribution.scores import SplitScores
from attnviz.engine.device_sizes import widest
from attnviz.engine.hook_points import Function, HookedCall, name_of, named
from attnviz.measures.rows import all_on_host
from attnviz.records import Input

_SCORING = {"matmul", "bmm", "baddbmm"}
"""The matrix products whose result may be those of queries and keys."""

_ROUNDING = 1e-4
"""By how much scores may differ from scale times product, relative to the largest."""


class ReachedError(Exception):
    """Raised inside a pass to end it where nothing later is needed; the caller catches it."""


class OwnScores(NamedTuple):
    """One attention call of a model that computes it by itself.

    query: (head, query, dim). key: (head, key, dim), of as many heads or of fewer that are shared.
    scores: (head, query, key), the input of the softmax. weights: its result, of the same shape.
    product: the index of the product of query and key among all such products of the pass.
    """

    query: Tensor
    key: Tensor
    scores: Tensor
    weights: Tensor
    product: int


class _ScoreWatch(SoftmaxWatch):
    """Ends a pass at its softmax number ``call``; a product may be one of a query of zeros."""

    def __init__(self, lengths: Sequence[int], call: int, zero: int | None) -> None:
        super().__init__(1, set(lengths))
        self._call, self._zero = call, zero
        self._products = 0
        self._factors: tuple[Tensor, Tensor] | None = None
        self.seen: OwnScores | None = None

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        factors = factors_of(func, args, kwargs)
        if factors is not None:
            self._factors = factors
            self._products += 1
            if self._products - 1 == self._zero:
                nothing = torch.zeros_like(factors[0])
                args, kwargs = tree_map(lambda x: nothing if x is factors[0] else x, (args, kwargs))
        if func is functional.scaled_dot_product_attention:
            given = named(FUSED_INPUTS, args, kwargs)
            scores = fused_scores(given, slice(None))
            self._end(scores, scores.softmax(-1))
        result = func(*args, **kwargs)
        if self.is_over_keys(func, args, kwargs):
            self._end(args[0] if args else kwargs["input"], result)
        return result

    def _end(self, scores: Tensor, weights: Tensor) -> None:
        """Count a softmax; record it and end the pass if it is the one."""
        self._call -= 1
        if self._call >= 0:
            return
        if self._factors is not None:
            (query, key), number = map(by_head, self._factors), self._products - 1
            self.seen = OwnScores(query, key, by_head(scores), by_head(weights), product=number)
        raise ReachedError


def factors_of(
    func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """Return queries and keys (..., token, dim) that a torch call may multiply, or None."""
    if func is functional.scaled_dot_product_attention:
        given = named(FUSED_INPUTS, args, kwargs)
        return given["query"], given["key"]
    if name_of(func) not in _SCORING:
        return None
    query, key = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)][-2:]
    return (query, key.mT) if query.ndim > 2 and key.ndim > 2 else None


def by_head(factor: Tensor) -> Tensor:
    """Return the queries or keys (..., token, dim) of one text as (head, token, dim)."""
    return factor.flatten(0, -3)


def own_scores(
    run: Callable[[], object], given: Input, call: int, *, zero: int | None = None
) -> OwnScores | None:
    """Return what the softmax number ``call`` of a run sees, or None; a product may be of zeros."""
    watch = _ScoreWatch((len(given.text), len(given.predicted)), call, zero)
    with suppress(ReachedError), torch.no_grad(), watch:
        run()
    return watch.seen


def own_facts(
    run: Callable[[], object], given: Input, call: int, *, head: int, query: int
) -> SplitScores | None:
    """Return a head's facts for one query without parts; None if scores are no such product."""
    own = own_scores(run, given, call)
    other = None if own is None else own_scores(run, given, call, zero=own.product)
    if own is None or other is None or own.scores.shape[0] % own.key.shape[0]:
        return None
    shared = own.scores.shape[0] // own.key.shape[0]
    products = wide_array(own.query[head] @ own.key[head // shared].mT)
    scores, fixed = wide_array(own.scores[head]), wide_array(other.scores[head])
    if scores.shape != products.shape:
        return None
    seen = fixed > HIDING
    moved, product = (scores - fixed)[seen], products[seen]
    scale = float(moved @ product) / max(float(product @ product), np.finfo(float).tiny)
    size = np.abs(scores[seen]).max(initial=1.0)
    if not np.abs(moved - scale * product).max(initial=0.0) <= _ROUNDING * size:
        return None
    keys, dim = own.key.shape[-2:]
    return SplitScores(
        parts=(),
        query=np.zeros((0, dim)),
        key=np.zeros((0, keys, dim)),
        scale=scale,
        softcap=None,
        added=np.where(seen[query], fixed[query], -np.inf),
        weights=wide_array(own.weights[head, query]),
        epsilon=torch.finfo(own.query.dtype).eps,
    )


def wide_array(tensor: Tensor) -> NDArray[np.float64]:
    """Return a tensor as an array of float64."""
    return tensor.detach().cpu().double().numpy()


def wide_arrays(tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """Return tensors as arrays of float64 of one axis each, by a single copy from a GPU."""
    return all_on_host([widest(tensor.detach().flatten().to(tensors[0])) for tensor in tensors])


# Weights and values -----------------------------------------------------------------------------

_PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}
_WEIGHTS = "are_attention_weights"
"""The mark of a tensor that holds the weights of an attention call."""


@dataclass(frozen=True)
class Mixing:
    """The weights (head, row, key) of some queries and the values (head, key, dim) of a call."""

    weights: Tensor
    values: Tensor

    def written(self, slope: Tensor) -> Tensor:
        """Return ⟨slope_i, α_ij v_j⟩ (head, row, key) for slopes (row, head, dim) of a target."""
        return self.weights * torch.einsum("ihd,hjd->hij", slope.to(self.values), self.values)


class MixingWatch(SoftmaxWatch):
    """Records the attention weights and values of the last attention call over one text."""

    def __init__(self, given: Input) -> None:
        lengths = {len(given.text), len(given.predicted)}
        # A sink may stand next to the keys.
        super().__init__(1, lengths | {length + 1 for length in lengths})
        self._last: tuple[Callable[[slice], Tensor], Tensor] | None = None

    def take(self, point: HookedCall, rows: slice) -> Mixing | None:
        """Return the mixing recorded since the last ``take``, of some queries; or None."""
        last, self._last = self._last, None
        if last is None:
            return None
        weigh, values = last
        weights, heads = weigh(rows), point.heads
        if values.shape[-2:] != (weights.shape[-1], point.dim):
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
            given = named(FUSED_INPUTS, args, kwargs)
            self._last = lambda rows: fused_scores(given, rows).softmax(-1), given["value"]
            return func(*args, **kwargs)
        result = super().call(func, args, kwargs)
        first = args[0] if args else None
        if isinstance(first, Tensor) and isinstance(result, Tensor) and hasattr(first, _WEIGHTS):
            if func in _PRODUCTS:
                self._last = lambda rows: first[..., rows, :], args[1]
            else:  # in another layout, or without the sink's
                setattr(result, _WEIGHTS, True)
        return result


def fused_scores(given: Mapping[str, Any], rows: slice) -> Tensor:
    """Return the scores (..., head, row, key) that torch's fused attention softmaxes.

    given: the arguments of torch's function by name. rows: the queries.
    """
    query, key = given["query"], given["key"]
    mask, scale = given.get("attn_mask"), given.get("scale")
    size = query.shape[-2], key.shape[-2]
    if given.get("is_causal"):
        mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query[..., rows, :].float() @ key.float().mT
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if isinstance(mask, Tensor):
        mask = mask.expand(*mask.shape[:-2], *size)[..., rows, :]
        boolean = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if boolean else scores + mask
    return scores
