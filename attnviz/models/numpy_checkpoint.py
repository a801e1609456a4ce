"""Hugging Face checkpoints run by NumPy alone: on screen before torch could be imported.

Only a checkpoint that ``attention.families`` describes entirely is opened, and only where that is
sooner than starting torch; every other one takes the usual path, and so does a damaged one, which
that path puts into words.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from tokenizers import Tokenizer

from attnviz.attention.families import NotUnderstoodError, Part, understood
from attnviz.attention.numpy_stack import NumpyStack, StackShape
from attnviz.errors import LoadError
from attnviz.models.checkpoint_files import (
    check_layers,
    check_weights,
    file_names,
    local_directory,
    read_config,
    stored_metadata,
    weight_files,
)
from attnviz.models.model import (
    ObserveBlock,
    ObserveQueriesKeys,
    ObserveWeights,
    Vocabulary,
    Wants,
    beyond_training,
    frame_of,
    stated_revision,
    trained_tokens,
)
from attnviz.models.pieces import check_growth, check_limit, token_texts
from attnviz.models.third_party import tokenizing
from attnviz.reading import read_json
from attnviz.records import Kind, ModelInfo, Tokens

Floats = NDArray[np.floating]

_SPEED = 3e10
"""Operations a second that one thread of NumPy does at least, by measurement on an older server."""

_TORCH_START = 2.5
"""Seconds of one processor that importing torch and transformers and building a model take."""

_TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PLAIN = re.compile(r"[\w.-]+(/[\w.-]+)?")


class NumpyCheckpoint:
    """A checkpoint that NumPy runs; see ``open_numpy``.

    info: its name, shape and origin.
    """

    def __init__(
        self,
        info: ModelInfo,
        shape: StackShape,
        tensors: Mapping[str, Floats],
        tokenizer: Tokenizer,
        start: int | None,
        trained: int | None,
    ) -> None:
        self.info = info
        self.causal = shape.causal
        self.context = shape.context
        self._stack = NumpyStack(shape, tensors)
        self._tokenizer = tokenizer
        self._start = start
        self._trained_tokens = trained

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return ("self",)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """The tokens of ``text`` with the model's special tokens, which stay when it is cut.

        Raises LoadError where the tokenizer gives ids that the model has no embedding for,
        UsageError where not even the special tokens fit into ``limit``.
        """
        with tokenizing(self.info.name):
            added = self._tokenizer.num_special_tokens_to_add(False)
            check_limit(self.info.name, added, limit)
            check_growth(self.info.name, self._tokenizer.normalizer, text)
            self._tokenizer.no_truncation()
            if limit is not None:
                self._tokenizer.enable_truncation(limit)
            encoding = self._tokenizer.encode(text)
            beyond = [number for number in encoding.ids if number >= self._stack.shape.vocabulary]
            if beyond:
                raise LoadError(
                    f"the tokenizer of {self.info.name!r} gives the id {beyond[0]}, the model has "
                    f"{self._stack.shape.vocabulary} embeddings: tokenizer and model do not belong "
                    "together"
                )
            return Tokens(
                tuple(encoding.ids),
                token_texts(self._tokenizer, encoding.tokens),
                tuple(map(bool, encoding.special_tokens_mask)),
            )

    def vocabulary(self) -> Vocabulary:
        """Its plain tokens; where its tokenizer adds no beginning but names one, that is added."""
        added = self._tokenizer.get_added_tokens_decoder()
        size = min(self._stack.shape.vocabulary, self._tokenizer.get_vocab_size())
        plain = [number for number in range(size) if number not in added]
        before, after = frame_of(self.encode("a"))
        if not len(before) and self._start is not None:
            before = Tokens((self._start,), self._texts([self._start]), (True,))
        return Vocabulary(np.asarray(plain), before, after, ranked=True, texts=self._texts)

    def _texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        pieces = [self._tokenizer.id_to_token(number) or f"<{number}>" for number in ids]
        return token_texts(self._tokenizer, pieces)

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        """Whether the text is longer than those of the training."""
        return beyond_training(self._trained_tokens, tokens)

    def run(self, tokens: Tokens, wants: Wants, observe: ObserveWeights) -> None:
        """Hand over the weights (head, query, key) of each wanted layer; see ``NumpyModel``."""
        self._stack.run(tokens.ids, wants, observe)

    def run_queries_keys(self, tokens: Tokens, wants: Wants, observe: ObserveQueriesKeys) -> None:
        """Hand over queries and keys of each wanted layer; see ``QueryKeyModel``."""
        self._stack.run_queries_keys(tokens.ids, wants, observe)

    def run_rows(
        self,
        ids: Sequence[Sequence[int]],
        rows: int,
        wants: Wants,
        observe: ObserveBlock,
        *,
        norms: bool = False,
    ) -> None:
        """Hand over blocks of the weights of each wanted layer; see ``RowModel``."""
        self._stack.run_rows(ids, rows, wants, observe, norms=norms)


def open_numpy(name: str, revision: str | None, tokens: int | None) -> NumpyCheckpoint:
    """Open a directory, or a hub id that is in the cache.

    tokens: how many are to be run; None runs in NumPy whatever that takes.
    Raises NotUnderstoodError for what NumPy cannot run, or torch sooner; LoadError for what is
    damaged, and UsageError for a revision of a directory.
    """
    directory, commit = _find(name, revision)
    fields = read_config(name, directory)
    check_layers(name, fields)
    weights = weight_files(name, file_names(directory), directory.joinpath, allow_pickle=False)
    shapes = check_weights(name, directory, weights)
    check_layers(name, fields, shapes)
    shape, parts = understood(fields, shapes)
    if tokens is not None:
        numbers = sum(int(np.prod(shapes[path])) for path in {one.name for one in parts.values()})
        if 2 * numbers * tokens / _SPEED > _TORCH_START:
            raise NotUnderstoodError(f"{numbers:,} parameters are sooner run by torch")
    tokenizer, start = _open_tokenizer(directory, causal=shape.causal)
    stored = _Stored([directory / file for file in weights])
    said = stored_metadata(directory, weights)
    info = ModelInfo(
        name=name,
        revision=commit or stated_revision(said),
        architecture=fields["architectures"][0],
        dtype="float32",
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        weights="checkpoint",
        seed=None,
        notes=tuple(
            f"stored as {kind}, computed in float32" for kind in stored.types - {"float32"}
        ),
    )
    tensors = _Roles(stored, parts)
    if broken := tensors.not_finite():
        raise NotUnderstoodError(f"{broken} has numbers that are not finite")
    return NumpyCheckpoint(info, shape, tensors, tokenizer, start, trained_tokens(said))


# Files ---------------------------------------------------------------------------------------


def _find(name: str, revision: str | None) -> tuple[Path, str | None]:
    """The directory of a checkpoint, and its commit if it is the cache's."""
    if (directory := local_directory(name, revision)) is not None:
        return directory, None
    if not _PLAIN.fullmatch(name) or ".." in name:
        raise NotUnderstoodError(f"{name!r} is no name of a model")
    place = _cache() / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    reference = place / "refs" / commit
    if not _COMMIT.fullmatch(commit):
        if not _PLAIN.fullmatch(commit) or ".." in commit or not reference.is_file():
            raise NotUnderstoodError(f"{name!r} is not in the cache")
        commit = reference.read_text(encoding="utf-8").strip()
    directory = place / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not directory.is_dir():
        raise NotUnderstoodError(f"{name!r} is not in the cache")
    return directory, commit


