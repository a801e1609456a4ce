"""Finds the architecture that a model's name stands for, from its config and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.count.params.config.read import spec_from_config
from attnviz.count.params.shapes import spec_from_options, spec_from_shape
from attnviz.count.params.specs import ModelSpec
from attnviz.models.resolve import resolve
from attnviz.models.shapes import Shape, find_shape, shape_names
from attnviz.reading import PACKAGED

if TYPE_CHECKING:  # a shape has no files
    from attnviz.count.params.stored import StoredWeights

_BUNDLED = PACKAGED / "tiny"


class FoundSpec(NamedTuple):
    """The architecture that a model's name stands for.

    name: the requested name. source: where its numbers come from: a URL, a paper, a path.
    revision: the commit of a hub id, or None.
    config: the fields of its Hugging Face config; empty if it has none.
    spec: its description, or None if its class cannot be counted from the config; then
        ``meta_count.count_on_meta`` counts ``config``.
    architecture: the class to count; None for the config's own.
    stored: how the parameters next to the config are stored, if they are on this machine.
    """

    name: str
    source: str
    revision: str | None
    config: Mapping[str, Any]
    spec: ModelSpec | None
    architecture: str | None = None
    stored: StoredWeights | None = None


def spec_of_shape(name: str) -> FoundSpec:
    """Return the built-in model configuration of this name, even if a hub id has it too.

    Raises LoadError if there is none or it cannot be read.
    """
    return _shape(find_shape(name.removeprefix("configs/").removesuffix(".toml")), name)


def find_spec(
    name: str, *, revision: str | None = None, offline: bool = False, shapes_first: bool = False
) -> FoundSpec:
    """Return the architecture of ``--model NAME``; no weights of a directory or hub id are fetched.

    revision: a branch, tag or commit on the hub. offline: True reads directories and the cache
        only. shapes_first: True if a bare name means a built-in model configuration even if it is a
        hub id as well.

    Raises LoadError if there is no such model, no access to it or no readable config, OfflineError
    if it is not in the cache and the network is not to be used or does not answer, UsageError for a
    revision of a directory.
    """
    if shapes_first and name in shape_names():
        return spec_of_shape(name)
    source = resolve(name)
    if source.kind == "shape" and source.shape is not None:
        return _shape(source.shape, name)
    if source.kind == "own":
        return FoundSpec(name, "", None, {}, spec_from_options(name=name, d_model=64, heads=8))
    from attnviz.count.params.stored import stored_weights
    from attnviz.models.checkpoint_files import local_directory, read_config  # shapes need no files

    bundled = source.kind == "bundled"
    where = str(_BUNDLED) if bundled else name
    directory, commit = local_directory(where, revision), None
    if directory is None:
        from attnviz.models.hub import find_config  # its client imports longer than all counting

        snapshot = find_config(where, revision=revision, offline=offline)
        directory, commit = snapshot.directory, snapshot.revision
    config = read_config(where, directory)
    origin = "" if bundled else str(directory / "config.json")
    spec = spec_from_config(config, name=name, source=origin)
    return FoundSpec(name, origin, commit, config, spec, stored=stored_weights(directory))


def spec_of_loaded(model: Any) -> FoundSpec:
    """Return the architecture of a model that Python code has loaded."""
    info, whole = model.info, getattr(model, "model", None)
    if whole is None:
        return find_spec(str(info.name))
    fields = {**whole.config.to_dict(), "architectures": [info.architecture], "dtype": info.dtype}
    fields.pop("torch_dtype", None)
    return FoundSpec(info.name, "", info.revision, fields, spec_from_config(fields, name=info.name))


def _shape(shape: Shape, name: str) -> FoundSpec:
    spec = spec_from_shape(shape)
    if spec is not None:
        spec = spec._replace(name=name)
    return FoundSpec(name, shape.source, None, shape.config, spec, shape.counts or None)
