"""Record the calls of a model's blocks: which axes of their arguments are rows and tokens.

A block is the nearest module above an attention that is an entry of a ``ModuleList``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from attnviz.engine.hook_points import HookedCall, HookPoints, enclosing_block
from attnviz.engine.replacing import LostTrackError

Path: TypeAlias = tuple[int | str, ...]
"""A place in nested arguments: (0, position, …) or (1, keyword, …)."""


@dataclass(frozen=True)
class BlockCall:
    """One call of a block in a pass over one text: the meaning of each of its arguments.

    An argument is named by a path into the nested arguments.
    hidden: the path of the residual stream (1, token, width).
    single: the paths of other tensors of one row.
    folded: the paths of tensors whose rows are heads.
    token_axes: for each path the axes of its tensor that are as long as the text.
    """

    block: nn.Module
    hidden: Path
    single: frozenset[Path]
    folded: frozenset[Path]
    token_axes: dict[Path, tuple[int, ...]]


class RecordBlocks:
    """Records the calls of a model's blocks in a pass over one text, as an intervention.

    root: the module whose forward is a pass. points: the attention calls of the pass.
    calls: the block calls in order. entries: for each attention call, the index of the block call
        around it.
    """

    def __init__(self, root: nn.Module, points: HookPoints) -> None:
        self._around = enclosing_block(root)
        self._heads = {point.heads for point in points.found}
        self._blocks = {
            id(block): block
            for point in points.found
            if (block := self._around.get(id(point.module))) is not None
        }
        self.calls: list[BlockCall] = []
        self.entries: list[int] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the block calls of a pass that runs inside this context."""
        with ExitStack() as hooks:
            for block in self._blocks.values():
                hook = block.register_forward_pre_hook(self._enter, with_kwargs=True)
                hooks.callback(hook.remove)
            yield

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        block = self._around.get(id(point.module))
        if not self.calls or self.calls[-1].block is not block:
            raise LostTrackError("an attention runs outside of a block")
        self.entries.append(len(self.calls) - 1)
        return outputs

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors: dict[Path, Tensor] = {}
        mapped((args, kwargs), lambda path, tensor: tensors.setdefault(path, tensor))
        hidden = next((path for path, tensor in tensors.items() if _is_hidden(path, tensor)), None)
        if hidden is None:
            raise LostTrackError("a block has no hidden states among its arguments")
        tokens = tensors[hidden].shape[1]
        single = {path for path, tensor in tensors.items() if tensor.ndim > 1 and len(tensor) == 1}
        folded = {
            path
            for path, tensor in tensors.items()
            if tensor.ndim == 3 and len(tensor) in self._heads
        }
        self.calls.append(
            BlockCall(
                block,
                hidden,
                frozenset(single - {hidden}),
                frozenset(folded - {hidden}),
                {
                    path: tuple(axis for axis, size in enumerate(tensor.shape) if size == tokens)
                    for path, tensor in tensors.items()
                },
            )
        )


def mapped(value: Any, change: Callable[[Path, Tensor], Any], path: Path = ()) -> Any:
    """Return a copy of nested tuples, lists and dicts with each tensor replaced.

    change: receives a tensor's path and the tensor, and returns the replacement. path: that of
        ``value`` itself in the outermost object.
    """
    if isinstance(value, Tensor):
        return change(path, value)
    if type(value) in (tuple, list):
        entries = [mapped(entry, change, (*path, at)) for at, entry in enumerate(value)]
        return type(value)(entries)
    if type(value) is dict:
        return {key: mapped(entry, change, (*path, key)) for key, entry in value.items()}
    return value


def _is_hidden(path: Path, tensor: Tensor) -> bool:
    where, name = path[:2]
    return (
        tensor.ndim == 3
        and len(tensor) == 1
        and tensor.is_floating_point()
        and (where == 0 or name == "hidden_states")
    )
