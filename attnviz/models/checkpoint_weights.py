"""Reads a checkpoint's weights into a model, and makes sure that every one of them was read.

A tensor that the files lack is drawn at random by transformers with no more than a log line.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnviz.errors import LoadError
from attnviz.models.foreign import foreign

__all__ = ["arguments", "open_weights"]

_POOLER = "add_pooling_layer"


def open_weights(
    name: str, directory: Path, classes: Sequence[Any], **options: Any
) -> tuple[Any, tuple[str, ...]]:
    """A model with all its weights from the files, and what a reader must know about it.

    classes: the model class that the checkpoint names, then the bare one beneath its head, which
        is taken where only the head's weights are missing.
    options: for ``from_pretrained``.

    Raises:
        LoadError: weights are missing, have other sizes, or cannot be read.
    """
    first_lack: list[str] = []
    for model_class in classes:
        for extra in _variants(model_class):
            model, lack = _read(name, directory, model_class, {**options, **extra})
            if not lack:
                return model, _notes(model, classes[0], bool(first_lack))
            first_lack = first_lack or lack
    count = len(first_lack)
    raise LoadError(
        f"{name!r} lacks {count} weight{'s' * (count > 1)} of a {classes[0].__name__}, "
        f"first {first_lack[0]}: it is incomplete, or its config.json belongs to another model"
    )


def _variants(model_class: Any) -> list[dict[str, Any]]:
    """As it is, and without the pooler that some encoders were stored without."""
    return [{}, {_POOLER: False}] if _POOLER in arguments(model_class.__init__) else [{}]


def arguments(function: Any) -> set[str]:
    """The names of a function's parameters."""
    return set(inspect.signature(function).parameters)


def _read(
    name: str, directory: Path, model_class: Any, options: dict[str, Any]
) -> tuple[Any, list[str]]:
    """The model and the names of the weights that were missing, in the model's order."""
    with foreign(f"the weights of {name!r} cannot be read"):
        model, report = model_class.from_pretrained(
            directory,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported, which is clearer than the error
            **options,
        )
    for tensor, stored, expected in sorted(report["mismatched_keys"]):
        raise LoadError(
            f"{name!r} does not fit its config.json: {tensor} is {_size(stored)} in the file and "
            f"should be {_size(expected)} ({len(report['mismatched_keys'])} such)"
        )
    missing = set(report["missing_keys"])
    ordered = [tensor for tensor in model.state_dict() if tensor in missing]
    return model, ordered + sorted(missing.difference(ordered))


def _size(shape: Sequence[int]) -> str:
    return "×".join(str(length) for length in shape)


def _notes(model: Any, named: Any, head_missing: bool) -> tuple[str, ...]:
    opened = type(model).__name__
    if head_missing and type(model) is not named:
        return (
            f"the checkpoint lacks the weights of {named.__name__}'s head: "
            f"opened as its bare {opened}, so predictions cannot be measured",
        )
    if model.get_output_embeddings() is None:
        return (f"{opened} has no language-model head: predictions cannot be measured",)
    return ()
