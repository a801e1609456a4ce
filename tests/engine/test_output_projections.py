"""Where heads are read, against names that a person looked up; masked outputs, against hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnviz.engine.projections import find_output_projections
from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel
from attnviz.prune.store import difference_from_masked

from .architectures import inputs_of, small_model

# the name of each layer's output projection, and the axis of its weight that heads lie along
_NAMES = {
    "gpt2": ("transformer.h.{}.attn.c_proj", 0, (0, 1, 2)),
    "llama": ("model.layers.{}.self_attn.o_proj", 1, (0, 1, 2)),
    "gpt_oss": ("model.layers.{}.self_attn.o_proj", 1, (0, 1, 2)),
    "deepseek_v3": ("model.layers.{}.self_attn.o_proj", 1, (0, 1, 2)),
    "qwen3_next": ("model.layers.{}.self_attn.o_proj", 1, (1, 3)),
    "bert": ("bert.encoder.layer.{}.attention.output.dense", 1, (0, 1, 2)),
    "distilbert": ("distilbert.transformer.layer.{}.attention.out_lin", 1, (0, 1, 2)),
    "modernbert": ("model.layers.{}.attn.Wo", 1, (0, 1, 2)),
    "t5": ("encoder.block.{}.layer.0.SelfAttention.o", 1, (0, 1)),
    "bart": ("model.encoder.layers.{}.self_attn.out_proj", 1, (0, 1)),
    "gptj": ("transformer.h.{}.attn.out_proj", 1, (0, 1, 2)),
    "bloom": ("transformer.h.{}.self_attention.dense", 1, (0, 1, 2)),
    "falcon": ("transformer.h.{}.self_attention.dense", 1, (0, 1, 2)),
    "mpt": ("transformer.blocks.{}.attn.out_proj", 1, (0, 1, 2)),
    "xglm": ("model.layers.{}.self_attn.out_proj", 1, (0, 1, 2)),
    "albert": (
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense",
        1,
        (0, 1, 2),
    ),
}


def _model(name: str) -> TransformersModel:
    return prepared(name, small_model(name), None, torch.device("cpu"))


@pytest.mark.parametrize("name", _NAMES)
def test_each_layer_names_its_projection(name: str) -> None:
    pattern, axis, layers = _NAMES[name]
    model = _model(name)
    before = model.model.config._attn_implementation
    found = find_output_projections(model)
    assert {layer: (entry.module, entry.axis) for layer, entry in found.items()} == {
        layer: (pattern.format(layer), axis) for layer in layers
    }
    assert model.model.config._attn_implementation == before
    assert not any(module._forward_pre_hooks for module in model.model.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "bloom", "t5"])
def test_the_difference_is_that_from_the_model_with_its_heads_off(name: str) -> None:
    pattern, axis, layers = _NAMES[name]
    model = _model(name)
    last = layers[-1]
    ids = tuple(inputs_of(name)["input_ids"][0].tolist())
    difference = difference_from_masked(model, [(last, 1)], ids)
    found, allowed = difference(model.model)
    assert found > 100 * allowed >= 1e-3

    emptied = small_model(name)
    weight = emptied.get_submodule(pattern.format(last)).weight
    width = weight.shape[axis] // model.info.heads
    columns: Any = [slice(None), slice(None)]
    columns[axis] = slice(width, 2 * width)
    with torch.no_grad():
        weight[tuple(columns)] = 0
    found, allowed = difference(emptied)
    assert found <= allowed
