"""Hugging Face checkpoints run by NumPy alone, often in less time than torch takes to import.

Only a checkpoint that ``attention.families`` describes entirely is opened, and only if that is
faster than starting torch. All others are left to transformers, and so are damaged ones, whose
errors it reports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnviz.attention.families import NotUnderstoodError
from attnviz.attention.family_reading import CheckpointLayout, by_role, checkpoint_layout
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.errors import LoadError
from attnviz.models import checkpoint_files as files
from attnviz.models.adapters import LoraAdapter, with_base
from attnviz.models.model import broken_words, stated_revision, trained_tokens
from attnviz.models.numpy_tokenizer import OpenedTokenizer, open_tokenizer
from attnviz.models.stack_model import StackModel
from attnviz.models.stored_tensors import StoredTensors
from attnviz.models.threads import allowed_processors, workers
from attnviz.models.work import ModelSizes, Work, sizes_of_stack
from attnviz.reading import damaged, read_json
from attnviz.records import NO_PREDICTIONS, ModelInfo

_SPEED = 3e10
"""Operations a second that one thread of NumPy achieved at least on an older server.

The choice does not measure this processor's: the same command is to give the same digits twice."""

# Seconds to read a number and convert it to float32.
_READ = {"float32": 1e-9, "float16": 2.5e-9, "bfloat16": 2.5e-9}

_TORCH_START = 4.0
"""Seconds of one processor to import torch and transformers and build a model.

Torch then uses all processors, where a run in NumPy may have one: it is the sooner one until its
time, less the share of one processor, passes this. Seconds of ``heads`` on two busy processors,
NumPy and torch: GPT-2 small .7 and 8.2 over 21 tokens, 5.0 and 13.5 over 840."""

_MAPS = 2**30
"""Bytes of the attention weights of all heads over one text from which torch runs it.

NumPy would compute whole maps of it, and torch sums over their rows, without the maps. Seconds of
``heads`` over 10,402 tokens with a model of two layers: 240 in NumPy, 22 in torch."""

_LABELLED = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"

_NO_HEAD = f"has no language-model head: {NO_PREDICTIONS}"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_NAME = 200
_PLAIN = re.compile(r"[\w.-]+(/[\w.-]+)?")


class NumpyCheckpoint(StackModel):
    """A checkpoint that NumPy runs, with its opened tokenizer and its stored tensors."""

    def __init__(
        self,
        info: ModelInfo,
        stack: NumpyStack,
        opened: OpenedTokenizer,
        stored: StoredTensors,
        **options: Any,
    ) -> None:
        start, mask = opened.named.get("bos"), opened.mask
        super().__init__(
            info, stack, lambda: opened.tokenizer, start=start, mask_id=mask, **options
        )
        self.stored = stored
        self.chat_template, self.named = opened.chat, opened.named
        self.paired = opened.paired
        self._broken: tuple[str, ...] | None = None

    @property
    def info(self) -> ModelInfo:
        """Return the model's facts, with the tensors that caused a run that was not finite."""
        if self._broken is None and not self.stack.finite:
            self._broken = self.stored.not_finite()
            notes = (*self._info.notes, *broken_words(self._broken))
            self._info = replace(self._info, notes=notes, not_finite=self._broken)
        return self._info

    def describe(self, info: ModelInfo) -> None:
        """Take other facts about this model."""
        self._info = info


def open_numpy(
    name: str, revision: str | None, work: Work | None, threads: int | None = None
) -> NumpyCheckpoint:
    """Open a checkpoint in NumPy: a directory, or a hub id that is in the cache.

    work: the planned work; None uses NumPy even if torch is faster. threads: as the user asked.
    Raises NotUnderstoodError if NumPy cannot run it, or torch is faster; LoadError for damaged
    files, UsageError for a revision of a directory.
    """
    source = with_base(name, revision, _find)
    with damaged(repr(name)):
        return _opened(name, source, work, threads)


