"""Opens Hugging Face checkpoints and named shapes with transformers.

The head follows the checkpoint's ``architectures``. transformers takes seconds to import: import
this module only when it is needed.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import modeling_utils as _untyped_loading
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import logging as _untyped_logging

from attnviz.errors import LoadError, UnsupportedError
from attnviz.models import checkpoint_files as files
from attnviz.models.adapters import LoraAdapter
from attnviz.models.attention_interface import without_choices
from attnviz.models.hub import find_checkpoint
from attnviz.models.layouts import require_layout
from attnviz.models.memory import require_memory
from attnviz.models.model import no_logits, stated_revision, trained_tokens
from attnviz.models.picture_texts import (
    open_text_processor,
    picture_text_model,
    require_picture_text,
)
from attnviz.models.pieces import check_files
from attnviz.models.placement import SPREAD, drawing, find_device, find_dtype, spread
from attnviz.models.prepare import prepared
from attnviz.models.shapes import Shape
from attnviz.models.speech import FEATURES, open_extractor, require_speech, speech_model
from attnviz.models.split import require_even
from attnviz.models.stored_tensors import StoredTensors
from attnviz.models.third_party import quietly, third_party, tokenizing
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.vision import (
    PIXELS,
    arguments_of,
    open_processor,
    picture_model,
    plain_processor,
)
from attnviz.models.whole import read_shape
from attnviz.models.work import USUAL, LoadOptions
from attnviz.ranks import size
from attnviz.reading import read_json
from attnviz.records import NO_PREDICTIONS

_VERSION = transformers.__version__
_TOKENIZER = re.compile(r"(Tokenizer(Fast)?|Backend)$")  # the endings of tokenizer class names
_bars: Any = _untyped_logging
_loading: Any = _untyped_loading


def load_transformers(name: str, options: LoadOptions = USUAL) -> TransformersModel:
    """Load a checkpoint: a local directory, or a hub id from the cache or the network.

    options: of which ``work.logits`` refuses a checkpoint whose class has no head before its
    weights are read. ``work.reads``: a picture opens the part that reads pictures, as a
    ``PictureModel``; a picture and text a vision-language model, as a ``PictureTextModel``; a sound
    Whisper, as a ``SpeechModel``.

    Raises LoadError if the model is not found, without access, incomplete, damaged or refused as
    unsafe; OfflineError if it is not in the cache, and the network is not to be used or does not
    answer; UnsupportedError if it has no attention heads or takes no text; UsageError for an
    unknown dtype or device, or a missing head.
    """
    reads, trusted = options.work.reads, options.trust_remote_code
    placing = spread(options.max_memory, options.offload) if options.device == SPREAD else {}
    whole = not placing and not options.tp
    target = find_device(options.device) if whole else None
    number_type = find_dtype(options.dtype)
    directory, commit, adapter = find_checkpoint(name, options)
    if adapter is not None and not whole:
        raise UnsupportedError(
            f"the weights of {name!r} are changed by an adapter, which takes one device: leave out "
            "--tp and --device auto, or merge it into its base with peft (merge_and_unload)"
        )
    fields = files.read_config(name, directory)
    files.check_layers(name, fields)
    config = _open_config(name, directory, fields, trusted)
    bare = _bare_class(config)
    if options.work.logits and bare and (config.architectures or [None])[0] == bare.__name__:
        raise no_logits(name)
    if reads == "picture and text":
        require_picture_text(name, config)
    if reads == "sound":
        require_speech(name, config)
    if reads == "picture":
        require_layout(config)
    else:
        read_shape(config, name)  # refuses a model without heads before its weights are read
    names = files.file_names(directory)
    weights = files.weight_files(name, names, directory.joinpath, options.allow_pickle)
    shapes = files.check_weights(name, directory, weights)
    files.check_layers(name, fields, shapes)
    main_input = {"picture": PIXELS, "sound": FEATURES}.get(reads, "input_ids")
    classes = _classes(name, directory, config, trusted, main_input)
    stored = sum((directory / file).stat().st_size for file in weights)
    needed = needed_memory(name, classes[0], config, shapes, stored=stored, dtype=number_type)
    if target is not None:
        require_memory(name, needed, target)
    if options.tp:
        placing |= _parted(name, config)
    texts = directory
    if adapter is not None and files.has_vocabulary(files.file_names(adapter.directory)):
        texts = adapter.directory
    if reads == "picture":
        processor = open_processor(name, directory, trusted)
    else:
        tokenizer = _open_tokenizer(name, texts, config, trusted)
        if reads == "picture and text":
            processor = open_text_processor(name, directory, config)
        if reads == "sound":
            processor = open_extractor(name, directory, config)
    safe = weights[0].endswith(".safetensors")
    placing |= {"config": config, "dtype": number_type or "auto", "use_safetensors": safe}
    with no_bars(), _without_peft(), _named_scheme(name, fields):
        placing |= _instead_of_unreadable(directory, config)
        model, notes = open_weights(name, directory, classes, **placing)
    held = StoredTensors([directory / file for file in weights], fields) if safe else None
    if adapter is not None:
        adapt(model, adapter)
        notes = (adapter.note, *notes)
        if held is not None:
            held.adapter = adapter.tensors
    metadata = files.stored_metadata(directory, weights)
    revision = commit or stated_revision(metadata)
    facts: dict[str, Any] = {"device": target, "revision": revision, "notes": notes}
    if reads == "picture":
        facts["notes"] = tuple(note for note in notes if NO_PREDICTIONS not in note)
        return picture_model(name, model, processor, **facts)
    if reads == "picture and text":
        return picture_text_model(name, model, processor, **facts)
    if reads == "sound":
        return speech_model(name, model, tokenizer, processor, **facts)
    facts |= {"trained_tokens": trained_tokens(metadata), "stored": held}
    return prepared(name, model, tokenizer, **facts)


def _parted(name: str, config: Any) -> dict[str, Any]:
    """Return options that split a model over torchrun's processes; UnsupportedError if uneven."""
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


