"""Writes the small decoder as a Hugging Face Llama directory, and reads such a directory lazily.

The directory holds ``config.json``, ``model.safetensors``, ``tokenizer.json`` and
``tokenizer_config.json``; transformers' ``LlamaForCausalLM`` and ``AutoTokenizer`` load it as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from attnviz.attention.decoder_config import DecoderConfig, config_to_llama
from attnviz.attention.family_reading import read_decoder
from attnviz.attention.numpy_stack import LazyTensors
from attnviz.errors import LoadError, UsageError
from attnviz.reading import read_json

StoredType = Literal["float16", "float32"]

_STORED_TYPES = {"F16", "F32"}


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint directory with every tensor of its configuration, in the right shape.

    tensors: the tensors by Llama's names, each read from the file at its first access. metadata:
        further strings in the safetensors header; ``revision`` identifies the tensors' content.
    """

    directory: Path
    config: DecoderConfig
    tensors: Mapping[str, NDArray[np.floating]]
    metadata: Mapping[str, str]


def open_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint directory; raise LoadError, naming file and tensor, for what is damaged."""
    directory = Path(directory)
    config_path, path = directory / "config.json", directory / "model.safetensors"
    for needed in (config_path, path):
        if not needed.exists():
            raise LoadError(f"{needed} was not found; a model directory must hold it")
    fields = read_json(config_path)
    try:
        file: Any = safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise LoadError(
            f"{path} is not a complete safetensors file ({error}); fetch or save it again"
        ) from error
    names = file.keys()  # the file contains no mapping
    slices = {name: file.get_slice(name) for name in names}
    for name, stored in slices.items():
        if stored.get_dtype() not in _STORED_TYPES:
            raise LoadError(f"{path}: the tensor {name} is stored as {stored.get_dtype()}")
    try:
        shapes = {name: tuple(stored.get_shape()) for name, stored in slices.items()}
        config = read_decoder(fields, shapes)
    except LoadError as error:
        raise LoadError(f"{directory}: {error}") from error
    return Checkpoint(
        directory, config, LazyTensors(slices, file.get_tensor), dict(file.metadata() or {})
    )


def save_checkpoint(
    directory: str | os.PathLike[str],
    config: DecoderConfig,
    tensors: Mapping[str, NDArray[np.floating]],
    tokenizer: str,
    *,
    dtype: StoredType = "float32",
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write a checkpoint directory, all of its files or none, and return its revision.

    tensors: every tensor of ``config.tensor_shapes()``; ValueError if names or shapes differ.
    tokenizer: the content of a ``tokenizer.json``. dtype: the stored number type; UsageError for a
    number too large for it. metadata: stored with the tensors, ``format`` and ``revision`` added.
    """
    # Imported late: reading does not need it.
    from safetensors.numpy import save

    directory = Path(directory)
    config.require_tensors(tensors)
    stored = {name: _narrow(name, tensor, dtype) for name, tensor in tensors.items()}
    revision = tensor_revision(stored)
    # Other programs refuse a file that does not name its framework.
    header = {**(metadata or {}), "format": "pt", "revision": revision}
    files = {
        "tokenizer.json": tokenizer.encode(),
        "tokenizer_config.json": _json(_tokenizer_config(config, tokenizer)),
        "model.safetensors": _in_order(save(stored, metadata=header)),
        "config.json": _json(config_to_llama(config, dtype)),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_together(directory, files)
    except OSError as error:
        raise LoadError(f"{directory} cannot be written: {error.strerror}") from error
    return revision


def tensor_revision(tensors: Mapping[str, NDArray[np.floating]]) -> str:
    """Return a digest of tensors: 12 hexadecimal digits of a SHA-256 over them, sorted by name."""
    # Imported late: reading does not need it.
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()[:12]


def _narrow(name: str, tensor: NDArray[np.floating], dtype: StoredType) -> NDArray[np.floating]:
    largest = np.abs(tensor).max()
    if not largest <= np.finfo(dtype).max:  # NaN fails this test too
        raise UsageError(
            f"the tensor {name} holds {largest}, which {dtype} cannot store: float32 may, or train "
            "with a smaller learning rate"
        )
    return np.ascontiguousarray(tensor, dtype=dtype)


def _tokenizer_config(config: DecoderConfig, tokenizer: str) -> dict[str, Any]:
    """Return the tokenizer_config.json that lets transformers use ``tokenizer`` unchanged."""
    added = {token["id"]: token["content"] for token in json.loads(tokenizer)["added_tokens"]}
    eos = config.eos[0] if isinstance(config.eos, tuple) else config.eos
    named = {"bos_token": added.get(config.bos), "eos_token": added.get(eos)}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context,
        "clean_up_tokenization_spaces": False,
        **{name: content for name, content in named.items() if content is not None},
    }


def _in_order(content: bytes) -> bytes:
    """Return a safetensors file with sorted metadata, which the library writes in any order.

    It begins with the length of its JSON header, padded to a multiple of eight bytes.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def _write_together(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write all files under temporary names, then rename them: a reader meets none half written."""
    written: dict[Path, Path] = {}
    try:
        for name, content in files.items():
            temporary = directory / f".{name}.{os.getpid()}.tmp"
            written[temporary] = directory / name
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file:  # never through an existing link
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for temporary, path in written.items():
            os.replace(temporary, path)
    finally:
        for temporary in written:
            temporary.unlink(missing_ok=True)