def _opened(
    name: str,
    source: tuple[Path, str | None, LoraAdapter | None],
    work: Work | None,
    threads: int | None,
) -> NumpyCheckpoint:
    directory, commit, adapter = source
    fields = files.read_config(name, directory)
    files.check_layers(name, fields)
    names = files.file_names(directory)
    weights = files.weight_files(name, names, directory.joinpath, allow_pickle=False)
    if not weights[0].endswith(".safetensors"):
        raise NotUnderstoodError("the weights are no safetensors")
    shapes = files.check_weights(name, directory, weights)
    files.check_layers(name, fields, shapes)
    read = checkpoint_layout(fields, shapes)
    stored = StoredTensors([directory / file for file in weights], fields)
    types = stored.types([part.name for part in read.parts.values()])
    roles = {part.name: role for role, part in reversed(list(read.parts.items()))}
    sizes = sizes_of_stack(
        read.shape, {role: shapes[name] for name, role in roles.items()}, read.predicts
    )
    if work is not None:
        if work.changed and read.architecture.endswith(_LABELLED):
            raise NotUnderstoodError("the labels of a classifier are read by torch")
        if work.changed and work.joined and "types.weight" in read.parts:
            raise NotUnderstoodError("which of two texts a token belongs to is read by torch")
        _check_work(work, threads, sizes, types)
    texts = directory
    if adapter is not None:
        _adapt(stored, adapter, read)
        if files.has_vocabulary(files.file_names(adapter.directory)):
            texts = adapter.directory
    opened = open_tokenizer(name, texts, fields)
    metadata = files.stored_metadata(directory, weights)
    info = ModelInfo(
        name=name,
        revision=commit or stated_revision(metadata),
        architecture=read.architecture,
        dtype="float32",
        layers=read.shape.layers,
        heads=read.shape.heads,
        kv_heads=read.shape.kv_heads,
        head_dim=read.shape.head_dim,
        weights="checkpoint",
        backend="numpy",
        notes=(
            *([] if adapter is None else [adapter.note]),
            *([] if read.predicts else [f"{read.architecture} {_NO_HEAD}"]),
            *(f"stored as {kind}, computed in float32" for kind in types if kind != "float32"),
        ),
    )
    stack = NumpyStack(read.shape, by_role(stored, read.parts))

    def ends() -> list[object]:
        generation = directory / "generation_config.json"
        stated = [fields, *([read_json(generation)] if generation.is_file() else [])]
        return [settings.get("eos_token_id") for settings in stated]

    return NumpyCheckpoint(
        info,
        stack,
        opened,
        stored,
        sizes=sizes,
        ends=ends,
        trained=trained_tokens(metadata),
        parameters=read.parameters,
    )


def _adapt(stored: StoredTensors, adapter: LoraAdapter, read: CheckpointLayout) -> None:
    """Let an adapter change stored tensors; a tied head, which it would untie, is left to torch."""
    turned = {part.name for part in read.parts.values() if part.transposed}
    words, head = (read.parts.get(f"{role}.weight") for role in ("tokens", "unembedding"))
    tied = {head.name} if words is not None and head is not None and words == head else set()
    try:
        stored.changes = adapter.on(stored.shapes.keys() - tied, turned)
    except LoadError as error:
        raise NotUnderstoodError("its adapter changes other tensors, or a tied head") from error
    stored.adapter = adapter.tensors


def _check_work(work: Work, threads: int | None, sizes: ModelSizes, types: Sequence[str]) -> None:
    """Raise NotUnderstoodError if torch would do the planned work sooner, with its start."""
    maps = 4 * sizes.layers * sizes.heads * work.length**2
    processors = min(threads or workers(), allowed_processors())
    run = work.operations(sizes) / _SPEED * (1 - 1 / processors)
    read = sizes.weights * max(_READ[kind] for kind in types)
    if maps > _MAPS or run + read > _TORCH_START:
        raise NotUnderstoodError(f"{work.tokens:,} tokens run faster in torch")


# Files ---------------------------------------------------------------------------------------


def _find(name: str, revision: str | None) -> tuple[Path, str | None]:
    """Return the directory of a checkpoint, and its commit if it is in the cache."""
    if (directory := files.local_directory(name, revision)) is not None:
        return directory, None
    if not _PLAIN.fullmatch(name) or ".." in name or len(name) > _LONGEST_NAME:
        raise NotUnderstoodError(f"{name!r} is no name of a model")
    # The cache of huggingface_hub, which itself takes too long to import.
    variable = os.environ.get
    caches = variable("XDG_CACHE_HOME") or "~/.cache"
    home = variable("HF_HOME") or os.path.join(caches, "huggingface")
    hub = variable("HF_HUB_CACHE") or variable("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    cache = Path(os.path.expanduser(os.path.expandvars(hub)))
    folder = cache / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    reference = folder / "refs" / commit
    if not _COMMIT.fullmatch(commit):
        if not _PLAIN.fullmatch(commit) or ".." in commit or not os.path.isfile(reference):
            raise NotUnderstoodError(f"{name!r} is not in the cache")
        commit = reference.read_text(encoding="utf-8", errors="replace")
    directory = folder / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not os.path.isdir(directory):
        raise NotUnderstoodError(f"{name!r} is not in the cache")
    return directory, commit
