"""Notice attention that a model computes by itself, by the softmax that it must contain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["IncompleteError", "SoftmaxWatch", "StrayAttention"]

_SOFTMAX = {functional.softmax, torch.softmax, torch.Tensor.softmax}
_FUSED = functional.scaled_dot_product_attention


class IncompleteError(Exception):
    """Our function does not see one call per layer. Ends the pass; never leaves ``capture``."""


class SoftmaxWatch(TorchFunctionMode):
    """While active, every softmax over keys and every fused attention is handed to ``notice``.

    batch: how many texts run; a softmax over experts or classes has that many rows, or none.
    lengths: the numbers of tokens that an axis over queries or keys can have.
    """

    def __init__(self, batch: int, lengths: Collection[int]) -> None:
        super().__init__()
        self._batch = batch
        self._lengths = lengths

    def notice(self, scores: Sequence[int], compute: Callable[[], Tensor]) -> Tensor:
        """Answer one call in place of ``compute``, which would compute it.

        scores: the shape (..., query, key) of what goes into the softmax.
        """
        raise NotImplementedError

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is _FUSED:
            query, key = (args[i] if len(args) > i else kwargs[n] for i, n in _FUSED_INPUTS)
            shape = (*query.shape[:-1], key.shape[-2])
        elif func in _SOFTMAX and self._is_scores(args, kwargs):
            shape = (args[0] if args else kwargs["input"]).shape
        else:
            return func(*args, **kwargs)
        return self.notice(shape, lambda: func(*args, **kwargs))

    def _is_scores(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        scores: Tensor = args[0] if args else kwargs["input"]
        if scores.ndim < 3 or (scores.ndim == 3 and scores.shape[0] <= self._batch):
            return False
        return scores.shape[-1] in self._lengths and scores.shape[-2] in self._lengths


_FUSED_INPUTS = ((0, "query"), (1, "key"))


class StrayAttention(SoftmaxWatch):
    """While active, attention that our function did not make raises IncompleteError.

    Set ``allowed`` while the observed function itself runs.
    """

    def __init__(self, batch: int, lengths: Collection[int]) -> None:
        super().__init__(batch, lengths)
        self.allowed = False

    def notice(self, scores: Sequence[int], compute: Callable[[], Tensor]) -> Tensor:
        if not self.allowed:
            raise IncompleteError
        return compute()
