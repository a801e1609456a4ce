"""Refuses options that the chosen model cannot heed, so that none is silently ignored."""

from __future__ import annotations

from collections.abc import Iterable

from attnviz.errors import UsageError
from attnviz.models.resolve import LoadOptions

__all__ = ["refuse_unheeded"]

_BUILT_IN = ("tiny", "mha")


def refuse_unheeded(model: str, options: LoadOptions, shape: Iterable[str]) -> None:
    """Raise UsageError for an option that says nothing about ``model``.

    shape: the options of ``mha``'s shape that were given.
    """
    first = next(iter(shape), None)
    if first is not None and model != "mha":
        option = "--" + first.replace("_", "-")
        raise UsageError(f"{option} shapes the library's own attention: add --model mha")
    if model not in _BUILT_IN:
        return
    if options.revision is not None:
        raise UsageError(f"{model!r} is built in: --revision is for models of the hub")
    if options.device != "cpu":
        raise UsageError(
            f"{model!r} runs in NumPy on the cpu: --device {options.device} is for Hugging Face "
            "models"
        )
    if model == "mha" and options.dtype not in ("auto", "float32"):
        raise UsageError(f"{model!r} computes in float32, got --dtype {options.dtype}")
