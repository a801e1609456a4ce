"""Two sides that are the same. They are not measured, since every number would be zero."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from attnviz.engine.probing import open_probing
from attnviz.inspect.diff.records import DiffReport
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.diff.sides import LiveSide, side_inputs
from attnviz.models.checkpoint_files import (
    ADAPTER,
    file_names,
    local_directory,
    read_config,
    side_files,
    weight_files,
)
from attnviz.models.model import Model
from attnviz.models.stored_tensors import StoredTensors
from attnviz.reading import damaged


def are_same(a: LiveSide, b: LiveSide) -> bool:
    """Return whether both sides have the same parameters, tokenizer, texts, dtype and backend.

    Two directories are compared by digests of their files. Raises LoadError for files that cannot
    be read.
    """
    if a.texts.texts != b.texts.texts:
        return False
    if a.of_model(b):
        return a.options == b.options
    if a.loaded is not None or b.loaded is not None or a.options != b.options:
        return False
    places = [local_directory(side.name, side.options.revision) for side in (a, b)]
    if places[0] is None or places[1] is None:
        return False
    digests = [_digest(side.name, place) for side, place in zip((a, b), places, strict=True)]
    return digests[0] is not None and digests[0] == digests[1]


def _digest(name: str, directory: Path | None) -> str | None:
    """Return a digest of config, tensors and tokenizer; None for pickles and with an adapter."""
    assert directory is not None
    with damaged(repr(name)):
        names = file_names(directory)
        if ADAPTER in names:
            return None
        fields = read_config(name, directory)
        weights = weight_files(name, names, directory.joinpath, allow_pickle=True)
        if not weights[0].endswith(".safetensors"):
            return None
        digest = StoredTensors([directory / file for file in weights], fields).digest()
        hashed = hashlib.sha256(digest.encode())
        for file in side_files(names, False):
            hashed.update(file.encode() + (directory / file).read_bytes())
    return hashed.hexdigest()


def unmeasured(request: DiffRequest, a: LiveSide, b: LiveSide, model: Model) -> DiffReport:
    """Return the report on two equal sides, which are not measured; it has no entries for heads.

    a, b: the sides. model: of both. Raises UsageError for texts that do not fit the model.
    """
    probing = open_probing(model, request.kind)
    inputs = side_inputs(probing, a, request.truncate)
    return DiffReport(
        a=model.info,
        b=replace(model.info, name=b.name),
        kind=probing.kind,
        causal=probing.causal,
        source=a.texts.source,
        texts=len(inputs),
        tokens=sum(len(given.queries(probing.kind)) for given in inputs),
        changes=(),
        same=True,
        matched=request.match,
        importance=request.importance,
        notes=tuple(model.info.notes),
        top=request.top,
        index_base=request.index_base,
        seed=request.seed,
    )