def load_shape(shape: Shape, options: LoadOptions = USUAL) -> TransformersModel:
    """Build a model from a built-in configuration, with random parameters and words as tokens.

    options: a dtype of ``auto`` is float32. If its work reads pictures, the part that reads
    pictures is taken, which are scaled to its size. Raises LoadError for a configuration without a
    ``config``, one that fits no model, or parameters that do not fit into the free memory,
    UnsupportedError if the model takes no text, UsageError for an unknown dtype or device.
    """
    target, number_type = find_device(options.device), find_dtype(options.dtype) or torch.float32
    pictures, seed = options.work.reads == "picture", options.seed
    name = shape.name
    if not shape.config:
        raise LoadError(
            f"the shape {name!r} can be counted (`attnviz params {name}`) but not built: "
            f"transformers has no config for it"
        )
    files.check_layers(name, shape.config)
    fields = {key: value for key, value in shape.config.items() if key != "model_type"}
    with third_party(f"the shape {name!r} is not a model that transformers {_VERSION} knows"):
        config = transformers.AutoConfig.for_model(shape.config["model_type"], **fields)
        without_choices(config)
        model_class = getattr(transformers, shape.config["architectures"][0])
        _require_input(name, model_class, PIXELS if pictures else "input_ids")
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in model_class(config).parameters())
    for needed_on in {torch.device("cpu"), target}:  # drawn on the CPU: the same on every device
        require_memory(name, parameters * number_type.itemsize, needed_on)
    with third_party(f"the shape {name!r} cannot be built"), drawing(number_type, seed):
        model = model_class(config)
    untrained = (
        f"untrained random weights in the shape of {name} ({parameters:,} parameters): "
        "patterns are arbitrary"
    )
    if pictures:
        read = plain_processor(model)
        return picture_model(name, model, read, device=target, seed=seed, notes=(untrained,))
    notes = (
        untrained,
        "no tokenizer belongs to random weights: the text is split into words at white space",
    )
    return prepared(name, model, None, target, seed=seed, notes=notes)


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
        if about := fields.get("quantization_config"):  # of a file next to config.json, too
            config.quantization_config = about
        return without_choices(config)


@contextmanager
def _named_scheme(name: str, fields: Mapping[str, Any]) -> Iterator[None]:
    """Name, in an error on weights, the quantisation that transformers does not read."""
    about = fields.get("quantization_config")
    method = about.get("quant_method") if isinstance(about, dict) else None
    try:
        yield
    except LoadError as error:
        from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING  # imports much

        if method is None or any(known.startswith(str(method)) for known in AUTO_QUANTIZER_MAPPING):
            raise
        raise LoadError(
            f"{name!r} is quantised as {method!r:.40}, which transformers {_VERSION} does not "
            "read: take the checkpoint that it was made from"
        ) from error


def _instead_of_unreadable(directory: Path, config: Any) -> dict[str, Any]:
    """Return options that replace an unreadable generation_config.json, which no result needs."""
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
    lacks = not files.has_vocabulary(files.file_names(directory))
    without = LoadError(
        f"{name!r} has no tokenizer: the directory has no tokenizer.json or vocabulary; "
        f"copy the tokenizer's files next to config.json"
    )
    try:
        with tokenizing(name):
            check_files(name, directory)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=trust_remote_code
            )
    except LoadError as error:
        raise without if lacks else error from error
    # Without their files many tokenizer classes are empty, without a warning.
    if tokenizer.vocab_files_names and lacks:
        raise without
    return tokenizer


