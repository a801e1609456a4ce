"""Hugging Face checkpoints run by NumPy alone: on screen before torch could be imported.

Only a checkpoint that ``attention.families`` describes entirely is opened, and only where that is
sooner than starting torch; every other one takes the usual path, and so does a damaged one, which
that path puts into words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.family_reading import NotUnderstoodError, Understood, understood
from attnviz.attention.numpy_stack import NumpyStack, StackShape
from attnviz.models.checkpoint_files import (
    Shapes,
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
    ObserveOutputs,
    ObserveQueriesKeys,
    ObserveWeights,
    Vocabulary,
    Wants,
    beyond_training,
    frame_of,
    stated_revision,
    trained_tokens,
)
from attnviz.models.numpy_tokenizer import OpenedTokenizer, open_tokenizer
from attnviz.models.pieces import check_growth, check_ids, check_limit, token_texts
from attnviz.models.stored_tensors import Roles, StoredTensors
from attnviz.models.third_party import tokenizing
from attnviz.records import NO_PREDICTIONS, Kind, ModelInfo, Tokens

Floats = NDArray[np.floating]

_SPEED = 3e10
"""Operations a second that one thread of NumPy does at least, by measurement on an older server."""

_READ = {"float32": 1e-9, "float16": 2.5e-9, "bfloat16": 2.5e-9}
"""Seconds that a number takes to be read and turned into a float32."""

_TORCH_START = 2.5
"""Seconds of one processor that importing torch and transformers and building a model take."""

_NO_HEAD = f"{{}} has no language-model head: {NO_PREDICTIONS}"

_TABLES = ("tokens.", "positions.", "types.", "unembedding.")
"""Roles of which a text uses a few rows, or attention none."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_NAME = 200
_PLAIN = re.compile(r"[\w.-]+(/[\w.-]+)?")


class NumpyCheckpoint:
    """A checkpoint that NumPy runs; see ``open_numpy``.

    info: its name, shape and origin. causal: whether a query sees no later key.
    context: the longest text in tokens.
    stored: the tensors in its files.
    predicts: whether it has a head that predicts the next token.
    """

    def __init__(
        self,
        info: ModelInfo,
        shape: StackShape,
        tensors: Mapping[str, Floats],
        opened: OpenedTokenizer,
        *,
        trained: int | None = None,
        stored: StoredTensors | None = None,
        predicts: bool = False,
    ) -> None:
        self.info = info
        self.causal = shape.causal
        self.context = shape.context
        self.stored = stored
        self._stack = NumpyStack(shape, tensors)
        self._predicts = predicts
        self._tokenizer = opened.tokenizer
        self._start = opened.start
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
            check_ids(self.info.name, encoding.ids, self._stack.shape.vocabulary)
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
        start = self._start
        if not len(before) and start is not None and start < self._stack.shape.vocabulary:
            before = Tokens((start,), self._texts([start]), (True,))
        return Vocabulary(np.asarray(plain), before, after, ranked=True, texts=self._texts)

    def _texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        pieces = [self._tokenizer.id_to_token(number) or f"<{number}>" for number in ids]
        return token_texts(self._tokenizer, pieces)

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        """Whether the text is longer than those of the training."""
        return beyond_training(self._trained_tokens, tokens)

    def run(self, tokens: Tokens, wants: Wants, observe: ObserveWeights) -> None:
        """Hand over the weights (head, query, key) of each wanted layer; see ``NumpyModel``."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._stack.run(tokens.ids, wants, observe)

    def run_queries_keys(self, tokens: Tokens, wants: Wants, observe: ObserveQueriesKeys) -> None:
        """Hand over queries and keys of each wanted layer; see ``QueryKeyModel``."""
        with np.errstate(over="ignore", invalid="ignore"):
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
        with np.errstate(over="ignore", invalid="ignore"):
            self._stack.run_rows(ids, rows, wants, observe, norms=norms)

    def run_outputs(self, tokens: Tokens, observe: ObserveOutputs) -> Floats | None:
        """Hand over weights and outputs of each layer; the logits. See ``OutputModel``."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._stack.run_outputs(tokens.ids, observe, predict=self._predicts)

    def narrowed(self) -> NumpyCheckpoint:
        """The same in rounded numbers; see ``OutputModel``."""
        changed = copy(self)
        changed._stack = self._stack.narrowed()
        return changed


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
    if not weights[0].endswith(".safetensors"):
        raise NotUnderstoodError("the weights are no safetensors")
    shapes = check_weights(name, directory, weights)
    check_layers(name, fields, shapes)
    read = understood(fields, shapes)
    stored = StoredTensors([directory / file for file in weights], fields)
    types = stored.types([part.name for part in read.parts.values()])
    if tokens is not None:
        _check_work(read, shapes, types, tokens)
    opened = open_tokenizer(name, directory, fields)
    stored.check_finite()
    said = stored_metadata(directory, weights)
    info = ModelInfo(
        name=name,
        revision=commit or stated_revision(said),
        architecture=read.architecture,
        dtype="float32",
        layers=read.shape.layers,
        heads=read.shape.heads,
        kv_heads=read.shape.kv_heads,
        head_dim=read.shape.head_dim,
        weights="checkpoint",
        backend="numpy",
        notes=(
            *([] if read.predicts else [_NO_HEAD.format(read.architecture)]),
            *(f"stored as {kind}, computed in float32" for kind in types if kind != "float32"),
        ),
    )
    return NumpyCheckpoint(
        info,
        read.shape,
        Roles(stored, read.parts),
        opened,
        trained=trained_tokens(said),
        stored=stored,
        predicts=read.predicts and read.shape.causal,
    )


def _check_work(read: Understood, shapes: Shapes, types: Sequence[str], tokens: int) -> None:
    """Raise NotUnderstoodError where starting torch takes less time than NumPy's run."""
    names = {part.name for role, part in read.parts.items() if not role.startswith(_TABLES)}
    numbers = sum(int(np.prod(shapes[path])) for path in names)
    run = numbers * (2 * tokens / _SPEED + max(_READ[kind] for kind in types))
    if run > _TORCH_START:
        raise NotUnderstoodError(f"{tokens:,} tokens are sooner run by torch")


# Files ---------------------------------------------------------------------------------------


def _find(name: str, revision: str | None) -> tuple[Path, str | None]:
    """The directory of a checkpoint, and its commit if it is the cache's."""
    if (directory := local_directory(name, revision)) is not None:
        return directory, None
    if not _PLAIN.fullmatch(name) or ".." in name or len(name) > _LONGEST_NAME:
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
