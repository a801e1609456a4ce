"""Tensors of any float type in the one type of a computation, converted when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.floating]

_MOST_COPIED = 2**26
"""Bytes of converted tensors that are kept: more are converted in each run, a layer at a time."""


class LazyTensors(Mapping[str, Floats]):
    """Tensors by their names, each read when it is taken."""

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
    """Tensors by their names, each taken from the mapping when it is first needed.

    Tensors of files stay mapped, copies of them are kept as long as they are small together.

    stored: as they are, by their names.
    """

    def __init__(self, stored: Mapping[str, Floats], dtype: DTypeLike) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.stored = stored
        self._names = frozenset(stored)
        self._tables: dict[str, Floats] = {}
        self._kept: dict[str, Floats] = {}
        self._copied = 0
        self._most = _MOST_COPIED

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Floats:
        if name in self._kept:
            return self._kept[name]
        tensor = self.stored[name].astype(self.dtype, copy=False)
        copied = self._copied + (0 if _is_mapped(tensor) else tensor.nbytes)
        if copied <= self._most:
            self._copied = copied
            self._kept[name] = tensor
        return tensor

    def keep(self, most: int) -> None:
        """From now on keep converted tensors of up to so many bytes, if that is more."""
        self._most = max(self._most, most)

    def optional(self, name: str) -> Floats | None:
        """Return the tensor, None if there is none."""
        return self[name] if name in self._names else None

    def rows(self, name: str, rows: NDArray[np.integer] | slice) -> Floats:
        """Rows of a table, gathered before they are converted: a text uses few of them."""
        if name not in self._tables:
            self._tables[name] = self.stored[name]
        gathered: Floats = self._tables[name][rows].astype(self.dtype)
        return gathered


def _is_mapped(array: object) -> bool:
    """Return whether an array's numbers are those of a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap)