def _needs_code(name: str) -> str:
    return (
        f"{name!r} needs Python code from its own repository to run: read that code, then pass "
        f"--trust-remote-code if you trust it"
    )


def _classes(
    name: str, directory: Path, config: Any, trust_remote_code: bool, main_input: str
) -> list[Any]:
    """Return the checkpoint's model class, which must take an input, then its bare one."""
    wanted = str((getattr(config, "architectures", None) or [None])[0])
    named = getattr(transformers, wanted, None)
    references = map(str, (getattr(config, "auto_map", None) or {}).values())
    own = [reference for reference in references if reference.endswith(f".{wanted}")]
    classes: list[Any] = []
    # A config may name any attribute of the library, even a function.
    if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
        classes = [named]
    elif own:
        if not trust_remote_code:
            raise LoadError(_needs_code(name))
        with third_party(f"the code of {name!r} cannot be used"):
            classes = [get_class_from_dynamic_module(own[0], directory, local_files_only=True)]
    bare = _bare_class(config)
    classes += [bare] if bare is not None and bare not in classes else []
    if not classes:
        raise LoadError(
            f"{name!r} is a {wanted}, which transformers {_VERSION} does not know: a newer one may"
        )
    _require_input(name, classes[0], main_input)
    reads = getattr(classes[0], "config_class", None)
    parts = [config, *(getattr(config, part, None) for part in config.sub_configs)]
    if reads is not None and not any(isinstance(part, reads) for part in parts):
        raise LoadError(
            f"the config.json of {name!r} does not fit itself: a {classes[0].__name__} reads a "
            f"{reads.__name__}, its model_type {config.model_type!r} is a {type(config).__name__}"
        )
    return classes


def _require_input(name: str, model_class: Any, main_input: str) -> None:
    """Raise UnsupportedError if a model's class does not take an input, a text or a picture."""
    takes = arguments_of(model_class)
    if main_input not in takes:
        lacks = {PIXELS: "no image", FEATURES: "no audio"}.get(main_input, "no text")
        advice = ": give an image with --image FILE" if PIXELS in takes else ""
        advice = ": give audio with --audio FILE" if FEATURES in takes else advice
        raise UnsupportedError(f"{name!r} is a {model_class.__name__}, which takes {lacks}{advice}")


def _bare_class(config: Any) -> Any:
    """Return the class without a head of the model that a config describes; None if unknown."""
    bare: Any = transformers.MODEL_MAPPING.get(type(config), None)
    return bare[0] if isinstance(bare, (tuple, list)) else bare


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


# Weights ----------------------------------------------------------------------------------------

# A tensor's name, its shape in the file, and the shape that its config requires.
_Mismatch = tuple[str, Sequence[int], Sequence[int]]
_LAYER = re.compile(r"(.*?)\.(\d+)\.")
_SLACK = 10**7  # parameters that may be missing beside as many as the files have: a head's
_MOST_PACKED = 8  # the most quantised numbers in one byte of a file, of one bit each


def needed_memory(
    name: str,
    model_class: Any,
    config: Any,
    shapes: files.Shapes,
    *,
    stored: int,
    dtype: torch.dtype | None,
) -> int:
    """Return the bytes that the model of a config needs, after comparing it with its files.

    The model is built without memory for its tensors. Quantised tensors, and those of a class with
    code of its own, are taken to need as many bytes as in the files, ``stored``. shapes: empty if
    unknown. dtype: None for the config's own. Raises LoadError if the config gives no model, or one
    that has more numbers than its files.
    """
    if not model_class.__module__.startswith("transformers."):
        return stored
    with third_party(f"the config.json of {name!r} makes no model"), torch.device("meta"):
        model = model_class(deepcopy(config))
    asked, held = sum(map(torch.numel, model.parameters())), sum(map(prod, shapes.values()))
    packed = getattr(config, "quantization_config", None) is not None
    if packed:
        held = stored * _MOST_PACKED
    else:
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        mismatches: list[_Mismatch] = []
        for tensor, parameter in model.named_parameters(remove_duplicate=False):
            stored_names = (tensor, tensor.removeprefix(prefix), prefix + tensor)
            sizes = (shapes[own] for own in stored_names if own in shapes)
            other = next((size for size in sizes if prod(size) != parameter.numel()), None)
            mismatches += [] if other is None else [(tensor, other, parameter.shape)]
        _refuse_other_shapes(name, mismatches)
    if held and asked > 2 * held + _SLACK:
        raise LoadError(
            f"{name!r} does not fit its config.json: that asks for {asked:,} parameters, and "
            f"its files hold {'at most ' * packed}{held:,}"
        )
    if packed:
        return stored
    kind = dtype or getattr(config, "dtype", None)
    if not isinstance(kind, torch.dtype):
        return stored
    return (asked + sum(map(torch.numel, model.buffers()))) * kind.itemsize


