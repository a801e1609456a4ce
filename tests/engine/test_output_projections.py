"""Where heads are read, against names that a person looked up; masked outputs, against hooks."""

import pytest
import torch
from torch import nn

from attnviz.engine.projections import find_output_projections
from attnviz.inspect.prune.store import difference_from_masked
from attnviz.models.prepare import prepared

from .ablation_loop import PROJECTIONS
from .architectures import ARCHITECTURES, inputs_of, small_model, state_of

_FOUND = (
    *("gpt2", "llama", "gpt_oss", "deepseek_v3", "qwen3_next", "bert", "distilbert", "modernbert"),
    *("t5", "bart", "gptj", "bloom", "falcon", "mpt", "xglm", "albert"),
)


def _named(name):
    """The name of each layer's output projection, the axis of its weight that heads lie along."""
    kind, pattern = next(iter(PROJECTIONS[name].items()))
    layers = (0, 1) if kind == "encoder" else tuple(ARCHITECTURES[name].layers)
    return pattern, int(name != "gpt2"), layers


def _model(name):
    return prepared(name, small_model(name), None, torch.device("cpu"))


@pytest.mark.parametrize("name", _FOUND)
def test_each_layer_names_its_projection(name):
    pattern, axis, layers = _named(name)
    model = _model(name)
    before = state_of(model.model)
    found = find_output_projections(model)
    assert {layer: (entry.module, entry.axis) for layer, entry in found.items()} == {
        layer: (pattern.format(layer), axis) for layer in layers
    }
    assert state_of(model.model) == before


class Tuned(nn.Module):
    """An adapter of one's own around a linear layer, which does not say how wide it is."""

    def __init__(self, base):
        super().__init__()
        self.base, self.change = base, nn.Linear(base.in_features, base.out_features)

    def forward(self, x):
        return self.base(x) + self.change(x)


def test_a_wrapper_is_the_projection_if_it_computes_more_than_what_it_wraps():
    whole = small_model("llama")
    attention = whole.model.layers[1].self_attn
    attention.o_proj = Tuned(attention.o_proj)
    plain = whole.model.layers[0].self_attn
    plain.o_proj = nn.Sequential(plain.o_proj, nn.Dropout())
    found = find_output_projections(prepared("llama", whole, None, torch.device("cpu")))
    assert [(one.module, one.plain) for one in found.values()] == [
        ("model.layers.0.self_attn.o_proj.0", True),
        ("model.layers.1.self_attn.o_proj", False),
        ("model.layers.2.self_attn.o_proj", True),
    ]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "bloom", "t5"])
def test_the_difference_is_that_from_the_model_with_its_heads_off(name):
    pattern, axis, layers = _named(name)
    model = _model(name)
    last = layers[-1]
    ids = tuple(inputs_of(name)["input_ids"][0].tolist())
    difference = difference_from_masked(model, [(last, 1)], ids)
    found, allowed = difference(model.model)
    assert found > 100 * allowed >= 1e-3

    emptied = small_model(name)
    weight = emptied.get_submodule(pattern.format(last)).weight
    width = weight.shape[axis] // model.info.heads
    columns = [slice(None), slice(None)]
    columns[axis] = slice(width, 2 * width)
    with torch.no_grad():
        weight[tuple(columns)] = 0
    found, allowed = difference(emptied)
    assert found <= allowed
