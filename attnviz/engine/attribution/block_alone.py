"""A block of layers that runs again up to its attention, with another stream than it was given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnviz.engine.attention_calls import Attended, AttentionCall, taking_calls
from attnviz.engine.attribution.own_scores import ReachedError, own_scores, wide_array
from attnviz.engine.attribution.read_columns import ReadColumns
from attnviz.engine.hook_points import HookedCall
from attnviz.engine.scan.plan import MISFITS
from attnviz.records import Floats, Input


class EnteredBlock(NamedTuple):
    """A recorded call of a block: its module, the entering residual stream, all its arguments."""

    block: nn.Module
    stream: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def on(self, stream: Tensor) -> Callable[[], object]:
        """Return a function that repeats the call with another residual stream."""
        if self.args:
            return partial(self.block, stream, *self.args[1:], **self.kwargs)
        return partial(self.block, **{**self.kwargs, "hidden_states": stream})


class BlockAlone:
    """Computes one head's query and keys from any residual stream that enters its block.

    call: the recorded call of the block. point: the head's attention call. given: the text.
    by_product: True finds query and keys as the factors of the scores, in a model that computes
        attention by itself. head, query: the indices of the head and of the query's token.
    """

    def __init__(
        self,
        call: EnteredBlock,
        point: HookedCall,
        given: Input,
        *,
        by_product: bool,
        head: int,
        query: int,
    ) -> None:
        self._call, self._point, self._given, self._by_product = call, point, given, by_product
        self._place = head, query
        self._columns = ReadColumns()
        self.stream = call.stream.detach()
        if not by_product:
            self._learn()

    def _learn(self) -> None:
        """Find out what of the block is read; all of it if that does not show in derivatives.

        So it is where a router of a mixture of experts stands in front of the attention.
        """
        whole = self._run(self.stream.clone().requires_grad_())
        if whole is None or not all(one.requires_grad for one in whole):
            return
        self._columns.learn(whole)
        again = self._run(self.stream)
        if again is None or not all(
            one.isfinite().all()
            and torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(one.detach().abs().max()))
            for one, other in zip(whole, again, strict=True)
        ):
            self._columns = ReadColumns()

    def read(self, stream: Tensor) -> tuple[Floats, Floats] | None:
        """Return query (dim,) and keys (token, dim) for a stream; None if the block cannot run."""
        found = self._run(stream)
        if found is None:
            return None
        return wide_array(found[0]), wide_array(found[1])

    def _run(self, stream: Tensor) -> tuple[Tensor, Tensor] | None:
        head, query = self._place
        run = self._call.on(stream)
        if self._by_product:
            own = None
            with suppress(*MISFITS):  # such as those of XLM, which keeps the keys of the first call
                own = own_scores(run, self._given, 0)
            if own is None:
                return None
            return own.query[head, query], own.key[head // (len(own.query) // len(own.key))]
        seen: list[tuple[Tensor, Tensor]] = []

        def attend(call: AttentionCall) -> Attended:
            if call.module is not self._point.module:
                return call.own()
            shared = call.query.shape[1] // call.key.shape[1]
            seen.append((call.query[0, head, query], call.key[0, head // shared]))
            raise ReachedError

        learning = torch.set_grad_enabled(stream.requires_grad)
        with suppress(ReachedError), learning, taking_calls(attend), self._columns:
            run()
        return seen[0] if seen else None
