"""Reads the dtypes of a checkpoint's parameters from the headers of its safetensors files.

A file begins with the length of its header in eight bytes, followed by the header: JSON with the
dtype and shape of each tensor. No tensor is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from attnviz.errors import LoadError
from attnviz.models.checkpoint_files import file_names, tensor_header, weight_files
from attnviz.reading import damaged

_FLOATS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_AXES = 64
"""The most axes of a tensor."""


class StoredWeights(NamedTuple):
    """The numbers of values and bytes that the weight files of a checkpoint contain.

    numbers: how many numbers have each floating-point dtype, the most frequent first.
    bytes: of all tensors. packed: the bytes of integer tensors, such as quantised weights.
    """

    numbers: Mapping[str, int] = {}
    bytes: int = 0
    packed: int = 0

    @property
    def quantised(self) -> bool:
        """Return True if most bytes are packed, so that one stored number is not one parameter."""
        return 2 * self.packed > self.bytes


def stored_weights(directory: Path) -> StoredWeights:
    """Return the dtypes and bytes in the weight files of a directory.

    Empty if no header can be read.
    """
    numbers: Counter[str] = Counter()
    every = packed = 0
    try:
        files = weight_files("", file_names(directory), directory.joinpath, False)
        tensors = [tensor for file in files for tensor in _tensors(directory / file)]
    except (LoadError, OSError):  # loading reports what is wrong; counting needs no weights
        return StoredWeights()
    for kind, shape, size in tensors:
        every += size
        if kind in _FLOATS:
            numbers[_FLOATS[kind]] += math.prod(shape)
        else:
            packed += size
    return StoredWeights(dict(numbers.most_common()), every, packed)


def _tensors(path: Path) -> Iterator[tuple[str, list[int], int]]:
    """Yield the dtype, the shape and the bytes of each tensor in a file.

    Raises LoadError for an invalid header.
    """
    if not path.is_file():  # opening a pipe would wait
        raise LoadError(f"{path.name} is no file")
    with damaged(path.name):
        for tensor in tensor_header(path)[1].values():
            start, end = tensor["data_offsets"]
            shape = tensor["shape"]
            numbers = (*shape, end - start)
            if len(shape) > _AXES or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
                raise LoadError(f"{path.name} tells of tensors that cannot be")
            yield str(tensor["dtype"]), shape, end - start
