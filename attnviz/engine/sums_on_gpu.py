"""What sums over attention need on a GPU: the kernels where they run, and enough memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attnviz.engine.device_sizes import sizes
from attnviz.engine.observer import note_of_runs
from attnviz.engine.reduced_torch import TorchLayer
from attnviz.models.memory import require_room
from attnviz.models.split import device_of
from attnviz.models.transformers_model import TransformersModel

_NUMBERS = 160
"""About how many numbers the row of a head has: columns, equal tokens in nine orders, and for a
kernel's own use up to 64 columns and 64 buckets."""

_LEFT_BYTES = 2**30
"""More memory than this is returned after a pass, of what torch holds and does not use."""


def layer_maker() -> Callable[..., TorchLayer]:
    """Return a function that makes each layer of one pass, with the arguments of ``TorchLayer``.

    It returns a ``TritonLayer`` if the queries are on a GPU of NVIDIA or AMD (torch calls both
    ``cuda``) and Triton is installed; otherwise a ``TorchLayer``.
    """
    run: Any = None

    def make(query: Tensor, *given: Any, **options: Any) -> TorchLayer:
        nonlocal run
        kernels = _kernels() if query.device.type == "cuda" else None
        if kernels is None:
            return TorchLayer(query, *given, **options)
        run = run or kernels.KernelRun()
        return kernels.TritonLayer(query, *given, **options, run=run)

    return make


@cache
def _kernels() -> Any:
    """Return the module with the kernels; None without Triton, with a note if it is broken."""
    if find_spec("triton") is None:
        return None
    try:
        return import_module("attnviz.engine.reduced_triton")
    except Exception as error:  # noqa: BLE001 - such as of a release that is too old
        why = f"triton cannot be imported ({type(error).__name__})"
        note_of_runs(f"attention is summed in blocks, which is slower: {why}")
        return None


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Make ``cuda`` multiply in full float32 inside this context: TF32 keeps 10 bits of a score."""
    chosen = torch.get_float32_matmul_precision()
    try:
        if device.type == "cuda":
            torch.set_float32_matmul_precision("highest")
        yield
    finally:
        if device.type == "cuda":
            torch.set_float32_matmul_precision(chosen)


@contextmanager
def sums_on_gpu(model: TransformersModel, texts: int, tokens: int) -> Iterator[None]:
    """Check a GPU's memory for a pass with sums in this context; free unused memory on leaving.

    texts, tokens: how many texts, of how many tokens each. Raises UsageError if they do not fit.
    """
    device = device_of(model.model)
    if device.type == "cpu":
        yield
        return
    require_room(
        f"a pass over {tokens:,} tokens with sums over its attention takes beside the model",
        pass_bytes(model, texts, tokens),
        "shorten the text",
        device,
    )
    every = (each.device for each in model.model.parameters())
    own = {device, *(other for other in every if other.type == device.type)}
    card: Any = getattr(torch, device.type)
    try:
        yield
    finally:
        if device.type == "mps":
            held = card.driver_allocated_memory() - card.current_allocated_memory()
        else:
            held = sum(card.memory_reserved(on) - card.memory_allocated(on) for on in own)
        if held > _LEFT_BYTES:
            card.empty_cache()


def pass_bytes(model: TransformersModel, texts: int, tokens: int) -> int:
    """Return roughly the most bytes that a pass takes, with the sums of one text at a time.

    Sums are those of as many heads as fit a fixed memory, or of one. A layer holds the states
    before and after it, and beside them its queries, keys and values with the sums over its rows,
    or later what its feed-forward network makes of the states.
    """
    info, width = model.info, model.sizes.width
    inner = getattr(model.model.config, "intermediate_size", None) or 4 * width
    wide = next(model.model.parameters()).element_size()
    attention = wide * texts * 2 * info.head_dim * (info.heads + info.kv_heads)
    one, at_once = 4 * tokens * _NUMBERS, sizes(device_of(model.model).type).sum_bytes
    sums = min(info.heads * one, max(2 * at_once, one))
    states, forward = wide * texts * 2 * width, wide * texts * 2 * inner
    return int(tokens * states + max(tokens * attention + sums, tokens * forward))
