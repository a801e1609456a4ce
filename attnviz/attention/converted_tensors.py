"""Stored tensors of any float type, converted to the number type of a computation when needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from mmap import mmap
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnviz.attention.functional import Floats

_MOST_COPIED = 2**26
"""Bytes of converted tensors that are kept; further tensors are converted anew in each run."""


class LazyTensors(Mapping[str, Floats]):
    """Tensors by name, each read again at every access."""

    def __init__(self, names: Collection[str], read: Callable[[str], Floats]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> Floats:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ConvertedTensors:
    """Tensors by name, read and converted at first use; of copies so many bytes are kept."""

    def __init__(self, stored: Mapping[str, Floats], dtype: DTypeLike) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.stored = stored
        self._names = frozenset(stored)
        self._tables: dict[str, Floats] = {}
        self._kept: dict[str, Floats] = {}
        self._copied = 0
        self._most = _MOST_COPIED

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor by its name."""
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Floats:
        if name in self._kept:
            return self._kept[name]
        stored = self.stored[name]
        # Products are faster with columns in a row, and a conversion costs the same either way.
        order: Literal["K", "F"] = "K" if getattr(stored, "dtype", None) == self.dtype else "F"
        tensor = stored.astype(self.dtype, order=order, copy=False)
        copied = self._copied + (0 if _is_mapped(tensor) else tensor.nbytes)
        if copied <= self._most:
            self._copied = copied
            self._kept[name] = tensor
        return tensor

    def keeps(self, name: str) -> bool:
        """Return whether a tensor is already converted and stored in memory."""
        return name in self._kept

    def keep(self, most: int) -> None:
        """Raise the memory limit for converted tensors to ``most`` bytes, if that is larger."""
        self._most = max(self._most, most)

    def optional(self, name: str) -> Floats | None:
        """Return the tensor of this name, or None if there is none."""
        return self[name] if name in self._names else None

    def rows(self, name: str, rows: NDArray[np.integer] | slice) -> Floats:
        """Return some rows of a table of embeddings; the others are not converted."""
        if name not in self._tables:
            self._tables[name] = self.stored[name]
        return self._tables[name][rows].astype(self.dtype)


def _is_mapped(array: object) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap)
