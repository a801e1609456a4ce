"""Weights, outputs and logits of heads come of one pass, and are what separate passes give."""

import numpy as np
import pytest
import torch

from attnviz.engine.backend import backend_of
from attnviz.engine.hook_points import hooked
from attnviz.engine.patchable import patchable_transformers
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import ModelInfo

from . import architectures
from .scans import input_of


class Seen:
    """An intervention that keeps what heads put out, and changes nothing."""

    def __init__(self):
        self.outputs = {}

    def edit(self, number, point, outputs):
        self.outputs[point.kind, point.layer] = outputs[0].transpose(0, 1).numpy().copy()
        return outputs


@pytest.mark.parametrize("name", architectures.quick_or_long(architectures.ARCHITECTURES))
def test_one_pass_gives_what_three_give(name):
    model, inputs = architectures.small_model(name), architectures.inputs_of(name)
    given, seen = input_of(inputs), Seen()
    both = architectures.ARCHITECTURES[name].stack == "both"
    kinds = ("encoder", "decoder", "cross") if both else ("self",)
    info = ModelInfo(name, None, name, "float32", 1, 1, 1, 1)
    opened = TransformersModel(info, model, None, kinds, None)
    weights = architectures.eager_attentions(name, **inputs)
    with torch.inference_mode():
        logits = model(**inputs).logits[0].numpy()
    state = architectures.state_of(model)
    for kind in kinds:
        points = patchable_transformers(model, kind, given).hook_points
        with torch.inference_mode(), points.borrowed(), points.intervening(seen):
            model(**inputs)  # as it is run plainly: of fsmt that is with its cache
        run, notes = backend_of(opened).open_heads(kind, given, kind != "encoder")
        run(given)  # the first of its length is held against a plain pass
        passes = []
        with hooked(model.register_forward_pre_hook(lambda *call, seen=passes: seen.append(call))):
            found = run(given)
        assert (len(passes), notes) == (1, ())
        expected = {layer: each for (one, layer), each in weights.items() if one == kind}
        assert found.weights.keys() == found.outputs.keys() == expected.keys()
        for layer, each in expected.items():
            np.testing.assert_array_equal(found.weights[layer], each[0].numpy())
            outputs = seen.outputs[kind, layer]
            np.testing.assert_allclose(found.outputs[layer], outputs, rtol=0, atol=2e-5)
        if kind == "encoder" or name == "fsmt":  # its projection is the embedding itself
            assert found.logits is None
        else:
            np.testing.assert_allclose(found.logits, logits, rtol=1e-4, atol=1e-4)
    assert architectures.state_of(model) == state
