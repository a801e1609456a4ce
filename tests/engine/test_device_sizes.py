"""A processor's sizes do not change, and a GPU's never take more than its free memory."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnviz.engine.device_sizes import TILE_BYTES, DeviceSizes, sizes, sizes_of, sizes_on, widest

GIGABYTE = 10**9


def test_a_processor_has_its_own_whatever_is_free():
    assert sizes("cpu", 1) == sizes("cpu") == sizes_of(torch.zeros(1)) == DeviceSizes()
    assert sizes_on(torch.device("cpu"), 1) == DeviceSizes()
    assert sizes_of(np.zeros(1)) == sizes("numpy")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "xpu", "another"])
@pytest.mark.parametrize("free", [0, 1_000, 100_000_000, 8 * GIGABYTE, 80 * GIGABYTE])
def test_a_gpu_fills_at_most_an_eighth_of_what_is_free(device, free):
    most, found = sizes(device), sizes(device, free)
    assert found.device == most.device == device.partition(":")[0]
    share = max(free // 8, TILE_BYTES)
    assert TILE_BYTES * found.tile[0] * found.tile[1] <= share
    assert TILE_BYTES * max(found.cells, found.logit_cells) <= share
    assert max(found.clean_bytes, found.chunk_bytes) <= share
    assert min(found.tile) >= 1
    assert most.tile >= found.tile
    if free == 80 * GIGABYTE:
        assert (found.tile, found.cells) == (most.tile, most.cells)


def test_what_a_device_has_no_numbers_for_is_computed_in_main_memory():
    half = torch.ones(2, dtype=torch.float16)
    on_metal = SimpleNamespace(device=torch.device("mps"), cpu=lambda: half)
    for given in (half, on_metal):
        assert torch.equal(widest(given), half.double())
    assert widest(np.ones(2, np.float32)).dtype == np.float64
