"""The devices, the number type and the random weights of a torch model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from attnviz.errors import LoadError, UsageError
from attnviz.models.third_party import quietly
from attnviz.options import read_size

SPREAD = "auto"  # the name of the device that stands for all devices, main memory and disk together
# Matches the name of a module that is an entry of a list and in no other list.
_LAYER = re.compile(r"\D*\.\d+").fullmatch
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


def spread(max_memory: str | None, offload: str | None) -> dict[str, Any]:
    """Return options of ``from_pretrained`` that place layers on all devices, in memory, on disk.

    max_memory: the most of it on each device and in main memory, as typed. offload: a directory for
    what fits nowhere. Raises LoadError if accelerate, which places the layers, is not installed, or
    if the directory cannot be written to.
    """
    if find_spec("accelerate") is None:
        raise LoadError(
            "--device auto places layers with accelerate, which is not installed: "
            "pip install 'attnviz[dist]'"
        )
    if offload is not None:
        path, shown = Path(offload), f"--offload {offload!r}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise LoadError(f"{shown} is not a directory: name one, or a new one") from error
        except OSError as error:
            raise LoadError(f"{shown} cannot be made: {error.strerror}; name another") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise LoadError(f"{shown} is not writable: name another directory")
    options: dict[str, Any] = {"device_map": "auto", "offload_folder": offload}
    if max_memory is not None:
        most = read_size(max_memory)
        options["max_memory"] = dict.fromkeys([*range(torch.cuda.device_count()), "cpu"], most)
    return options


def places_of(model: Any) -> tuple[str, tuple[str, ...]]:
    """Return the devices of a model's parts, and a note on its layers; empty for one device."""
    placed: Mapping[str, Any] = getattr(model, "hf_device_map", None) or {}
    if not placed:
        return "", ()
    every = list(dict.fromkeys(map(_device_name, placed.values())))
    if len(every) == 1:
        return every[0], (f"all of its weights lie on {every[0]}",)
    layers = []
    for name in filter(_LAYER, dict(model.named_modules())):
        while name not in placed:  # it is where the module around it is
            name = name.rpartition(".")[0]
        layers.append(_device_name(placed[name]))
    runs = ", ".join(f"{len(list(run))} on {device}" for device, run in groupby(layers))
    return " and ".join(every), (f"of its {len(layers)} layers, from the first: {runs}",)


def _device_name(device: Any) -> str:
    return f"cuda:{device}" if isinstance(device, int) else str(device)


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
    """Set the type and the seed of random parameters for the models built in this context."""
    usual = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(number_type)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)
