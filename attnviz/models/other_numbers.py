"""A model in another number type, to measure the effect of rounding alone."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel

if TYPE_CHECKING:
    import torch


class OtherNumbers(NamedTuple):
    """A model converted to another number type. words: describes the change."""

    model: Model
    words: str


def in_other_numbers(model: Model) -> OtherNumbers:
    """Return the same model in bfloat16, the coarsest type; a bfloat16 model in float32.

    NumPy has no bfloat16: there parameters and intermediate results are rounded to it. A torch
    model that was loaded by name is converted in place, since memory may not hold two, and must not
    be used afterwards; one that was handed over is copied.

    Raises LoadError if memory does not suffice, UnsupportedError for a model that exists in one
    number type only.
    """
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
    """Return a module with its parameters in another type.

    whole: the module. dtype: the type.
    Buffers that it computed itself, such as rotary frequencies, keep their type, as in a checkpoint
    loaded in that type: rounding would change the angles of late positions.
    """
    stored = set(whole.state_dict())
    own = {name: buffer for name, buffer in whole.named_buffers() if name not in stored}
    converted = whole.to(dtype)
    for path, buffer in own.items():
        place, _, name = path.rpartition(".")
        converted.get_submodule(place).register_buffer(name, buffer, persistent=False)
    return converted
