"""One call of an attention function as transformers makes it, and who answers it in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnviz.models.attention_interface import FoundAttention, answering

__all__ = ["AttentionCall", "AttentionRun", "active"]


class AttentionRun(Protocol):
    """What takes the attention calls of this thread while it is ``active``."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """The call's output (batch, query, heads, dims) and weights, or None for these."""
        ...


@contextmanager
def active(run: AttentionRun) -> Iterator[None]:
    """Let ``run`` take the attention calls that this thread makes."""
    with answering(lambda found: partial(_attend, run, found)):
        yield


def _attend(
    run: AttentionRun,
    found: FoundAttention,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function: query (batch, heads, query, dims) to (batch, query, heads, dims)."""
    return run.attend(AttentionCall(module, query, key, value, attention_mask, options, found))


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention function, as transformers makes it.

    found: the functions that could answer it.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    found: FoundAttention

    def own(self) -> tuple[Tensor, Tensor | None]:
        """As the model itself computes it."""
        return self._by(self.found.own, self.mask)

    def eager(self) -> tuple[Tensor, Tensor | None]:
        """The same by the function that computes weights."""
        return self._by(self.found.eager, self.additive_mask())

    def _by(self, function: Any, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        output: tuple[Tensor, Tensor | None] = function(
            self.module, self.query, self.key, self.value, mask, **self.options
        )
        return output

    @property
    def is_causal(self) -> bool:
        """The rule of transformers' fused function: without a mask the module itself says it."""
        said = self.options.get("is_causal")
        own = getattr(self.module, "is_causal", True) if said is None else said
        alone = self.found.is_fused and self.mask is None
        return alone and self.query.shape[2] > 1 and bool(own)

    def additive_mask(self) -> Tensor | None:
        """The mask as eager attention takes it: what is added to the scores."""
        seen = self.mask
        if self.is_causal:
            size = self.query.shape[2], self.key.shape[2]
            seen = torch.ones(size, dtype=torch.bool, device=self.query.device).tril()[None, None]
        if seen is None or seen.dtype != torch.bool:
            return seen
        nothing = torch.zeros((), dtype=self.query.dtype, device=seen.device)
        return torch.where(seen, nothing, torch.finfo(self.query.dtype).min)
