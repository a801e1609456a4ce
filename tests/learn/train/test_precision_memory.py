"""Which numbers training computes in, and whether it fits."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.errors import LoadError
from attnviz.learn.train.recipe import Recipe
from attnviz.learn.train.train import needed_memory, require_training_memory, with_known_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "chosen"),
    [
        ({"avx512_bf16": True, "cpu_name": "bf16"}, "bfloat16"),
        ({"amx_bf16": True}, "bfloat16"),
        ({"avx512_bf16": False, "avx2": True, "cpu_name": "bf16"}, "float32"),
    ],
)
def test_a_processor_decides_by_its_instructions(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, object], chosen: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert with_known_precision(Recipe(), CPU).autocast == chosen


def config(recipe: Recipe, vocabulary: int = 301) -> DecoderConfig:
    return DecoderConfig(vocabulary=vocabulary, tied=True, **asdict(recipe.model))


def test_weights_and_logits_are_counted(recipe: Recipe) -> None:
    shape = config(recipe)
    parameters = sum(one.numel() for one in TorchDecoder(shape).parameters())
    needed = needed_memory(shape, recipe)
    logits = 5 * 23 * 301 * 4
    assert needed > 16 * parameters + 2 * logits
    larger = replace(recipe, phases=(*recipe.phases[:1], replace(recipe.phases[1], batch=50)))
    assert needed_memory(shape, larger) - needed > 2 * 9 * logits


def test_what_does_not_fit_is_refused(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = needed_memory(config(recipe), recipe)
    for free in (None, needed):
        monkeypatch.setattr("attnviz.learn.train.train.free_memory", lambda device, free=free: free)
        require_training_memory(config(recipe), recipe, CPU)
    monkeypatch.setattr("attnviz.learn.train.train.free_memory", lambda device: needed - 1)
    with pytest.raises(LoadError, match="are free on cpu: make the model, its vocabulary, the"):
        require_training_memory(config(recipe), recipe, CPU)
