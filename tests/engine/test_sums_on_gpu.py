"""A pass on a GPU is refused before it runs out of memory; here with a GPU that is made up."""

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnviz.engine import sums
from attnviz.engine.reduced_torch import TorchLayer
from attnviz.errors import UsageError
from attnviz.models import memory

from .test_backend import opened


@pytest.fixture
def freed(monkeypatch):
    """A GPU with 3 MB free, of which torch holds 4 GB and uses 1 GB; what is returned to it."""
    returned = []
    monkeypatch.setattr(sums, "device_of", lambda model: torch.device("cuda"))
    monkeypatch.setattr(memory, "free_memory", lambda device=None: 3_000_000)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2**30)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: returned.append("all"))
    return returned


def test_a_text_that_does_not_fit_is_refused_in_words(freed):
    model = opened("llama")
    with (
        pytest.raises(UsageError, match=r"9,000 tokens .* MB, 3.00 MB are free on cuda: short"),
        sums.sums_on_gpu(model, 1, 9_000),
    ):
        raise AssertionError
    ran = []
    with sums.sums_on_gpu(model, 1, 500):
        ran.append(500)
    assert ran
    with pytest.raises(KeyError), sums.sums_on_gpu(model, 1, 500):
        raise KeyError
    assert freed == ["all", "all"]


def test_scores_are_not_rounded_to_tf32_and_the_caller_s_choice_comes_back():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        for device, inside in (("cuda", "highest"), ("cpu", "medium")):
            with suppress(KeyError), sums.exact_products(torch.device(device)):
                assert torch.get_float32_matmul_precision() == inside
                raise KeyError
            assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_bytes_of_a_pass_grow_with_texts_and_tokens():
    model = opened("llama")
    one = sums.pass_bytes(model, 1, 100)
    assert sums.pass_bytes(model, 1, 200) == 2 * one
    assert one < sums.pass_bytes(model, 4, 100) < 4 * one


def test_sums_of_a_long_text_take_a_fixed_memory(monkeypatch):
    """Not that of all heads at once: what is left grows as the states of the trunk."""
    model, long = opened("llama"), 400_000
    whole = sums.pass_bytes(model, 1, long)
    every = 4 * long * sums._NUMBERS * model.info.heads
    monkeypatch.setattr(sums, "_NUMBERS", 0)
    assert whole - sums.pass_bytes(model, 1, long) <= 2**29 < every


def test_a_triton_that_cannot_be_imported_leaves_a_note_once(monkeypatch):
    notes = []
    monkeypatch.setattr(sums, "note_of_runs", notes.append)
    monkeypatch.setattr(sums, "find_spec", lambda name: name)
    monkeypatch.setattr(sums, "import_module", {}.__getitem__)
    sums._kernels.cache_clear()
    make = sums.layer_maker()
    query, key = (SimpleNamespace(device=torch.device("cuda")) for _ in range(2))
    monkeypatch.setattr(sums, "TorchLayer", lambda *given, **options: given)
    assert make(query, key) == make(query, key) == (query, key)
    assert len(notes) == 1
    assert notes[0].endswith("which is slower: triton cannot be imported (KeyError)")
    sums._kernels.cache_clear()


def test_a_processor_takes_blocks():
    make = sums.layer_maker()
    layer = make(torch.ones(2, 3, 4), torch.ones(1, 3, 4), 1.0, ranges=(np.zeros(3), np.arange(3)))
    assert type(layer) is TorchLayer
