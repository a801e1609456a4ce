"""What neurons write is what the model's own modules make of each, in torch and in NumPy."""

import numpy as np
import pytest
import torch

from attnviz.engine.attribution.on_numpy import NumpyAttributor
from attnviz.engine.attribution.parts import AskedLogit
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import UnsupportedError
from attnviz.records import Input

from ...attention.test_families import IDS, MODELS
from ..architectures import ARCHITECTURES, quick_or_long, small_model, state_of
from ..stacks import HEADED, both, once_quick
from .attribution_oracle import ROUTES, Recorded, to_logits
from .test_on_torch import ANSWER, FOIL, MASKED, TorchAttributor, asked, opened

_LLAMA = ("model.layers.{}.mlp.down_proj", "act_fn", "gate_proj", "up_proj")
_PLAIN = ("mlp.dense_4h_to_h", None, "mlp.dense_h_to_4h", None)
BLOCKS = {
    **dict.fromkeys(("llama", "cohere", "gemma2", "olmo2", "mistral", "qwen2", "qwen3"), _LLAMA),
    "gpt2": ("transformer.h.{}.mlp.c_proj", None, "mlp.c_fc", None),
    "gpt_neox": (f"gpt_neox.layers.{{}}.{_PLAIN[0]}", *_PLAIN[1:]),
    "bloom": (f"transformer.h.{{}}.{_PLAIN[0]}", *_PLAIN[1:]),
    "bert": ("bert.encoder.layer.{}.output.dense", None, "intermediate.dense", None),
    "t5": ("decoder.block.{}.layer.2.DenseReluDense.wo", None, "wi", None),
}
"""By architecture the last matrix of the block, written from the modeling files."""


def written_by_hand(name, model, inputs, layer, place):
    """The contribution of each neuron (neuron,), and of the bias, through the held modules."""
    run, route = Recorded(model, inputs), ROUTES.get(name, ROUTES["llama"])
    path = BLOCKS[name][0].format(layer)
    down, inner = model.get_submodule(path), run.entered[path].flatten(0, -2)
    weight = down.weight if name == "gpt2" else down.weight.T  # (neuron, width)
    rows = inner[place][:, None] * weight
    bias = getattr(down, "bias", None)
    rows = torch.cat([rows, torch.zeros_like(rows[:1]) if bias is None else bias[None]])
    for step in route.mlp[1:]:
        rows = run.through(step.format(layer), rows, place)
    logits = to_logits(run, route, len(ARCHITECTURES[name].layers), layer, 1, rows, place)
    towards = (logits[:, ANSWER] - logits[:, FOIL]).detach().numpy()
    return towards[:-1], towards[-1], inner.numpy()


@pytest.mark.parametrize("name", quick_or_long(BLOCKS))
def test_every_architecture_writes_what_its_modules_make(name):
    model, (inputs, given) = small_model(name, attention="eager").double(), asked(name)
    before = state_of(model)
    place = MASKED if name == "bert" else len(given.predicted) - 1
    attributor = opened(name, model, given)
    parts = attributor.attribute(given, answer=ANSWER, foil=FOIL).parts
    for layer in {0, len(ARCHITECTURES[name].layers) - 1}:
        found = attributor.neurons(given, AskedLogit(None, ANSWER, FOIL, ()), layer)
        neurons, bias, inner = written_by_hand(name, model, inputs, layer, place)
        assert found.written == pytest.approx(neurons, abs=1e-5)
        assert found.bias == pytest.approx(bias, abs=1e-5)
        assert found.values == pytest.approx(inner, abs=1e-5)
        part = sum(p.contribution for p in parts if p.layer == layer and p.kind == "mlp")
        assert found.written.sum() + found.bias == pytest.approx(part, abs=1e-5)
        assert found.tallies
        assert found.activation is not None
        product = found.active if found.up is None else found.active * found.up
        assert product == pytest.approx(found.values, abs=1e-6)
        assert (found.up is not None) == (BLOCKS[name] is _LLAMA)
    assert state_of(model) == before


def test_layers_that_share_a_block_are_told_apart():
    model, (_, given) = small_model("albert"), asked("albert")
    attributor = opened("albert", model, given)
    found = [attributor.neurons(given, AskedLogit(None, 5, 7, ()), at) for at in range(3)]
    assert all(reading.tallies for reading in found)
    assert not np.allclose(found[0].values, found[1].values)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_next"])
def test_experts_are_refused(name):
    model, (_, given) = small_model(name), asked(name)
    with pytest.raises(UnsupportedError, match="not a sum over neurons, as with experts"):
        opened(name, model, given).neurons(given, AskedLogit(None, ANSWER, FOIL, ()), 1)


@pytest.mark.parametrize(
    "name", once_quick([name for name in HEADED if "MaskedLM" not in MODELS[name][0]], every=2)
)
def test_numpy_says_the_same(name, tmp_path):
    model, given = both(name, tmp_path), Input.of_ids(IDS)
    patchable = patchable_transformers(model.wide, "self", given, None)
    question = AskedLogit(-2, ANSWER, FOIL, ())
    for layer in {0, model.numpy.stack.shape.layers - 1}:
        other = TorchAttributor(patchable, given).neurons(given, question, layer)
        found = NumpyAttributor(model.numpy).neurons(given, question, layer)
        assert found.position == other.position
        for own, theirs in ((found.written, other.written), (found.values, other.values)):
            assert own == pytest.approx(theirs, abs=1e-5, rel=1e-4)
        assert found.bias == pytest.approx(other.bias, abs=1e-5)
        assert found.part == pytest.approx(other.part, abs=2e-5)
        assert found.tallies
        assert found.activation == other.activation
        assert (found.up is None) == (other.up is None)
        assert found.off() == pytest.approx(other.off(), abs=1e-3)
