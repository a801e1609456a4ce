"""How much is computed at once on each kind of device: all sizes that a cache or a GPU sets.

On a processor what is computed at once stands in its cache. A GPU has no such limit: it waits for
each call, so that few large calls are fast, and its memory decides how large they may be.
ROCm's devices are called ``cuda`` in torch, and have the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from attnviz.attention.functional import Array
from attnviz.models.memory import free_memory

if TYPE_CHECKING:  # the bundled model uses this module without torch
    import torch

TILE_BYTES = 16
"""The bytes of an entry of a tile in float32: δ, that of the tile before, its part, the logits."""


@dataclass(frozen=True)
class DeviceSizes:
    """The sizes for one kind of device; the defaults are those of a processor.

    device: its name in torch, such as ``cuda``; ``numpy`` is a processor without torch.
    block_cells: the attention weights in a block that goes to the host, over all heads and texts.
    sum_bytes: bytes of sums over the rows of some heads, and as many for a kernel's own use.
    cells, rows: the most weights, and the most rows, in a block of attention that is reduced to
        sums. In causal attention, half of the last ``rows`` × ``rows`` weights are wasted work.
    sums_from: the shortest text, in tokens, that is scored by sums on this device, and not by maps
        on the host; None decides by the memory that the maps need.
    tile: the rows and words of a tile of compared logits.
    clean_bytes: bytes of the unchanged run's logits and probabilities that are compared at once.
    chunk_bytes: bytes of differences of hidden states that are computed at once.
    kept_bytes: bytes of logits of other prompt pairs that stay in main memory.
    pass_tokens: the tokens of a pass, over all rows; a larger batch is no faster.
    buffer_bytes: bytes of a block's buffers; None runs a block on the whole batch. glibc returns
        buffers of 32 MB and more to the system, as well as free memory beyond twice the largest;
        filling new pages costs a tenth of a matrix product.
    batch_tokens: the tokens of short texts that run in one pass.
    one_token_texts: how many texts of one token run in one pass.
    logit_cells: the log-probabilities that are computed at once.
    """

    device: str = "cpu"
    block_cells: int = 2**20
    sum_bytes: int = 2**28
    cells: int = 2**19
    rows: int = 128
    sums_from: int | None = None
    tile: tuple[int, int] = (1024, 512)
    clean_bytes: int = 48_000_000
    chunk_bytes: int = 16_000_000
    kept_bytes: int = 2**25
    pass_tokens: int = 2**15
    buffer_bytes: int | None = 16_000_000
    batch_tokens: int = 2**11
    one_token_texts: int = 64
    logit_cells: int = 2**21

    @property
    def waits(self) -> bool:
        """Return True if asking for a number makes the processor wait for a GPU."""
        return self.device not in ("cpu", "numpy")


_SMALL_GPU = DeviceSizes(
    "",
    cells=2**24,
    tile=(2**12, 2**12),
    clean_bytes=2**28,
    chunk_bytes=2**28,
    kept_bytes=2**28,
    pass_tokens=2**18,
    buffer_bytes=None,
    batch_tokens=2**13,
    one_token_texts=256,
    logit_cells=2**24,
)
"""The sizes of a GPU that shares its memory with the processor, or of which little is known."""

OF = {
    "cpu": DeviceSizes(),
    "numpy": DeviceSizes("numpy", tile=(512, 512)),
    "mps": replace(_SMALL_GPU, device="mps"),
    "xpu": replace(_SMALL_GPU, device="xpu", cells=2**26, tile=(2**13, 2**13)),
    "cuda": DeviceSizes(
        "cuda",
        cells=2**26,
        sums_from=128,
        tile=(2**14, 2**14),
        clean_bytes=4_000_000_000,
        chunk_bytes=2_000_000_000,
        kept_bytes=2**30,
        pass_tokens=2**30,
        buffer_bytes=None,
        batch_tokens=2**13,
        one_token_texts=512,
        logit_cells=2**28,
    ),
}


def sizes(device: str, free: int | None = None) -> DeviceSizes:
    """Return the sizes for a device, such as ``cuda:1``, or ``numpy`` for a run without torch.

    free: the bytes that may be used on it. On a GPU no size takes more than an eighth of them;
        None, or a processor, sets no such limit.
    """
    kind = device.partition(":")[0]
    chosen = OF.get(kind) or replace(_SMALL_GPU, device=kind)
    if free is None or not chosen.waits:
        return chosen
    share = max(free // 8, 1)
    cells = max(1, share // TILE_BYTES)
    side = isqrt(cells)
    rows, words = chosen.tile
    return replace(
        chosen,
        cells=min(chosen.cells, cells),
        tile=(min(rows, side), min(words, side)),
        clean_bytes=min(chosen.clean_bytes, share),
        chunk_bytes=min(chosen.chunk_bytes, share),
        logit_cells=min(chosen.logit_cells, cells),
    )


def widest(array: Array) -> Array:
    """Return an array in float64; of a device that has no such numbers a copy in main memory."""
    if isinstance(array, np.ndarray):
        return array.astype(np.float64)
    device, lacks = array.device, array.device.type == "mps"
    if device.type == "xpu":
        import torch

        lacks = not torch.xpu.get_device_properties(device).has_fp64
    return (array.cpu() if lacks else array).double()


def sizes_of(array: Array) -> DeviceSizes:
    """Return the sizes, as ``sizes_on``, for the device of an array of NumPy or torch."""
    return sizes_on(array.device) if hasattr(array, "is_cuda") else sizes("numpy")


def sizes_on(device: torch.device, most: int | None = None) -> DeviceSizes:
    """Return the sizes for a device by its free memory now. most: the bytes that may be used."""
    free = None if device.type == "cpu" else free_memory(device)
    known = [size for size in (free, most) if size is not None]
    return sizes(device.type, min(known, default=None))
