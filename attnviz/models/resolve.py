"""Finds out which model ``--model NAME`` means, from the name alone, and loads it.

An option that the kind of model would ignore is refused, never dropped. Nothing heavy is imported
until a model is loaded: the bundled one does not need torch.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attnviz.errors import AttnvizError, LoadError, UnsupportedError, UsageError
from attnviz.models.shapes import Shape, find_shape, read_shape_file, shape_names
from attnviz.models.threads import suit
from attnviz.models.work import LoadOptions as LoadOptions

if TYPE_CHECKING:  # the records import NumPy, which counting parameters does not need
    import torch
    from torch.nn import Module

    from attnviz.models.model import Model
    from attnviz.models.numpy_checkpoint import NumpyCheckpoint

SHAPING = ("d_model", "heads", "kv_heads", "causal", "score")  # options of ``mha`` alone

_CONFIGS = "configs/"
_NEEDS_TORCH = "this command runs on torch"
_PATH_STARTS = tuple(start for start in ("./", "../", "/", "~", os.sep) if start)


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
    if name in ("tiny", "mha"):
        return ModelSource("bundled" if name == "tiny" else "own", name)
    path = os.path.expanduser(name)
    if names_function(name):
        raise UsageError(f"{name!r} is an nn.Module of your own: heads and ablate take those")
    if os.path.isdir(path):
        return ModelSource("directory", name)
    if name.endswith(".toml") and os.path.isfile(path):
        return ModelSource("shape", name, read_shape_file(Path(path)))
    if name.startswith(_CONFIGS):
        shape = find_shape(name.removeprefix(_CONFIGS).removesuffix(".toml"))
        return ModelSource("shape", name, shape)
    is_file = os.path.splitext(name)[1] and os.path.isfile(path)
    if name.startswith(_PATH_STARTS) or name.endswith(".toml") or is_file:
        raise no_model(name)
    if name in shape_names() and (shape := find_shape(name)).hub != name:
        return ModelSource("shape", name, shape)
    return ModelSource("hub", name)


def load(name: str, options: LoadOptions | None = None) -> Model:
    """Load the model that ``--model NAME`` means, and set the number of threads for it.

    Raises an AttnvizError as the loader of its kind does.
    """
    options = options or LoadOptions()
    model = _loaded(name, options)
    suit(model, options.threads)
    return model


_EXAMPLES = {
    "picture": "a vision model, such as --model facebook/dinov2-small",
    "picture and text": "a vision-language model, such as Qwen2.5-VL or SmolVLM",
    "sound": "a speech model, such as --model openai/whisper-tiny",
}


def _loaded(name: str, options: LoadOptions) -> Model:
    source = resolve(name)
    if source.kind in ("bundled", "own"):
        if options.backend == "torch" and options.work.tokens is not None:
            raise UsageError(f"{name!r} runs in NumPy: --backend torch is for checkpoints")
        if options.backend == "numpy" and options.work.tokens is None and name != "mha":
            raise not_by_numpy(name, _NEEDS_TORCH)
        if options.work.reads != "text":
            raise UsageError(f"{name!r} reads text: give {_EXAMPLES[options.work.reads]}")
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
    from attnviz.models.placement import SPREAD

    if source.shape is None:
        return load_transformers(name, options)
    if options.work.reads == "picture and text":
        raise UsageError(
            f"{name!r} has random weights and no processor: a text with images takes a checkpoint; "
            "leave the text out to look at its tower"
        )
    if options.work.reads == "sound":
        raise UsageError(f"{name!r} has random weights: audio takes a checkpoint of Whisper")
    if options.tp or options.device == SPREAD:
        raise UsageError(
            f"{name!r} has random weights, on one device: --tp and --device auto are for "
            "checkpoints"
        )
    return load_shape(replace(source.shape, name=name), options)


def _in_numpy(source: ModelSource, options: LoadOptions) -> Model | None:
    """Return the checkpoint run by NumPy; None if torch must run it, or it is damaged.

    Torch's loader then reports the damage. Raises UnsupportedError if NumPy was requested, and
    UsageError if a logit is to be explained and the checkpoint has none.
    """
    if options.backend == "torch":
        return None
    from attnviz.attention.families import NotUnderstoodError

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
    # Without "For" in the name of its class it has no head for any task.
    if options.work.logits and not model.has_head and "For" not in model.info.architecture:
        from attnviz.models.model import no_logits

        raise no_logits(source.name)
    return model if requested or options.work.fits(model) else None


def in_numpy(source: ModelSource, options: LoadOptions) -> NumpyCheckpoint:
    """Return a checkpoint run by NumPy; NotUnderstoodError with the reason if it should not."""
    from attnviz.attention.families import NotUnderstoodError
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
    """Return the error for a model that NumPy was asked to run and cannot, with the reason."""
    return UnsupportedError(f"--backend numpy cannot run {name!r}: {reason}; leave it out")


def random_twin(model: Model, seed: int) -> Model:
    """Return the same architecture with random parameters; UnsupportedError if it is not built."""
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
    """Raise UsageError for an option that ``model`` would ignore, or that excludes another.

    shape: the names of the given options that only ``mha`` has, such as ``d_model``.
    """
    first = next(iter(shape), None)
    if first is not None and model != "mha":
        option = "--" + first.replace("_", "-")
        chooses = "; --head chooses heads" if first == "heads" else ""
        raise UsageError(f"{option} shapes attnviz's own attention: add --model mha{chooses}")
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
        raise UsageError(f"{model!r} is built in: --revision is for models on the Hub")
    if options.device != "cpu":
        raise UsageError(
            f"{model!r} runs in NumPy on the cpu: --device {options.device} is for Hugging Face "
            "models"
        )
    dtypes = ("float32",) if model == "mha" else ("float32", "float64")
    if options.dtype not in ("auto", *dtypes):
        raise UsageError(
            f"{model!r} supports only {' and '.join(dtypes)}, got {options.dtype}: choose another "
            "dtype"
        )


# What is no model -------------------------------------------------------------------------------

_GGUF = "a GGUF file"
_BEGINNINGS = (
    (b"GGUF", _GGUF),
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
_TYPED = "a model is given as its directory or Hub id"


def is_gguf(name: str) -> bool:
    """Return True for the path of a GGUF file; a bare name without an ending is a hub id."""
    path = Path(os.path.expanduser(name))
    return bool(path.suffix or os.sep in name) and os.path.isfile(path) and _kind(path) == _GGUF


def no_model(name: str) -> LoadError:
    """Return the error for a path that is no model's directory: what it is, and what to type."""
    path = Path(os.path.expanduser(name))
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        if os.path.islink(path):
            return LoadError(f"{name!r} is a link to {os.readlink(path)!r}, which is not there")
        return LoadError(f"no {'file' if name.endswith('.toml') else 'directory'} {name!r} here")
    if not path.is_file():
        return LoadError(f"{name!r} is a device or a pipe, {_TYPED}")
    kind, advice = _kind(path), "config.json, model.safetensors and the tokenizer's files lie in it"
    if kind == _GGUF:
        from attnviz.models.checkpoint_files import gguf_part

        if part := gguf_part(path):
            return LoadError(f"{name!r} is {kind} of {part}, no model: name the file of its model")
        advice = (
            f"attnviz params {shlex.quote(name)} counts it; its weights are not read: take the "
            "checkpoint in safetensors that it was made from"
        )
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


