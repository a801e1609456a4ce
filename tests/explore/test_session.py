"""Frames, removals and effects, held against hooks on torch and against ``ablate``."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from attnviz.engine.effects import Variant
from attnviz.engine.scan.run import inputs_of, open_scan
from attnviz.explore.session import LiveSession
from attnviz.models.bundled import Bundled

TEXT = "When Mary and John went out, John gave Mary a book."


def nothing(share):
    pass


@pytest.fixture(scope="module")
def tiny():
    return LiveSession(Bundled(), text=TEXT)


def by_hand(model, ids, removed):
    """Weights by layer, and the loss, of ``tiny`` on torch with hooks that cut columns of W_O."""
    from attnviz.attention.torch_decoder import TorchDecoder

    decoder = TorchDecoder.from_llama(model.checkpoint.config, model.tensors).eval()
    layers = [part for part in decoder.modules() if hasattr(part, "output_projection")]
    dim, weights = layers[0].shape.value_dim, {}
    with ExitStack() as hooks, torch.no_grad():
        for number, layer in enumerate(layers):
            for head in (head for at, head in removed if at == number):
                layer.output_projection.weight[:, head * dim : (head + 1) * dim] = 0

            def keep(module, args, found, number=number):
                weights[number] = found[0].numpy()

            hooks.callback(layer.weights_point.register_forward_hook(keep).remove)
        logits = decoder(torch.tensor([ids]))[0].double()
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    return weights, float(loss)


@pytest.mark.parametrize("removed", [set(), {(0, 1)}, {(0, 0), (1, 2), (3, 1)}])
def test_a_frame_is_what_torch_computes_without_these_heads(tiny, removed):
    frame = tiny.frame(TEXT, frozenset(removed))
    record = frame.report.record
    weights, loss = by_hand(tiny.model, record.queries.ids, removed)
    for layer, head, found in record:
        np.testing.assert_allclose(found, weights[layer][head], atol=2e-6)
    assert frame.loss == pytest.approx(loss, abs=1e-5)
    chances = [each.probability for each in frame.likely]
    assert len(chances) == 10
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) < 1


def test_effects_are_those_of_a_loop_and_of_ablate(tiny):
    shares = []
    found = tiny.effects(TEXT, shares.append)
    tokens = tiny.model.encode(TEXT)
    _, clean = by_hand(tiny.model, tokens.ids, ())
    assert found.metric == "loss_delta"
    assert shares == sorted(shares)
    assert shares[-1] == 1
    for head in ((0, 0), (1, 1), (3, 2)):
        loss = by_hand(tiny.model, tokens.ids, {head})[1]
        assert found.values[head] == pytest.approx(loss - clean, abs=1e-5)
    scan = open_scan(tiny.model, inputs_of([tokens]))
    heads = list(found.values)
    (piece,) = scan.scan(0, [Variant((head,)) for head in heads], range(len(heads)))
    expected = piece.metrics["loss_delta"][np.argsort(piece.variants)]
    np.testing.assert_allclose([found.values[head] for head in heads], expected, atol=1e-5)
    assert found.ranking()[0] == max(heads, key=found.values.__getitem__)
