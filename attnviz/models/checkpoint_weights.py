"""Reads a checkpoint's weights into a model, and ensures that every weight was in the files.

transformers draws a tensor that the files lack at random, and only logs it.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.adapters import LoraAdapter
from attnviz.models.checkpoint_files import Shapes
from attnviz.models.third_party import third_party
from attnviz.records import NO_PREDICTIONS

_Mismatch = tuple[str, Sequence[int], Sequence[int]]
"""A tensor's name, its shape in the file, and the shape that its config requires."""

_LAYER = re.compile(r"(.*?)\.(\d+)\.")
_POOLER = "add_pooling_layer"
_SLACK = 10**7
"""Parameters that may be missing in addition to as many as the files have: those of a head."""

_MOST_PACKED = 8
"""The most quantised numbers in one byte of a file, of one bit each."""


def needed_memory(
    name: str,
    model_class: Any,
    config: Any,
    shapes: Shapes,
    *,
    stored: int,
    dtype: torch.dtype | None,
) -> int:
    """Return the bytes that the model of a config needs, after comparing it with its files.

    The model is built without memory for its tensors. Quantised tensors, and those of a class with
    code of its own, are taken to need as many bytes as in the files.

    name: of the model, for messages. model_class: the class to build.
    shapes: of the tensors in the files; empty if unknown.
    stored: the bytes of the files. dtype: number type in memory, None for the config's own.

    Raises LoadError if the config gives no model, or one that has more numbers than its files.
    """
    if not model_class.__module__.startswith("transformers."):
        return stored
    with third_party(f"the config.json of {name!r} makes no model"), torch.device("meta"):
        model = model_class(deepcopy(config))
    asked, held = _numbers(model.parameters()), sum(map(prod, shapes.values()))
    packed = getattr(config, "quantization_config", None) is not None
    if packed:
        held = stored * _MOST_PACKED
    elif shapes:
        _refuse_other_shapes(name, _differing(model, shapes))
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
    return (asked + _numbers(model.buffers())) * kind.itemsize


def _numbers(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _differing(model: nn.Module, shapes: Shapes) -> list[_Mismatch]:
    """Return the parameters of ``model`` whose number of elements differs from the files.

    shapes: of the tensors in the files, by name.
    The names of a model without a head lack the prefix that they have in a model with a head. A
    tensor that is stored in another order has another shape, but as many numbers.
    """
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    found: list[_Mismatch] = []
    for tensor, parameter in model.named_parameters(remove_duplicate=False):
        for stored in (tensor, tensor.removeprefix(prefix), prefix + tensor):
            if stored in shapes and prod(shapes[stored]) != parameter.numel():
                found.append((tensor, shapes[stored], parameter.shape))
                break
    return found


def _refuse_other_shapes(name: str, differing: Sequence[_Mismatch]) -> None:
    for tensor, stored, expected in sorted(differing)[:1]:
        raise LoadError(
            f"{name!r} does not fit its config.json: {tensor} is {_size(stored)} in the file and "
            f"should be {_size(expected)} ({len(differing)} such)"
        )


def open_weights(
    name: str, directory: Path, classes: Sequence[Any], **options: Any
) -> tuple[Any, tuple[str, ...]]:
    """Return a model with all its parameters from the files, and notes for the reader.

    name: of the model, for messages. directory: where the files are.
    classes: the model class that the checkpoint names, then the same without head, which is used if
        only the head's parameters are missing. options: for ``from_pretrained``.

    Raises LoadError if parameters are missing, have other sizes, or cannot be read.
    """
    first_lack: list[str] = []
    for model_class in classes:
        unpooled = [{_POOLER: False}] if _POOLER in arguments(model_class.__init__) else []
        for extra in ({}, *unpooled):
            model, lack, beyond = _read(name, directory, model_class, {**options, **extra})
            if not lack:
                return model, (*beyond, *_notes(model, classes[0], bool(first_lack)))
            first_lack = first_lack or lack
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


def arguments(function: Any) -> set[str]:
    """Return the names of a function's parameters."""
    return set(inspect.signature(function).parameters)


def _read(
    name: str, directory: Path, model_class: Any, options: dict[str, Any]
) -> tuple[Any, list[str], list[str]]:
    """Return a model, the names of parameters that the files lack, and a note on layers too many.

    name: of the model, for messages. directory: where the files are.
    options: for ``from_pretrained``. The names are in the model's order.
    """
    with third_party(f"the weights of {name!r} cannot be read"):
        model, report = model_class.from_pretrained(
            directory,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, more clearly
            **options,
        )
    _refuse_other_shapes(name, list(report["mismatched_keys"]))
    missing = set(report["missing_keys"])
    ordered = [tensor for tensor in model.state_dict() if tensor in missing]
    lack = ordered + sorted(missing.difference(ordered))
    return model, lack, _beyond(model, report["unexpected_keys"])


def _beyond(model: Any, unexpected: Iterable[str]) -> list[str]:
    """Return a note if the files hold more layers than the model. unexpected: names left out."""
    known, others = (
        {(one[1].rpartition(".")[2], int(one[2])) for one in map(_LAYER.match, names) if one}
        for names in (model.state_dict(), unexpected)
    )
    last = {stack: max(number for name, number in known if name == stack) for stack, _ in known}
    beyond = sorted(number for stack, number in others if number > last.get(stack, number))
    if not beyond:
        return []
    return [
        f"the files hold layers {beyond[0]} to {beyond[-1]} too, which config.json does not name"
    ]


def _size(shape: Sequence[int]) -> str:
    return "×".join(str(length) for length in shape)


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