# Other numbers ----------------------------------------------------------------------------------


class OtherNumbers(NamedTuple):
    """A model converted to another number type. words: describes the change."""

    model: Model
    words: str


def in_other_numbers(model: Model) -> OtherNumbers:
    """Return the same model in bfloat16, the coarsest type; a bfloat16 model in float32.

    NumPy has no bfloat16: there parameters and intermediate results are rounded to it. A torch
    model that was loaded by name is converted in place, since memory may not hold two, and must not
    be used afterwards; one that was handed over is copied. Raises LoadError if memory does not
    suffice, UnsupportedError for a model that exists in one number type only.
    """
    from attnviz.models.model import NumpyModel

    if isinstance(model, NumpyModel):
        return OtherNumbers(model.narrowed(), "rounded to bfloat16")
    import torch

    from attnviz.models.memory import require_memory
    from attnviz.models.third_party import third_party
    from attnviz.models.transformers_model import TransformersModel

    if not isinstance(model, TransformersModel):
        raise UnsupportedError(f"{model.info.name!r} cannot be run in other numbers")
    whole, widened = model.model, model.model.dtype == torch.bfloat16
    dtype = torch.float32 if widened else torch.bfloat16
    handed = model.info.weights == "loaded"
    if widened or handed:
        numbers = sum(weight.numel() for weight in whole.parameters())
        require_memory(model.info.name, numbers * dtype.itemsize, whole.device)
    with third_party(f"{model.info.name!r} cannot be run in other numbers"):
        converted = _converted(deepcopy(whole) if handed else whole, dtype)
    name = str(dtype).removeprefix("torch.")
    return OtherNumbers(
        replace(model, model=converted, info=replace(model.info, dtype=name)), f"in {name}"
    )


