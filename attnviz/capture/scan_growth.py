"""A batch that starts as one text and grows at each block by a copy for every removal that begins.

Removing a head changes nothing before its layer, so all removals share what comes before. A block
is the nearest module above an attention that is an entry of a ``ModuleList``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from attnviz.capture.removal_projection import enclosing_block
from attnviz.capture.removal_sites import LostTrackError, Site, Sites

__all__ = ["STRATEGIES", "BlockCall", "Growth", "RecordBlocks", "Strategy"]

Path: TypeAlias = tuple[int | str, ...]

Strategy = Literal["leave", "expand", "fold"]
"""What becomes of a block's other arguments that have one row, such as masks and positions.

leave: they stay, and broadcast.
expand: they get as many rows as the batch, as views.
fold: so they do, and those with a row for each head are repeated for each text.
"""

STRATEGIES: tuple[Strategy, ...] = ("leave", "expand", "fold")


@dataclass(frozen=True)
class BlockCall:
    """One call of a block in a pass over one text.

    hidden: where among its arguments the residual stream (1, token, width) is.
    single: where other tensors of one row are.
    folded: where tensors are whose rows are heads.
    """

    block: nn.Module
    hidden: Path
    single: frozenset[Path]
    folded: frozenset[Path]


class RecordBlocks:
    """Takes down the calls of the blocks in a pass over one text, as an editor of its sites.

    calls: in order.
    entries: for each site of the pass, the number of the block call around it.
    """

    def __init__(self, root: nn.Module, sites: Sites) -> None:
        self._around = enclosing_block(root)
        self._heads = {site.heads for site in sites.found}
        self._blocks = {
            id(block): block
            for site in sites.found
            if (block := self._around.get(id(site.module))) is not None
        }
        self.calls: list[BlockCall] = []
        self.entries: list[int] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while this is open."""
        with _before_each(self._blocks, self._enter):
            yield

    def edit(self, number: int, site: Site, outputs: Tensor) -> Tensor:
        block = self._around.get(id(site.module))
        if not self.calls or self.calls[-1].block is not block:
            raise LostTrackError("an attention runs outside of a block")
        self.entries.append(len(self.calls) - 1)
        return outputs

    def _enter(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tensors: dict[Path, Tensor] = {}
        _mapped((args, kwargs), lambda path, tensor: tensors.setdefault(path, tensor))
        hidden = next((path for path, tensor in tensors.items() if _is_hidden(path, tensor)), None)
        if hidden is None:
            raise LostTrackError("a block has no hidden states among its arguments")
        single = {path for path, tensor in tensors.items() if tensor.ndim > 1 and len(tensor) == 1}
        folded = {
            path
            for path, tensor in tensors.items()
            if tensor.ndim == 3 and len(tensor) in self._heads
        }
        self.calls.append(
            BlockCall(block, hidden, frozenset(single - {hidden}), frozenset(folded - {hidden}))
        )
        return args, kwargs


class Growth:
    """Grows the batch of each pass while it is ``growing``.

    calls: the block calls of a pass, as recorded.
    added: how many copies of row 0 to append, by the number of a block call.
    """

    def __init__(
        self, calls: tuple[BlockCall, ...], added: Mapping[int, int], strategy: Strategy
    ) -> None:
        self._calls = calls
        self._added = added
        self._strategy = strategy
        self._next = 0
        self._rows = 1

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Grow one pass while this is open."""
        with _before_each({id(call.block): call.block for call in self._calls}, self._enter):
            yield

    def _enter(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = self._calls[self._next] if self._next < len(self._calls) else None
        if call is None or call.block is not block:
            raise LostTrackError("the blocks run in another order than in the first pass")
        before = self._rows
        self._rows += self._added.get(self._next, 0)
        self._next += 1

        def grow(path: Path, tensor: Tensor) -> Tensor:
            if path == call.hidden:
                return _with_rows(tensor, before, self._rows)
            if path in call.single and len(tensor) == 1:
                rows = -1 if self._strategy == "leave" else self._rows
                return tensor.expand(rows, *(-1,) * (tensor.ndim - 1))
            if path in call.single and len(tensor) == before:
                return _with_rows(tensor, before, self._rows)
            if self._strategy == "fold" and path in call.folded:
                return tensor.repeat(self._rows, *(1,) * (tensor.ndim - 1))
            return tensor

        if self._rows == 1:
            return args, kwargs
        grown: tuple[tuple[Any, ...], dict[str, Any]] = _mapped((args, kwargs), grow)
        return grown


def _with_rows(tensor: Tensor, before: int, after: int) -> Tensor:
    """The tensor with copies of its first row appended."""
    if len(tensor) not in (1, before):
        raise LostTrackError(f"expected a batch of {before} rows, got {len(tensor)}")
    if len(tensor) == after:
        return tensor
    return torch.cat([tensor, tensor[:1].expand(after - len(tensor), *tensor.shape[1:])])


def _is_hidden(path: Path, tensor: Tensor) -> bool:
    where, name = path[:2]
    return (
        tensor.ndim == 3
        and len(tensor) == 1
        and tensor.is_floating_point()
        and (where == 0 or name == "hidden_states")
    )


def _mapped(value: Any, change: Callable[[Path, Tensor], Any], path: Path = ()) -> Any:
    """A copy of nested tuples, lists and dicts in which each tensor is changed."""
    if isinstance(value, Tensor):
        return change(path, value)
    if type(value) in (tuple, list):
        entries = [_mapped(entry, change, (*path, at)) for at, entry in enumerate(value)]
        return type(value)(entries)
    if type(value) is dict:
        return {key: _mapped(entry, change, (*path, key)) for key, entry in value.items()}
    return value


@contextmanager
def _before_each(
    blocks: Mapping[int, nn.Module],
    enter: Callable[
        [nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]
    ],
) -> Iterator[None]:
    with ExitStack() as hooks:
        for block in blocks.values():
            hook = block.register_forward_pre_hook(enter, with_kwargs=True)
            hooks.callback(hook.remove)
        yield
