"""Opens Hugging Face checkpoints and named shapes with transformers.

The head follows the checkpoint's ``architectures``. Besides ``attention_interface`` this is the
only module that imports transformers, which takes seconds: import it only when needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import modeling_utils as _untyped_loading
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import logging as _untyped_logging

from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.architecture import read_shape
from attnviz.models.attention_interface import without_choices
from attnviz.models.checkpoint_files import (
    check_layers,
    check_weights,
    file_names,
    has_vocabulary,
    read_config,
    stored_metadata,
    weight_files,
)
from attnviz.models.checkpoint_weights import adapt, arguments, needed_memory, open_weights
from attnviz.models.download import Progress
from attnviz.models.growth import check_files
from attnviz.models.hub import find_checkpoint
from attnviz.models.memory import require_memory
from attnviz.models.model import no_logits, stated_revision, trained_tokens
from attnviz.models.placement import drawing, find_device, find_dtype
from attnviz.models.prepare import prepared
from attnviz.models.shapes import Shape
from attnviz.models.split import require_even
from attnviz.models.stored_tensors import StoredTensors
from attnviz.models.third_party import quietly, third_party, tokenizing
from attnviz.models.transformers_model import TransformersModel
from attnviz.ranks import size
from attnviz.reading import read_json

_VERSION = transformers.__version__
_TOKENIZER = re.compile(r"(Tokenizer(Fast)?|Backend)$")
"""The endings of tokenizer class names."""

_bars: Any = _untyped_logging
_loading: Any = _untyped_loading


def load_transformers(
    name: str,
    *,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    offline: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    progress: Progress | None = None,
    spread: Mapping[str, Any] | None = None,
    tp: bool = False,
    logits: bool = False,
) -> TransformersModel:
    """Load a checkpoint: a local directory, or a hub id from the cache or the network.

    revision: branch, tag or commit of a hub id.
    dtype: ``auto`` keeps the checkpoint's own. offline: True uses directories and the cache only.
    trust_remote_code: True runs the checkpoint's own code. allow_pickle: True accepts pickles.
    progress: called as ``progress(file, done, total)`` in bytes during a download.
    spread: what places its layers, see ``placement.spread``; None for one device.
    tp: True splits it over the processes of torchrun.
    logits: True refuses a checkpoint whose class has no head, before its weights are read.

    Raises LoadError if the model is not found, without access, incomplete, damaged or refused as
    unsafe; OfflineError if it is not in the cache, and the network is not to be used or does not
    answer; UnsupportedError if it has no attention heads or takes no text; UsageError for an
    unknown dtype or device, or a missing head.
    """
    whole = spread is None and not tp
    place, number_type = find_device(device) if whole else None, find_dtype(dtype)
    snapshot = find_checkpoint(
        name,
        revision=revision,
        offline=offline,
        allow_pickle=allow_pickle,
        with_code=trust_remote_code,
        progress=progress,
    )
    directory, adapter = snapshot.directory, snapshot.adapter
    if adapter is not None and not whole:
        raise UnsupportedError(
            f"the weights of {name!r} are changed by an adapter, which takes one device: leave out "
            "--tp and --device auto, or merge it into its base with peft (merge_and_unload)"
        )
    fields = read_config(name, directory)
    check_layers(name, fields)
    config = _open_config(name, directory, fields, trust_remote_code)
    if logits and _names_no_head(config):
        raise no_logits(name)
    read_shape(config, name)  # refuses a model without heads before its weights are read
    weights = weight_files(name, file_names(directory), directory.joinpath, allow_pickle)
    shapes = check_weights(name, directory, weights)
    check_layers(name, fields, shapes)
    classes = _classes(name, directory, config, trust_remote_code)
    stored = sum((directory / file).stat().st_size for file in weights)
    needed = needed_memory(name, classes[0], config, shapes, stored=stored, dtype=number_type)
    if place is not None:
        require_memory(name, needed, place)
    options = {**(spread or {}), **(_parted(name, config) if tp else {})}
    own = adapter is not None and has_vocabulary(file_names(adapter.directory))
    texts = adapter.directory if adapter is not None and own else directory
    tokenizer = _open_tokenizer(name, texts, config, trust_remote_code)
    safe = weights[0].endswith(".safetensors")
    with no_bars(), _without_peft():
        model, notes = open_weights(
            name,
            directory,
            classes,
            config=config,
            dtype=number_type or "auto",
            use_safetensors=safe,
            **options,
            **_instead_of_unreadable(directory, config),
        )
    held = StoredTensors([directory / file for file in weights], fields) if safe else None
    if adapter is not None:
        adapt(model, adapter)
        notes = (adapter.note, *notes)
        if held is not None:
            held.adapter = adapter.tensors
    said = stored_metadata(directory, weights)
    return prepared(
        name,
        model,
        tokenizer,
        place,
        revision=snapshot.revision or stated_revision(said),
        notes=notes,
        trained_tokens=trained_tokens(said),
        stored=held,
    )


def _parted(name: str, config: Any) -> dict[str, Any]:
    """Return options of ``from_pretrained`` that split a model over the processes of torchrun.

    Raises UnsupportedError if transformers has no plan for it, or its heads cannot be split evenly.
    """
    from transformers.distributed.configuration_utils import DistributedConfig

    text, number = config.get_text_config(), size()
    plan = getattr(text, "base_model_tp_plan", None)
    if not plan:
        raise UnsupportedError(
            f"transformers has no plan to split {name!r} ({text.model_type}) over processes: leave "
            "out --tp; --device auto places its layers on several devices"
        )
    require_even(name, text, plan, number)
    return {"distributed_config": DistributedConfig(tp_size=number, tp_plan="auto")}


def load_shape(
    shape: Shape, *, device: str = "cpu", dtype: str = "auto", seed: int = 0
) -> TransformersModel:
    """Build a model from a built-in configuration, with random parameters.

    Its texts are split into words. dtype: ``auto`` is float32. seed: of the parameters.
    Raises LoadError for a configuration without a ``config``, one that fits no model, or parameters
    that do not fit into the free memory, UnsupportedError if the model takes no text, UsageError
    for an unknown dtype or device.
    """
    place, number_type = find_device(device), find_dtype(dtype) or torch.float32
    name = shape.name
    if not shape.config:
        raise LoadError(
            f"the shape {name!r} can be counted (`attnviz params {name}`) but not built: "
            f"transformers has no config for it"
        )
    check_layers(name, shape.config)
    fields = {key: value for key, value in shape.config.items() if key != "model_type"}
    with third_party(f"the shape {name!r} is no model that transformers {_VERSION} knows"):
        config = transformers.AutoConfig.for_model(shape.config["model_type"], **fields)
        without_choices(config)
        model_class = getattr(transformers, shape.config["architectures"][0])
        if "input_ids" not in arguments(model_class.forward):
            raise UnsupportedError(f"{name!r} is a {model_class.__name__}, which takes no text")
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in model_class(config).parameters())
    for needed_on in {torch.device("cpu"), place}:  # drawn on the CPU: the same on every device
        require_memory(name, parameters * number_type.itemsize, needed_on)
    with third_party(f"the shape {name!r} cannot be built"), drawing(number_type, seed):
        model = model_class(config)
    notes = (
        f"untrained random weights in the shape of {name} ({parameters:,} parameters): "
        "patterns are arbitrary",
        "no tokenizer belongs to random weights: the text is split into words at white space",
    )
    return prepared(name, model, None, place, seed=seed, notes=notes)


def _open_config(
    name: str, directory: Path, fields: Mapping[str, Any], trust_remote_code: bool
) -> Any:
    if fields.get("model_type") not in transformers.CONFIG_MAPPING:
        if "auto_map" not in fields:
            raise LoadError(
                f"{name!r} has the model_type {fields.get('model_type')!r}, which transformers "
                f"{_VERSION} does not know: a newer one may"
            )
        if not trust_remote_code:
            raise LoadError(_needs_code(name))
    with third_party(f"the config.json of {name!r} cannot be used"):
        config = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
        return without_choices(config)


def _instead_of_unreadable(directory: Path, config: Any) -> dict[str, Any]:
    """Return options for loading that replace a generation_config.json which cannot be read.

    No result depends on that file, since texts are always generated greedily.
    """
    if not (directory / "generation_config.json").is_file():
        return {}
    try:
        with third_party("the generation_config.json cannot be read"):
            transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    except LoadError:
        return {"generation_config": transformers.GenerationConfig.from_model_config(config)}
    return {}


def _open_tokenizer(name: str, directory: Path, config: Any, trust_remote_code: bool) -> Any:
    settings = directory / "tokenizer_config.json"
    fields = read_json(settings) if settings.is_file() else {}
    for declared in (fields.get("tokenizer_class"), getattr(config, "tokenizer_class", None)):
        # Any class of the library would be opened, even a whole model.
        if hasattr(transformers, str(declared)) and not _TOKENIZER.search(str(declared)):
            raise LoadError(
                f"the tokenizer of {name!r} cannot be read: its files name {declared!r} as its "
                "class, which is none of a tokenizer"
            )
    known = hasattr(transformers, str(fields.get("tokenizer_class")))
    if "auto_map" in fields and not known and not trust_remote_code:
        raise LoadError(_needs_code(name))
    with tokenizing(name):
        check_files(name, directory)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    # Without their files many tokenizer classes are empty, without a warning.
    if tokenizer.vocab_files_names and not has_vocabulary(file_names(directory)):
        raise LoadError(
            f"{name!r} has no tokenizer: the directory has no tokenizer.json or vocabulary; "
            f"copy the tokenizer's files beside config.json"
        )
    return tokenizer


def _needs_code(name: str) -> str:
    return (
        f"{name!r} needs Python code from its own repository to run: read that code, then pass "
        f"--trust-remote-code if you trust it"
    )


def _classes(name: str, directory: Path, config: Any, trust_remote_code: bool) -> list[Any]:
    """Return the model class that the checkpoint names, then the class without its head, if known.

    config: of the checkpoint in ``directory``. trust_remote_code: True allows a class of its own
        code.
    """
    wanted = str((getattr(config, "architectures", None) or [None])[0])
    named = getattr(transformers, wanted, None)
    references = map(str, (getattr(config, "auto_map", None) or {}).values())
    own = [reference for reference in references if reference.endswith(f".{wanted}")]
    # A config may name any attribute of the library, even a function.
    if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
        found: list[Any] = [named]
    elif own and not trust_remote_code:
        raise LoadError(_needs_code(name))
    elif own:
        with third_party(f"the code of {name!r} cannot be used"):
            found = [get_class_from_dynamic_module(own[0], directory, local_files_only=True)]
    else:
        found = []
    bare = _bare_class(config)
    found += [bare] if bare is not None and bare not in found else []
    if not found:
        raise LoadError(
            f"{name!r} is a {wanted}, which transformers {_VERSION} does not know: a newer one may"
        )
    if "input_ids" not in arguments(found[0].forward):
        raise UnsupportedError(f"{name!r} is a {found[0].__name__}, which takes no text")
    reads = getattr(found[0], "config_class", None)
    parts = [config, *(getattr(config, part, None) for part in config.sub_configs)]
    if reads is not None and not any(isinstance(part, reads) for part in parts):
        raise LoadError(
            f"the config.json of {name!r} does not fit itself: a {found[0].__name__} reads a "
            f"{reads.__name__}, its model_type {config.model_type!r} is a {type(config).__name__}"
        )
    return found


def _bare_class(config: Any) -> Any:
    """Return the class without a head of the model that a config describes; None if unknown."""
    bare: Any = transformers.MODEL_MAPPING.get(type(config), None)
    return bare[0] if isinstance(bare, (tuple, list)) else bare


def _names_no_head(config: Any) -> bool:
    """Return True if the class that a config names is known as one without a head."""
    bare = _bare_class(config)
    return bool(bare is not None and (config.architectures or [None])[0] == bare.__name__)


@contextmanager
def _without_peft() -> Iterator[None]:
    """Let transformers open a directory without the adapter in it, which is merged here."""
    before = _loading.maybe_load_adapters
    _loading.maybe_load_adapters = lambda name, _, **more: (None, name, more)
    try:
        yield
    finally:
        _loading.maybe_load_adapters = before


def public_class(name: str) -> Any:
    """Return the attribute ``name`` of transformers, or None."""
    return getattr(transformers, name, None)


@contextmanager
def no_bars() -> Iterator[None]:
    """Hide the progress bars of transformers."""
    shown = _bars.is_progress_bar_enabled()
    with quietly():
        _bars.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                _bars.enable_progress_bar()