def _refuse_other_shapes(name: str, mismatches: Sequence[_Mismatch]) -> None:
    for tensor, *shapes in sorted(mismatches)[:1]:
        stored, expected = ("×".join(map(str, shape)) for shape in shapes)
        raise LoadError(
            f"{name!r} does not fit its config.json: {tensor} is {stored} in the file and "
            f"should be {expected} ({len(mismatches)} such)"
        )


def open_weights(
    name: str, directory: Path, classes: Sequence[Any], **options: Any
) -> tuple[Any, tuple[str, ...]]:
    """Return a model with all its parameters from the files, and notes for the reader.

    classes: the model class that the checkpoint names, then the same without head, which is used if
    only the head's parameters are missing. options: for ``from_pretrained``. Raises LoadError if
    parameters are missing, have other sizes, or cannot be read.
    """
    first_lack: list[str] = []
    for model_class in classes:
        pools = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
        for extra in ({}, {"add_pooling_layer": False})[: 1 + pools]:
            with third_party(f"the weights of {name!r} cannot be read"):
                model, report = model_class.from_pretrained(
                    directory,
                    local_files_only=True,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # reported below, more clearly
                    **{**options, **extra},
                )
            _refuse_other_shapes(name, list(report["mismatched_keys"]))
            missing = set(report["missing_keys"])
            if not missing:
                beyond = _beyond(model, report["unexpected_keys"])
                return model, (*beyond, *_notes(model, classes[0], bool(first_lack)))
            ordered = [tensor for tensor in model.state_dict() if tensor in missing]
            first_lack = first_lack or ordered + sorted(missing.difference(ordered))
    count = len(first_lack)
    raise LoadError(
        f"{name!r} lacks {count} weight{'s' * (count > 1)} of a {classes[0].__name__}, "
        f"first {first_lack[0]}: it is incomplete, or its config.json belongs to another model"
    )


def adapt(model: Any, adapter: LoraAdapter) -> None:
    """Change a model's parameters as an adapter does; tied ones that it changes are untied.

    Raises LoadError if it does not fit, UnsupportedError if they are quantised.
    """
    every = dict(model.named_parameters(remove_duplicate=False))
    owners = Counter(map(id, every.values()))
    turned = {
        name
        for name in every
        if type(model.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D"
    }
    for name, change in adapter.on(every, turned).items():
        weight = every[name]
        if not weight.is_floating_point():
            raise UnsupportedError(
                f"{adapter.name!r} is an adapter of a quantised model: {name} is stored as "
                f"{weight.dtype}; merge it into its base with peft (merge_and_unload)"
            )
        module, _, leaf = name.rpartition(".")
        changed = torch.from_numpy(change(weight.detach().float().cpu().numpy()))
        setattr(model.get_submodule(module), leaf, nn.Parameter(changed.to(weight.dtype)))
        if owners[id(weight)] > 1:
            model.config.tie_word_embeddings = False


def _beyond(model: Any, unexpected: Iterable[str]) -> list[str]:
    """Return a note if the files hold more layers than the model. unexpected: names left out."""
    known, others = (
        {(m[1].rpartition(".")[2], int(m[2])) for m in map(_LAYER.match, names) if m}
        for names in (model.state_dict(), unexpected)
    )
    last = {stack: max(number for name, number in known if name == stack) for stack, _ in known}
    beyond = sorted(number for stack, number in others if number > last.get(stack, number))
    if not beyond:
        return []
    return [
        f"the files hold layers {beyond[0]} to {beyond[-1]} too, which config.json does not name"
    ]


def _notes(model: Any, named: Any, head_missing: bool) -> tuple[str, ...]:
    opened = type(model).__name__
    if head_missing and type(model) is not named:
        return (
            f"the checkpoint lacks the weights of {named.__name__}'s head: "
            f"opened as its bare {opened}, so {NO_PREDICTIONS}",
        )
    if model.get_output_embeddings() is None:
        return (f"{opened} has no language-model head: {NO_PREDICTIONS}",)
    return ()
