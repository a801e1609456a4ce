"""Notice attention that a model computes past the function through which it is observed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["IncompleteError", "StrayAttention"]

_SOFTMAX = {functional.softmax, torch.softmax, torch.Tensor.softmax}
_FUSED = functional.scaled_dot_product_attention


class IncompleteError(Exception):
    """Our function does not see one call per layer. Ends the pass; never leaves ``capture``."""


class StrayAttention(TorchFunctionMode):
    """While active, every softmax over keys and every fused attention raises IncompleteError.

    batch: how many texts run; a softmax over experts or classes has that many rows, or none.
    lengths: the numbers of tokens that an axis over queries or keys can have.
    Set ``allowed`` while the observed function itself runs.
    """

    def __init__(self, batch: int, lengths: Collection[int]) -> None:
        super().__init__()
        self._batch = batch
        self._lengths = lengths
        self.allowed = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not self.allowed and (
            func is _FUSED or (func in _SOFTMAX and self._is_scores(args, kwargs or {}))
        ):
            raise IncompleteError
        return func(*args, **(kwargs or {}))

    def _is_scores(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        scores: Tensor = args[0] if args else kwargs["input"]
        if scores.ndim < 3 or (scores.ndim == 3 and scores.shape[0] <= self._batch):
            return False
        return scores.shape[-1] in self._lengths and scores.shape[-2] in self._lengths
