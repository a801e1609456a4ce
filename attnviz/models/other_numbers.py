"""A model against itself in other numbers: what rounding alone does to it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel


class OtherNumbers(NamedTuple):
    """A model in other numbers, and what was done in words."""

    model: Model
    words: str


def in_other_numbers(model: Model) -> OtherNumbers:
    """The same weights in another dtype: bfloat16, or float32 of a model in 16 bits.

    NumPy has no bfloat16: there every weight, and what passes between the parts, is rounded to it.
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
    whole, narrow = model.model, model.model.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if narrow else torch.bfloat16
    handed = model.info.weights == "loaded"
    if narrow or handed:
        numbers = sum(weight.numel() for weight in whole.parameters())
        require_memory(model.info.name, numbers * dtype.itemsize, whole.device)
    with third_party(f"{model.info.name!r} cannot be run in other numbers"):
        converted = (deepcopy(whole) if handed else whole).to(dtype)
    name = str(dtype).removeprefix("torch.")
    return OtherNumbers(
        replace(model, model=converted, info=replace(model.info, dtype=name)), f"in {name}"
    )