def _converted(whole: Any, dtype: torch.dtype) -> Any:
    """Return a module in another type; buffers that it computed keep theirs."""
    stored = set(whole.state_dict())
    own = {name: buffer for name, buffer in whole.named_buffers() if name not in stored}
    converted = whole.to(dtype)
    for path, buffer in own.items():
        owner, _, name = path.rpartition(".")
        converted.get_submodule(owner).register_buffer(name, buffer, persistent=False)
    return converted


# A module of one's own ---------------------------------------------------------------------------


_NAME = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_OPTIONS = ("tokens", "key_tokens", "batch", "loss")


class Built(NamedTuple):
    """What a function ``build`` returned.

    inputs, named: the module's arguments. options: keywords of ``attnviz.capture`` and ``ablate``.
    """

    module: Module
    inputs: tuple[Any, ...]
    named: Mapping[str, Any]
    options: Mapping[str, Any]


def names_function(name: str) -> bool:
    """Return True for the name of a function in a Python file, such as ``net.py:build``."""
    return _NAME.fullmatch(name) is not None


def built(name: str, text: str | None, *, trusted: bool) -> Built:
    """Run the Python file, call its function, and return the module with its inputs.

    text: for a function that takes one; else its words name the tokens. Raises UsageError unless
    trusted, LoadError if there is no such function, or it fails or returns something else.
    """
    match = _NAME.fullmatch(name)
    assert match is not None
    path, function = Path(match[1]).expanduser(), match[2]
    if not path.is_file():
        raise LoadError(f"no file {str(path)!r} here")
    if not trusted:
        raise UsageError(f"{name!r} is code that would run: add --trust-remote-code")
    spec = spec_from_file_location(f"attnviz file {path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    namespace, folder = module_from_spec(spec), str(path.parent.resolve())
    sys.modules[spec.name] = namespace  # where dataclasses look up their annotations
    sys.path.insert(0, folder)  # as Python does for a script
    try:
        with running(name):
            spec.loader.exec_module(namespace)
            build = getattr(namespace, function)
            parameters = inspect.signature(build).parameters.values()
            if text is None and any(given.default is given.empty for given in parameters):
                raise UsageError(f"{name!r} makes its inputs from a text: give one")
            takes_text = bool(parameters) and text is not None
            given = build(text) if takes_text else build()
    finally:
        if folder in sys.path:  # the file may have changed it
            sys.path.remove(folder)
    return _checked(name, given, None if takes_text else text)


@contextmanager
def running(name: str) -> Iterator[None]:
    """Run a block with the module of a file; an error of its own becomes a LoadError."""
    try:
        yield
    except AttnvizError:
        raise
    except Exception as error:
        raise LoadError(f"{name!r} failed: {type(error).__name__}: {error}") from error


def _checked(name: str, given: Any, text: str | None) -> Built:
    from torch.nn import Module

    parts = given if isinstance(given, tuple) else (given,)
    options = parts[2] if len(parts) == 3 and isinstance(parts[2], Mapping) else {}
    wrong = [f"the option {key!r}" for key in options if key not in _OPTIONS]
    if not (len(parts) in (2, 3) and isinstance(parts[0], Module)) or wrong:
        got = (wrong or [", ".join(type(part).__name__ for part in parts)])[0]
        raise LoadError(
            f"{name!r} returned {got}: expected module, inputs, or with options of "
            f"{', '.join(_OPTIONS)}: module, inputs, {{'tokens': words}}"
        )
    module, inputs, *_ = parts
    named = inputs if isinstance(inputs, Mapping) else {}
    several = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    kept = dict(options)
    if text is not None:
        kept.setdefault("tokens", text)
    return Built(module, () if named else several, named, kept)