def _cache() -> Path:
    """Where huggingface_hub keeps its files, whose import takes longer than a small model."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.path.expandvars(os.environ[variable])).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


class _Stored:
    """The tensors of safetensors files that were found whole, mapped into memory.

    types: of all of them, such as ``float16``.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.types: set[str] = set()
        self._places: dict[str, tuple[Path, int, str, tuple[int, ...]]] = {}
        for path in files:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            for name, said in header.items():
                start = 8 + length + said["data_offsets"][0]
                self._places[name] = path, start, said["dtype"], tuple(said["shape"])

    def __getitem__(self, name: str) -> Floats | BFloat16:
        path, start, kind, shape = self._places[name]
        if kind not in _TYPES:
            raise NotUnderstoodError(f"{name} is stored as {kind}")
        self.types.add({"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kind])
        array = np.memmap(path, _TYPES[kind], "r", start, shape).view(np.ndarray)
        return BFloat16(array) if kind == "BF16" else array


@dataclass(frozen=True)
class BFloat16:
    """Numbers of eight bits of exponent and seven of fraction: the upper halves of float32."""

    halves: NDArray[np.uint16]

    def __getitem__(self, key: Any) -> BFloat16:
        return BFloat16(self.halves[key])

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Floats:
        """As NumPy's own: in numbers of another type, each kept exactly."""
        whole = (self.halves.astype(np.uint32) << 16).view(np.float32)
        return whole.astype(dtype, copy=False)


class _Roles(Mapping[str, Floats]):
    """The tensors by their roles, cut out of those that are stored."""

    def __init__(self, stored: _Stored, parts: Mapping[str, Part]) -> None:
        self._stored = stored
        self._parts = parts

    def __getitem__(self, role: str) -> Floats:
        part = self._parts[role]
        tensor: Any = self._stored[part.name]
        if part.transposed:
            tensor = tensor.T
        if part.by_head is not None:
            place, heads = part.by_head
            rows = np.arange(len(tensor)).reshape(heads, 3, -1)[:, place].ravel()
            return tensor[rows]
        return tensor if part.rows is None else tensor[part.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
