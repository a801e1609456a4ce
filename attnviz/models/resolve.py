"""Finds out which model ``--model NAME`` means, from the name alone, and loads it.

An option that the kind of model would ignore is refused, never dropped. Nothing heavy is imported
until a model is loaded: the bundled one does not need torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.files import no_model
from attnviz.models.shapes import Shape, find_shape, read_shape_file, shape_names
from attnviz.models.threads import suit
from attnviz.models.work import ON_TORCH, Work

if TYPE_CHECKING:  # the records import NumPy, which counting parameters does not need
    from attnviz.models.download import Progress
    from attnviz.models.model import Model
    from attnviz.models.numpy_checkpoint import NumpyCheckpoint

SHAPING = ("d_model", "heads", "kv_heads", "causal", "score")
"""The options that apply to ``mha`` alone."""

_CONFIGS = "configs/"
_NEEDS_TORCH = "this command runs on torch"
_PATH_STARTS = tuple(start for start in ("./", "../", "/", "~", os.sep) if start)


@dataclass(frozen=True)
class LoadOptions:
    """All options of loading a model; each kind of model uses those that apply to it.

    revision, offline, trust_remote_code, allow_pickle, progress: of Hugging Face checkpoints, as in
        ``load_transformers``; progress is called as ``progress(file, done, total)`` in bytes.
    device, dtype: the device and the number type of the computation; ``auto`` is the model's own
        dtype.
    max_memory, offload: of the device ``auto``, as in ``placement.spread``. tp: whether torchrun's
        processes share the model.
    backend: what runs a checkpoint; ``auto`` takes NumPy if it gives the same result sooner.
    threads: the most threads to use; None for the number that suits the model.
    work: what the command plans to do with the model; by default what needs torch.
    seed: of random parameters.
    d_model, heads, kv_heads, causal, score: the sizes and options of ``mha``.
    """

    revision: str | None = None
    device: str = "cpu"
    dtype: str = "auto"
    offline: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False
    progress: Progress | None = None
    backend: Literal["auto", "numpy", "torch"] = "auto"
    threads: int | None = None
    max_memory: str | None = None
    offload: str | None = None
    tp: bool = False
    work: Work = ON_TORCH
    seed: int = 0
    d_model: int = 64
    heads: int = 8
    kv_heads: int | None = None
    causal: bool = False
    score: Literal["scaled-dot", "dot", "additive"] = "scaled-dot"


@dataclass(frozen=True)
class ModelSource:
    """The model that a name on the command line means, before it is loaded.

    kind: ``bundled`` (``tiny``), ``own`` (``mha``, the library's attention with random parameters),
        ``directory`` (a checkpoint on this machine), ``shape`` (a built-in model configuration,
        which has no stored parameters) or ``hub`` (a checkpoint of the hub).
    name: as the user gave it. shape: the configuration if kind is ``shape``.
    """

    kind: Literal["bundled", "own", "directory", "shape", "hub"]
    name: str
    shape: Shape | None = None


def resolve(name: str) -> ModelSource:
    """Return which model ``name`` means, without loading it.

    ``tiny`` and ``mha`` always mean the built-in models, an existing directory itself,
    ``configs/NAME`` or a path to a TOML file a model configuration. A bare name of a built-in
    configuration means it unless it is a hub id as well, as ``gpt2`` is; all else is a hub id.
    Raises LoadError for a path without a directory, which says what a file there is, or for an
    unknown configuration.
    """
    if name == "tiny":
        return ModelSource("bundled", name)
    if name == "mha":
        return ModelSource("own", name)
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return ModelSource("directory", name)
    if name.endswith(".toml") and os.path.isfile(path):
        return ModelSource("shape", name, read_shape_file(Path(path)))
    if name.startswith(_CONFIGS):
        return ModelSource(
            "shape", name, find_shape(name.removeprefix(_CONFIGS).removesuffix(".toml"))
        )
    is_file = os.path.splitext(name)[1] and os.path.isfile(path)
    if name.startswith(_PATH_STARTS) or name.endswith(".toml") or is_file:
        raise no_model(name)
    if name in shape_names() and (shape := find_shape(name)).hub != name:
        return ModelSource("shape", name, shape)
    return ModelSource("hub", name)


def load(name: str, options: LoadOptions | None = None) -> Model:
    """Load the model that ``--model NAME`` means, and set the number of threads for it.

    Raises LoadError, OfflineError, UnsupportedError or UsageError as the loaders of each kind do.
    """
    options = options or LoadOptions()
    model = _loaded(name, options)
    suit(model, options.threads)
    return model


def _loaded(name: str, options: LoadOptions) -> Model:
    source = resolve(name)
    if source.kind in ("bundled", "own"):
        _check_built_in(name, options)
    if source.kind == "bundled":
        from attnviz.models.bundled import Bundled

        return Bundled() if options.dtype == "auto" else Bundled(dtype=options.dtype)
    if source.kind == "own":
        from attnviz.models.own import OwnAttention

        own = {name: getattr(options, name) for name in ("seed", *SHAPING)}
        return OwnAttention(**own)
    if (model := _in_numpy(source, options)) is not None:
        return model
    from attnviz.models.huggingface import load_shape, load_transformers
    from attnviz.models.placement import SPREAD, spread

    if source.shape is not None:
        if options.tp or options.device == SPREAD:
            raise UsageError(
                f"{name!r} has random weights, on one device: --tp and --device auto are for "
                "checkpoints"
            )
        return load_shape(
            replace(source.shape, name=name),
            device=options.device,
            dtype=options.dtype,
            seed=options.seed,
        )
    return load_transformers(
        name,
        revision=options.revision,
        device=options.device,
        dtype=options.dtype,
        offline=options.offline,
        trust_remote_code=options.trust_remote_code,
        allow_pickle=options.allow_pickle,
        progress=options.progress,
        spread=spread(options.max_memory, options.offload) if options.device == SPREAD else None,
        tp=options.tp,
        logits=options.work.logits,
    )


def _in_numpy(source: ModelSource, options: LoadOptions) -> Model | None:
    """Return the checkpoint run by NumPy; None if torch must run it, or it is damaged.

    Torch's loader then reports the damage. Raises UnsupportedError if NumPy was requested, and
    UsageError if a logit is to be explained and the checkpoint has none.
    """
    if options.backend == "torch":
        return None
    from attnviz.attention.family import NotUnderstoodError

    requested = options.backend == "numpy"
    try:
        model = in_numpy(source, options)
    except NotUnderstoodError as error:
        if requested:
            raise not_by_numpy(source.name, str(error)) from error
        return None
    except (LoadError, UsageError):
        if requested:
            raise
        return None
    if options.work.logits and model.is_bare:
        from attnviz.models.model import no_logits

        raise no_logits(source.name)
    return model if requested or options.work.fits(model) else None


def in_numpy(source: ModelSource, options: LoadOptions) -> NumpyCheckpoint:
    """Return the checkpoint run by NumPy; with the backend ``auto`` only if that is faster.

    source: a directory or a hub id. options: of the command.
    Raises NotUnderstoodError, with the reason, if NumPy cannot run it or torch is faster; LoadError
    for damaged files, UsageError for a revision of a directory.
    """
    from attnviz.attention.family import NotUnderstoodError
    from attnviz.models.numpy_checkpoint import open_numpy

    if source.shape is not None:
        raise NotUnderstoodError("random weights are drawn by torch")
    if options.work.tokens is None or options.work.built_in:
        raise NotUnderstoodError(_NEEDS_TORCH)
    if options.device != "cpu":
        raise NotUnderstoodError(f"NumPy runs on the cpu, not on {options.device}")
    if options.tp:
        raise NotUnderstoodError("NumPy runs in one process")
    if options.dtype not in ("auto", "float32"):
        raise NotUnderstoodError(f"NumPy computes in float32, not in {options.dtype}")
    work = None if options.backend == "numpy" else options.work
    return open_numpy(source.name, options.revision, work, options.threads)


def not_by_numpy(name: str, reason: str) -> UnsupportedError:
    """Return the error for a model that the user asked NumPy to run, but that it cannot run.

    name: of the model. reason: why it cannot.
    """
    return UnsupportedError(f"--backend numpy cannot run {name!r}: {reason}; leave it out")


def _check_built_in(name: str, options: LoadOptions) -> None:
    """Raise an error if a built-in model does not run on the requested backend."""
    if options.backend == "torch" and options.work.tokens is not None:
        raise UsageError(f"{name!r} runs in NumPy: --backend torch is for checkpoints")
    if options.backend == "numpy" and options.work.tokens is None and name != "mha":
        raise not_by_numpy(name, _NEEDS_TORCH)


def random_twin(model: Model, seed: int) -> Model:
    """Return the same architecture with random parameters, as a random baseline.

    Tokenizer, dtype and device stay the same. Raises UnsupportedError for a model that cannot be
    built again, LoadError if the memory is too small for a second one.
    """
    from attnviz.models.bundled import Bundled
    from attnviz.models.own import OwnAttention

    if isinstance(model, Bundled):
        return Bundled(model.info.dtype, seed=seed)
    if isinstance(model, OwnAttention):
        return model.redrawn(seed)
    # Import torch and transformers only if they are needed.
    from attnviz.models.transformers_model import TransformersModel

    if isinstance(model, TransformersModel):
        from attnviz.models.prepare import redrawn

        return redrawn(model, seed)
    raise UnsupportedError(
        f"{model.info.name!r} is read by NumPy, and only torch draws random weights for it: add "
        "--backend torch"
    )


def refuse_ignored(model: str, options: LoadOptions, shape: Iterable[str]) -> None:
    """Raise UsageError for an option that ``model`` would ignore.

    model: as the user named it. shape: the names of the given options that only ``mha`` has.
    """
    first = next(iter(shape), None)
    if first is not None and model != "mha":
        option = "--" + first.replace("_", "-")
        raise UsageError(f"{option} shapes the library's own attention: add --model mha")
    for name, value in (("max-memory", options.max_memory), ("offload", options.offload)):
        if value is not None and options.device != "auto":
            raise UsageError(f"--{name} is for --device auto, which places layers: add that")
    if options.tp and options.device != "cpu":
        raise UsageError(
            "--tp gives each process the accelerator of its number, or the processor where there "
            f"is none: leave out --device {options.device}"
        )
    if model not in ("tiny", "mha"):
        return
    if options.tp:
        raise UsageError(f"{model!r} is small and built in: --tp is for checkpoints")
    if options.revision is not None:
        raise UsageError(f"{model!r} is built in: --revision is for models of the hub")
    if options.device != "cpu":
        raise UsageError(
            f"{model!r} runs in NumPy on the cpu: --device {options.device} is for Hugging Face "
            "models"
        )
    dtypes = ("float32",) if model == "mha" else ("float32", "float64")
    if options.dtype not in ("auto", *dtypes):
        raise UsageError(
            f"{model!r} computes in {' or '.join(dtypes)}, got {options.dtype}: choose another "
            "dtype"
        )
