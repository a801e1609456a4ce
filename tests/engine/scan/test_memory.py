"""A scan keeps under its limit, counted by another watch than the scan's own."""

import gc

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.engine.scan.on_torch import peak_bytes
from attnviz.engine.scan.runner import room_for
from attnviz.errors import UsageError

from ...small_models import gpt_fields
from ..scans import every, torch_scan


def test_the_peak_counts_what_is_alive_at_once():
    def run():
        first = torch.zeros(1000)  # 4,000 bytes
        second = first + 1
        del first
        return torch.cat([second, second])  # 4,000 and 8,000

    assert peak_bytes(run, []) == 12_000
    layer = torch.nn.Linear(50, 60)
    row = torch.ones(1, 50)
    with torch.inference_mode():
        assert peak_bytes(lambda: layer(row).view(60)[:5], [layer]) <= 240 + 200


def test_how_many_removals_fit():
    cpu = torch.device("cpu")
    room = room_for(1000, 500, cpu, 20_000, 7)
    assert room.ablations == (20_000 - 500) // 1250 - 1
    assert room.needed(room.ablations) <= 20_000 < room.needed(room.ablations + 1)
    with pytest.raises(UsageError, match=r"7 tokens takes 3\.00 kB"):
        room_for(1000, 500, cpu, 2999, 7)


class Ledger(TorchDispatchMode):
    """Sums the sizes of all storages that the garbage collector still knows, after each call."""

    def __init__(self, model):
        super().__init__()
        self.own = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
        sizes = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.own:
                sizes[storage.data_ptr()] = storage.nbytes()
        self.peak = max(self.peak, sum(sizes.values()))
        return outputs


@pytest.mark.long
def test_the_peak_of_a_scan_stays_under_the_limit():
    limit = 22_000_000
    torch.manual_seed(0)
    config = GPT2Config(
        **gpt_fields(256, 64, heads=16), vocab_size=997, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(config).eval()
    scan = torch_scan(model, [range(3, 64)], max_memory=limit)
    pieces = []
    gc.collect()
    gc.freeze()  # what is not of this scan is not walked each time
    try:
        ledger = Ledger(model)
        with ledger:
            pieces += scan.scan(0, every(scan), range(32))
    finally:
        gc.unfreeze()
    assert len(pieces) > 1
    assert sum(len(piece.variants) for piece in pieces) == 32
    assert limit / 4 < ledger.peak <= limit
