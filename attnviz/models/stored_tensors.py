"""The tensors of complete safetensors files, mapped into memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnviz.attention.families import NotUnderstoodError
from attnviz.attention.functional import Floats

_TYPES: Mapping[str, tuple[str, np.dtype[Any]]] = {
    "F32": ("float32", np.dtype("<f4")),
    "F16": ("float16", np.dtype("<f2")),
    "BF16": ("bfloat16", np.dtype("<u2")),
}

Change = Callable[[Any], NDArray[np.float32]]
"""Returns a tensor as an adapter changes it, in float32 and in its own shape."""

# Config fields that do not affect the computation; each tensor's type is hashed itself.
_ELSEWHERE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}


def computed_from(fields: Mapping[str, Any]) -> bytes:
    """Return the fields of a config that affect the computation, as bytes to be hashed."""
    return repr(sorted((name, fields[name]) for name in fields.keys() - _ELSEWHERE)).encode()


class _Position(NamedTuple):
    """A tensor's file, its bytes from start to stop, its type in safetensors, and its shape."""

    path: Path
    start: int
    stop: int
    kind: str
    shape: tuple[int, ...]


class StoredTensors:
    """The tensors of a checkpoint's files by their names; each is read when it is first used.

    config: the fields of the ``config.json`` next to them, for the digest.
    read: the names of the tensors that were read so far.
    adapter: the tensors of an adapter, which the digest includes. changes: how it changes these
        tensors, by name; a changed tensor stays in memory.
    """

    def __init__(self, files: Sequence[Path], config: Mapping[str, Any] | None = None) -> None:
        from attnviz.models.checkpoint_files import tensor_header  # the bundled model needs none

        self._config = config or {}
        self.read: set[str] = set()
        self._mapped: WeakValueDictionary[str, np.memmap[Any, Any]] = WeakValueDictionary()
        self._positions: dict[str, _Position] = {}
        self.adapter: StoredTensors | None = None
        self.changes: Mapping[str, Change] = {}
        self._changed: dict[str, NDArray[np.float32]] = {}
        for path in files:
            begin, header = tensor_header(path)
            for name, fields in header.items():
                start, stop = (begin + offset for offset in fields["data_offsets"])
                shape = tuple(fields["shape"])
                self._positions[name] = _Position(path, start, stop, fields["dtype"], shape)

    @property
    def directory(self) -> Path:
        """Return the directory of the files."""
        return next(iter(self._positions.values())).path.parent

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor."""
        return {name: position.shape for name, position in self._positions.items()}

    def types(self, names: Sequence[str]) -> list[str]:
        """Return the tensors' stored types, such as ``float16``; NotUnderstoodError for others."""
        kinds = {self._positions[name].kind for name in names}
        if strange := kinds - _TYPES.keys():
            raise NotUnderstoodError(f"tensors are stored as {min(strange)}")
        return sorted(_TYPES[kind][0] for kind in kinds)

    def __getitem__(self, name: str) -> Floats | BFloat16:
        if name in self._changed:
            return self._changed[name]
        path, start, _, kind, shape = self._positions[name]
        self.read.add(name)
        mapped = self._mapped.get(name)  # roles may share a tensor
        if mapped is None:
            mapped = self._mapped[name] = np.memmap(path, _TYPES[kind][1], "r", start, shape)
        plain = mapped.view(np.ndarray)
        tensor = BFloat16(plain) if kind == "BF16" else plain
        if name not in self.changes:
            return tensor
        return self._changed.setdefault(name, self.changes[name](tensor))

    def not_finite(self) -> tuple[str, ...]:
        """Return the names of the tensors read so far that contain NaN or infinity."""
        with np.errstate(over="ignore"):
            return tuple(
                name
                for name in self._positions
                if name in self.read and not np.isfinite(self[name].astype(np.float32)).all()
            )

    def digest(self) -> str:
        """Return a digest of the config, and of each tensor's name, shape, type and CRC-32."""
        import hashlib  # loads OpenSSL, and few commands ask for a digest

        hashed = hashlib.sha256(computed_from(self._config))
        if self.adapter is not None:
            hashed.update(self.adapter.digest().encode())
        for name, position in sorted(self._positions.items()):
            hashed.update(f"{name} {position.shape} {position.kind}".encode())
            if size := position.stop - position.start:
                content = np.memmap(position.path, np.uint8, "r", position.start, (size,))
                hashed.update(zlib.crc32(content.data).to_bytes(4, "big"))
        return hashed.hexdigest()


@dataclass(frozen=True)
class BFloat16:
    """An array of bfloat16 numbers, stored as the upper halves of float32 numbers."""

    halves: NDArray[np.uint16]

    def __getitem__(self, key: Any) -> BFloat16:
        return BFloat16(self.halves[key])

    def __len__(self) -> int:
        return len(self.halves)

    def transpose(self) -> BFloat16:
        """Return the array with its axes reversed."""
        return BFloat16(self.halves.T)

    def astype(self, dtype: DTypeLike, order: Literal["K", "F"] = "K", copy: bool = True) -> Floats:
        """Return the numbers in another type, like NumPy's ``astype``; float32 keeps them exact."""
        whole = (self.halves.astype(np.uint32, order) << 16).view(np.float32)
        return whole.astype(dtype, copy=False)
