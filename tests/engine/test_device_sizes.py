"""A processor's sizes stay, a GPU's fit its free memory, and any GPU answers as a processor."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

import attnviz
from attnviz.engine.device_sizes import TILE_BYTES, DeviceSizes, sizes, sizes_of, sizes_on, widest
from attnviz.models.prepare import prepared

from ..small_models import llama_fields

GIGABYTE = 10**9
TEXT = " ".join(f"w{word}" for word in np.random.default_rng(1).integers(0, 60, 150))


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


ASKED = {
    "heads": {"reduce": "fused", "top": 3},
    "patterns": {"reduce": "fused"},
    "lens": {},
    "why": {},
    "ablate": {},
}


def numbers(found):
    """All numbers of a JSON object, in order."""
    if isinstance(found, dict):
        found = found.values()
    if isinstance(found, list | type({}.values())):
        return [number for each in found for number in numbers(each)]
    return [found] if isinstance(found, float) else []


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("command", ASKED)
def test_a_gpu_answers_as_the_processor_does(command):
    torch.manual_seed(3)
    fields = llama_fields(12, 17, 512, (6, 2, 4)) | {"vocab_size": 101, "initializer_range": 1.0}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    devices = [torch.device("cpu"), torch.accelerator.current_accelerator()]
    found = []
    for device in devices:
        model = prepared("made", copy.deepcopy(made).to(device), None, device)
        found.append(getattr(attnviz, command)(model, TEXT, **ASKED[command]).to_dict())
        found[-1].pop("seconds", None)
    expected, given = map(numbers, found)
    assert given == pytest.approx(expected, abs=1e-3)
