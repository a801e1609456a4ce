"""A batch that starts as one text and grows at each block by a copy for every ablation that begins.

Ablating a head changes nothing before its layer, so all ablations share the layers before. A block
is called on a few rows at a time, so that its buffers are reused memory; buffers of the whole batch
would be new each time. Copies that begin may share one row up to their attention, and the last
block may continue with the last tokens only.

A pass over one text is recorded first, to find rows and tokens among a block's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from attnviz.engine.hook_points import (
    HookedCall,
    HookPoints,
    enclosing_block,
    first_of,
    hooked,
    with_first,
)
from attnviz.engine.patching import What
from attnviz.engine.replacing import LostTrackError, RowEdit

SideInputs: TypeAlias = Literal["leave", "expand", "fold"]
"""How a block's other arguments that have one row, such as masks and positions, are treated.

leave: they stay unchanged and broadcast. expand: they become views with as many rows as the batch.
fold: as expand, and tensors with a row for each head are repeated for each text."""


@dataclass(frozen=True)
class Strategy:
    """The way in which the rows of a batch are passed to a model's blocks.

    side_inputs: how the arguments other than the residual stream are treated.
    late: True lets new copies share one row until their attention puts out a row for each of them;
        not in blocks with several attentions.
    """

    side_inputs: SideInputs
    late: bool


_SIDE_INPUTS: tuple[SideInputs, ...] = ("leave", "expand", "fold")

STRATEGIES: tuple[Strategy, ...] = tuple(
    Strategy(side_inputs, late) for side_inputs, late in product(_SIDE_INPUTS, (True, False))
)


@dataclass(frozen=True)
class Inside:
    """The values that an intervention edits in addition to the outputs of heads.

    attention: the tensors inside attention calls: query, key, value, pattern.
    residual: by the index of a block call, the layer whose residual stream enters the block.
    feed_forward: by the index of a block call, the layer whose feed-forward output follows.
    modules: those that put these feed-forward outputs out.
    """

    attention: frozenset[What] = frozenset()
    residual: Mapping[int, HookedCall] = field(default_factory=dict)
    feed_forward: Mapping[int, HookedCall] = field(default_factory=dict)
    modules: tuple[nn.Module, ...] = ()


class _AttendedError(Exception):
    """Raised to end the call of a block at its attention, once its outputs are known."""


class BatchExpansion:
    """Grows the batch of one pass by copies of its first row, which an intervention then edits.

    calls: the block calls of a pass, as recorded.
    entries: for each attention call, the index of the block call around it.
    added: how many copies of row 0 to append, by the index of a block call.
    intervention: edits the rows. at_once: the most rows that a block is called on. kept: for how
        many last tokens the last block computes results, where others become zero; None is all.
    inside: what is edited in addition to heads' outputs.
    order: the indices of the attention calls in the order in which they now run.
    Raises LostTrackError if the batch cannot grow in this way.
    """

    def __init__(
        self,
        calls: Sequence[BlockCall],
        entries: Sequence[int],
        added: Mapping[int, int],
        strategy: Strategy,
        intervention: RowEdit,
        at_once: int,
        kept: int | None = None,
        inside: Inside | None = None,
    ) -> None:
        self._calls, self._inside = calls, inside or Inside()
        self._strategy, self._intervention, self._kept = strategy, intervention, kept
        within = [[at for at, call in enumerate(entries) if call == n] for n in range(len(calls))]
        alone = {call for call, points in enumerate(within) if len(points) == 1}
        if kept and len(calls) - 1 not in alone:
            raise LostTrackError("the last block has more than one attention")
        self._parts: list[list[_Part]] = []
        rows = 1
        for call in range(len(calls)):
            late = strategy.late and call in alone and not self._inside.residual
            new = _parts(rows, added.get(call, 0), at_once, begins=True, late=late)
            self._parts.append([*_parts(0, rows, at_once), *new])
            rows += added.get(call, 0)
        self._next = self._tokens = 0
        self._part = _Part(0, 1)
        self._attended: Tensor | None = None
        self._stage: Literal["through", "attend", "go on"] = "through"
        self.order = tuple(
            point
            for call, (points, parts) in enumerate(zip(within, self._parts, strict=True))
            for point in points * len(parts) * (2 if self._is_cut(call) else 1)
        )

    @contextmanager
    def expanding(self) -> Iterator[None]:
        """Grow the batch of the pass that runs inside this context."""
        with ExitStack() as restored:
            for block in {id(call.block): call.block for call in self._calls}.values():
                own = vars(block)
                before = {"forward": own["forward"]} if "forward" in own else {}
                restored.callback(own.update, before)
                restored.callback(own.pop, "forward")
                own["forward"] = partial(self._run, block, block.forward)
            for module in self._inside.modules:
                restored.callback(module.register_forward_hook(self._fed).remove)
            yield

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        part, last = self._part, point.sort == "output"
        if self._stage == "go on" and point.sort != "mlp":
            assert self._attended is not None
            return self._attended if last else outputs
        # Input from another stack may be one row for the whole batch.
        if len(outputs) == 1 and (part.late or not last):
            rows = part.rows, *outputs.shape[1:]
            outputs = outputs.expand(rows).contiguous() if last else outputs.expand(rows)
        if len(outputs) != part.rows:
            raise LostTrackError(f"expected {part.rows} rows, attention put out {len(outputs)}")
        outputs = self._intervention.edit_rows(point, outputs, part.first)
        if self._stage == "attend" and last:
            assert self._kept is not None
            self._attended = outputs[:, -self._kept :].contiguous()
            raise _AttendedError
        return outputs

    def _fed(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Return a feed-forward module's edited output; it may be outside of a block."""
        point = self._inside.feed_forward.get(self._next - 1)
        added = first_of(output)
        if point is None or added is None:
            return output
        # Some models have texts and tokens in one axis.
        rows = added if added.ndim == 3 else added.view(-1, self._tokens, added.shape[-1])
        edited = self.edit(self._next - 1, point, rows[:, :, None])[:, :, 0]
        return with_first(output, edited if added.ndim == 3 else edited.flatten(0, 1))

    def _is_cut(self, call: int) -> bool:
        return self._kept is not None and call == len(self._calls) - 1

    def _run(self, block: nn.Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        number = self._next
        if number >= len(self._calls) or self._calls[number].block is not block:
            raise LostTrackError("the blocks run in another order than in the first pass")
        self._next += 1
        results = []
        for part in self._parts[number]:
            self._part = part
            own_args, own_kwargs = self._taken(number, part, (args, kwargs))
            if self._is_cut(number):
                results.append(self._cut(plain, self._calls[number], own_args, own_kwargs))
            else:
                results.append(plain(*own_args, **own_kwargs))
        rows = [part.rows for part in self._parts[number]]
        self._part = _Part(0, sum(rows))
        return _joined(results, rows)

    def _taken(self, number: int, part: _Part, arguments: Any) -> Any:
        call, side_inputs = self._calls[number], self._strategy.side_inputs
        before = sum(part.rows for part in self._parts[number] if not part.begins)
        rows = 1 if part.late else part.rows
        residual = self._inside.residual.get(number)

        def take(path: Path, tensor: Tensor) -> Tensor:
            is_hidden, is_single = path == call.hidden, path in call.single
            if is_hidden:
                self._tokens = tensor.shape[1]
            if is_hidden and len(tensor) not in (1, before):
                raise LostTrackError(f"expected a batch of {before} rows, got {len(tensor)}")
            if is_hidden or (is_single and (side_inputs != "leave" or len(tensor) == before > 1)):
                # Another stack of the model may start with one row again.
                if len(tensor) == 1 or part.begins:
                    tensor = tensor[:1].expand(rows, *tensor.shape[1:])
                else:
                    tensor = tensor[part.first : part.first + rows]
                if residual is None or not is_hidden:
                    return tensor
                whole = tensor[:, :, None]
                edited: Tensor = self._intervention.edit_rows(residual, whole, part.first)
                return edited[:, :, 0]
            if path in call.folded and side_inputs == "fold":
                return tensor.repeat(rows, *(1,) * (tensor.ndim - 1))
            return tensor

        return mapped(arguments, take)

    def _cut(
        self, plain: Callable[..., Any], call: BlockCall, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run a block up to its attention, then on with the last tokens and its new result."""
        kept, tokens = self._kept or 0, self._tokens

        def shorten(path: Path, tensor: Tensor) -> Tensor:
            for axis in call.token_axes.get(path, ()):
                tensor = tensor.narrow(axis, tensor.shape[axis] - kept, kept)
            return tensor

        def lengthen(path: Path, tensor: Tensor) -> Tensor:
            if tensor.ndim != 3 or tensor.shape[1] != kept:
                return tensor
            whole = tensor.new_zeros(len(tensor), tokens, tensor.shape[2])
            whole[:, -kept:] = tensor
            return whole

        self._stage = "attend"
        try:
            plain(*args, **kwargs)
        except _AttendedError:
            pass
        else:
            raise LostTrackError("a block ran without its attention")
        self._stage, self._tokens = "go on", kept
        args, kwargs = mapped((args, kwargs), shorten)
        result = plain(*args, **kwargs)
        self._stage, self._tokens = "through", tokens
        return mapped(result, lengthen)


@dataclass(frozen=True)
class _Part:
    """Some rows of a batch that run at once; copies that begin may be one row up to attention."""

    first: int
    rows: int
    begins: bool = False
    late: bool = False


def _parts(first: int, rows: int, at_once: int, **options: bool) -> Iterator[_Part]:
    for start in range(first, first + rows, at_once):
        yield _Part(start, min(at_once, first + rows - start), **options)


def _joined(results: Sequence[Any], rows: Sequence[int]) -> Any:
    """Return the result of a block for all its rows, joined from its results for parts of them."""
    whole = results[0]
    if len(results) == 1:
        return whole
    if isinstance(whole, Tensor):
        broadcasts = whole.ndim == 0 or (
            all(len(result) == 1 for result in results) and max(rows) > 1
        )
        return whole if broadcasts else torch.cat(list(results))
    if type(whole) in (tuple, list):
        return type(whole)(_joined(parts, rows) for parts in zip(*results, strict=True))
    if type(whole) is dict:
        return {key: _joined([result[key] for result in results], rows) for key in whole}
    return whole


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
        self._heads = {point.heads for point in points.calls}
        self._blocks = {
            id(block): block
            for point in points.calls
            if (block := self._around.get(id(point.module))) is not None
        }
        self.calls: list[BlockCall] = []
        self.entries: list[int] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the block calls of a pass that runs inside this context."""
        blocks = self._blocks.values()
        with hooked(*(b.register_forward_pre_hook(self._enter, with_kwargs=True) for b in blocks)):
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
        single = {path for path, tensor in tensors.items() if tensor.ndim > 1 and len(tensor) == 1}
        streams = (
            path
            for path, tensor in tensors.items()
            if path in single and tensor.ndim == 3 and tensor.is_floating_point()
            if path[0] == 0 or path[1] == "hidden_states"
        )
        if (hidden := next(streams, None)) is None:
            raise LostTrackError("a block has no hidden states among its arguments")
        of_heads = ((path, tensor) for path, tensor in tensors.items() if tensor.ndim == 3)
        folded = {path for path, tensor in of_heads if len(tensor) in self._heads}
        tokens = tensors[hidden].shape[1]
        axes = {
            path: tuple(axis for axis, size in enumerate(tensor.shape) if size == tokens)
            for path, tensor in tensors.items()
        }
        single, folded = single - {hidden}, folded - {hidden}
        self.calls.append(BlockCall(block, hidden, frozenset(single), frozenset(folded), axes))


def mapped(value: Any, change: Callable[[Path, Tensor], Any], path: Path = ()) -> Any:
    """Return a copy of nested containers with ``change(path, tensor)`` for each tensor."""
    if isinstance(value, Tensor):
        return change(path, value)
    if type(value) in (tuple, list):
        entries = [mapped(entry, change, (*path, at)) for at, entry in enumerate(value)]
        return type(value)(entries)
    if type(value) is dict:
        return {key: mapped(entry, change, (*path, key)) for key, entry in value.items()}
    return value
