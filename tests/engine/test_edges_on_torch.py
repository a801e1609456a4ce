"""Edges cut in a borrowed model, held against the softmax of transformers with a score of −∞."""

from __future__ import annotations

import pytest
import torch

from attnviz.engine.edges_on_torch import cutting
from attnviz.engine.patchable import PatchableModel, patchable_transformers
from attnviz.errors import UsageError
from attnviz.records import Input

from .architectures import small_model, state_of
from .edge_loop import scores_without
from .scans import IDS

EDGES = [(6, 2), (7, 2)]
GIVEN = Input.of_ids(IDS)


def opened(name: str) -> PatchableModel:
    return patchable_transformers(small_model(name), "self", GIVEN)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "gpt_neo"])
def test_a_softmax_without_the_edges_predicts_the_same(name: str) -> None:
    model, heads = opened(name), [(0, 1), (2, 0)]
    before = state_of(model.root)
    with (
        torch.inference_mode(),
        model.hook_points.borrowed(),
        cutting(model, heads, EDGES, GIVEN),
    ):
        logits = model.run(GIVEN)
    assert logits is not None
    expected = scores_without(small_model(name, attention="eager"), IDS, heads, EDGES)
    torch.testing.assert_close(logits[0].double().log_softmax(-1), expected, atol=1e-4, rtol=0)
    assert state_of(model.root) == before


@pytest.mark.parametrize("name", ["gpt2", "bloom", "falcon", "mistral"])
def test_a_query_keeps_a_key(name: str) -> None:
    model = opened(name)
    with (
        pytest.raises(UsageError, match="no other key"),
        torch.inference_mode(),
        model.hook_points.borrowed(),
        cutting(model, [(0, 0)], [(0, 0)], GIVEN),
    ):
        model.run(GIVEN)
