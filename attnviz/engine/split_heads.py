"""The heads of a layer that is split over processes, put together (tensor parallelism).

Process r of n has the heads r·H/n … (r+1)·H/n of a layer of H heads. Whether it has a part or all
of them is told by their number: what reads them, the output projection, still says how wide all
heads are together. Some plans of transformers leave every head in every process.

All processes make the same calls in the same order, and get the same numbers: each of them then
takes the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnviz.errors import UnsupportedError
from attnviz.measures.reduced import Equals, Reduced, ReducedLayer
from attnviz.measures.rows import Columns, Weights
from attnviz.models.split import is_split, mesh_of
from attnviz.records import Bools, Ints


@dataclass(frozen=True)
class HeadSplit:
    """How the heads of a layer are split over processes, and which part is in this process.

    size: how many processes. rank: the index of this one. group: their torch.distributed group.
    """

    size: int
    rank: int
    group: Any

    def whole(self, part: Tensor, axis: int = 1) -> Tensor:
        """Return ``part`` joined with those of all processes along ``axis``, that of the heads."""
        part = part.detach().contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part, group=self.group)
        return torch.cat(parts, axis)

    def part(self, whole: Tensor, axis: int = 1) -> Tensor:
        """Return this process's heads from ``whole``, a tensor of all heads along ``axis``."""
        return whole.chunk(self.size, axis)[self.rank]


def split_of(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> HeadSplit | None:
    """Return how a module's heads are split, or None; UnsupportedError if that cannot be told."""
    mesh = mesh_of(module)
    if mesh is None:
        return None
    here, size = query.shape[1], mesh.size()
    read = {inputs // value.shape[-1] for inputs in _read_by_parts(module)}
    if not read or (here in read and here * size not in read):
        return None  # what is not read by parts is read whole
    groups = getattr(module, "num_key_value_groups", None)
    if here * size not in read or groups not in (None, here // key.shape[1]):
        raise UnsupportedError(
            f"{type(module).__name__} has {here} query heads and {key.shape[1]} key/value heads in "
            f"this one of {size} processes: which of the model's heads these are cannot be told; "
            "take another number of processes, or load the model whole"
        )
    return HeadSplit(size, mesh.get_local_rank(), mesh.get_group())


def _read_by_parts(module: nn.Module) -> list[int]:
    """Return the numbers of inputs of the linear maps of which each process has some columns."""
    maps: list[Any] = [each for each in module.modules() if isinstance(each, nn.Linear)]
    return [
        each.in_features
        for each in maps
        if is_split(each.weight) and any(at.is_shard(1) for at in each.weight.placements)
    ]


class JoinedLayer:
    """A ``ReducedLayer`` of all processes' heads, of which each sums its own and sends the sums."""

    def __init__(self, layer: ReducedLayer, split: HeadSplit, device: torch.device) -> None:
        self._layer, self._split, self._device = layer, split, device
        self.heads = layer.heads * split.size
        self.first, self.past = layer.first, layer.past

    def parts(self, numbers: int) -> Iterator[tuple[Sequence[int], JoinedLayer]]:
        own = self._layer.heads
        for heads, part in self._layer.parts(numbers):
            of_all = [rank * own + head for rank in range(self._split.size) for head in heads]
            yield of_all, JoinedLayer(part, self._split, self._device)

    def reduced(
        self,
        columns: Columns,
        buckets: int | None = None,
        equals: Equals | None = None,
        *,
        far: bool = False,
    ) -> Reduced:
        found = self._layer.reduced(columns, buckets, equals, far=far)
        parts: Any = (None if part is None else self._joined(part) for part in found)
        return Reduced(*parts)

    def rows(self, start: int, stop: int) -> Weights:
        return self._joined(self._layer.rows(start, stop))

    def outputs(self, queries: Sequence[int]) -> Weights:
        return self._joined(self._layer.outputs(queries))

    def strongest(self, number: int, hidden: Bools) -> list[list[tuple[float, int, int]]]:
        parts: list[Any] = [None] * self._split.size
        mine = self._layer.strongest(number, hidden)
        dist.all_gather_object(parts, mine, group=self._split.group)
        return [head for part in parts for head in part]

    def single(self, keys: Ints) -> Weights:
        return self._joined(self._layer.single(keys))

    def sources(self, shares: Weights) -> Weights:
        return self._joined(self._layer.sources(shares)[None]).mean(0)

    def _joined(self, part: Weights) -> Weights:
        sent = torch.as_tensor(part).to(self._device)
        return self._split.whole(sent, 0).cpu().numpy()
