"""A model against itself in other numbers: what rounding alone does to it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel

if TYPE_CHECKING:
    import torch


class OtherNumbers(NamedTuple):
    """A model in other numbers, and what was done in words."""

    model: Model
    words: str


def in_other_numbers(model: Model) -> OtherNumbers:
    """Return the same weights in bfloat16, the coarsest type; a model in bfloat16 in float32.

    NumPy has no bfloat16: there weights, and what passes between the parts, are rounded to it.
    A torch model that was loaded by name is converted in place, so that the memory need hold no
    second one, and is not to be used as it was afterwards; one that was handed over is copied.

    Raises LoadError where the memory does not hold it, UnsupportedError for a model that stands in
    one kind of numbers alone.
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
    """Return a module with its weights in another type.

    What it computed for itself, such as rotary frequencies, keeps its type, as it does where a
    checkpoint is loaded in that type: rounded, late positions would be turned by other angles.
    """
    stored = set(whole.state_dict())
    own = {name: buffer for name, buffer in whole.named_buffers() if name not in stored}
    converted = whole.to(dtype)
    for path, buffer in own.items():
        place, _, name = path.rpartition(".")
        converted.get_submodule(place).register_buffer(name, buffer, persistent=False)
    return converted
