"""Tells what a file is that was given as a model, and what to give in its place."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from attnviz.errors import LoadError

_BEGINNINGS = (
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a zip archive (as torch.save and NumPy's savez write too)"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80", "a pickle"),
    (b"\x1f\x8b", "a gzip archive"),
)
_ENDINGS = {
    ".safetensors": "a safetensors file",
    ".json": "a JSON file",
    ".onnx": "an ONNX file",
    ".bin": "a file of weights",
    ".tar": "a tar archive",
}
_TYPED = "a model is given as its directory or hub id"


def no_model(name: str) -> LoadError:
    """Return the error for a path that is given as a model and is no directory.

    It says that nothing is there, or what the file is and what to type in its place.
    """
    path = Path(os.path.expanduser(name))
    if not path.exists():
        return LoadError(f"no {'file' if name.endswith('.toml') else 'directory'} {name!r} here")
    if not path.is_file():
        return LoadError(f"{name!r} is a device or a pipe, {_TYPED}")
    kind, advice = _kind(path), "config.json, model.safetensors and the tokenizer's files lie in it"
    if kind.startswith("a GGUF"):
        advice = "GGUF is not read: take the checkpoint in safetensors that it was made from"
    elif (path.parent / "config.json").is_file():
        advice = f"type {shlex.quote(os.path.dirname(name) or '.')}, where it lies"
    return LoadError(f"{name!r} is {kind}, {_TYPED}: {advice}")


def _kind(path: Path) -> str:
    """Return what a regular file is, by its first bytes, else by the ending of its name."""
    try:
        with path.open("rb") as stream:
            first = stream.read(16)
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})"
    for beginning, kind in _BEGINNINGS:
        if first.startswith(beginning):
            return kind
    return _ENDINGS.get(path.suffix.lower(), "a file" if first else "an empty file")
