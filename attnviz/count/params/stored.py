"""In which dtypes a checkpoint's weights are stored, from the headers of its safetensors files.

A file begins with the length of its header, eight bytes, then the header: JSON that names each
tensor with its dtype and shape. No tensor is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.errors import LoadError
from attnviz.models.checkpoint_files import file_names, weight_files
from attnviz.reading import parse_json

_FLOATS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_LENGTH = 8
_LONGEST = 10**8
"""The format allows no longer header."""


class Stored(NamedTuple):
    """What the files of a checkpoint hold.

    numbers: how many of each dtype, floating point alone, those there are most of first.
    bytes: of all tensors. packed: of those in whole numbers, as of quantised weights.
    """

    numbers: Mapping[str, int] = {}
    bytes: int = 0
    packed: int = 0

    @property
    def quantised(self) -> bool:
        """Whether most of it is packed, so that its numbers are not one each."""
        return 2 * self.packed > self.bytes


def stored_weights(directory: Path) -> Stored:
    """What the weights that lie in a directory are stored in; nothing where no header tells."""
    numbers: Counter[str] = Counter()
    every = packed = 0
    try:
        files = weight_files("", file_names(directory), directory.joinpath, False)
        tensors = [tensor for file in files for tensor in _tensors(directory / file)]
    except (LoadError, OSError):  # loading says what is wrong; counting needs no weights
        return Stored()
    for kind, shape, size in tensors:
        every += size
        if kind in _FLOATS:
            numbers[_FLOATS[kind]] += math.prod(shape)
        else:
            packed += size
    return Stored(dict(numbers.most_common()), every, packed)


def _tensors(path: Path) -> Iterator[tuple[str, list[int], int]]:
    """Dtype, shape and bytes of each tensor; LoadError where the header is none."""
    if not path.is_file():  # a pipe would be waited for
        raise LoadError(f"{path.name} is no file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        content = file.read(length) if length <= _LONGEST else b""
    header: Any = parse_json(content, path.name)
    try:
        header.pop("__metadata__", None)
        for tensor in header.values():
            start, end = tensor["data_offsets"]
            shape = tensor["shape"]
            if not all(type(number) is int and number >= 0 for number in (*shape, end - start)):
                raise LoadError(f"{path.name} tells of tensors that cannot be")
            yield str(tensor["dtype"]), shape, end - start
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise LoadError(f"{path.name} has no header of tensors") from error
