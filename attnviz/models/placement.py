"""The device, the number type and the random weights of a torch model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attnviz.errors import UsageError
from attnviz.models.third_party import quietly

_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def find_device(name: str) -> torch.device:
    """Return torch's device of this name; raise UsageError if no tensor can be made on it."""
    missing = UsageError(f"no device {name!r} here: expected {' or '.join(_devices())}")
    try:
        with quietly():  # torch warns of deprecated names
            device = torch.device(name)
            torch.empty(0, device=device)
    # The name is unknown, or this build, the accelerator or its module is missing.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise missing from error
    if device.type == "cpu" and device.index:  # torch takes any number, and wraps it at 128
        raise missing
    if device.type == "meta":
        raise UsageError("the device 'meta' holds no numbers: expected " + " or ".join(_devices()))
    return device


def _devices() -> list[str]:
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def find_dtype(name: str) -> torch.dtype | None:
    """Return torch's dtype of this name, None for ``auto``; UsageError for an unknown one."""
    if name != "auto" and name not in _DTYPES:
        raise UsageError(f"no dtype {name!r}: expected auto, {', '.join(_DTYPES)}")
    return _DTYPES.get(name)


@contextmanager
def drawing(number_type: torch.dtype, seed: int) -> Iterator[None]:
    """Set the type and the seed of random parameters for the models built in this context.

    The caller's random state is restored at the end.
    """
    usual = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(number_type)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)
