"""Keys hidden in a borrowed model, held against the softmax of transformers with a score of −∞."""

import pytest
import torch

from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import UsageError
from attnviz.records import Input

from .architectures import small_model, state_of
from .edge_loop import scores_without
from .scans import IDS

GIVEN = Input.of_ids(IDS)


def predicted(model, heads, edges):
    """The logits of a run in which these heads do not see these edges."""

    def hide(point, queries, keys):
        hidden = torch.zeros(point.heads, queries, keys, dtype=torch.bool)
        for head in (head for layer, head in heads if layer == point.layer):
            hidden[head, [query for query, _ in edges], [key for _, key in edges]] = True
        return hidden if hidden.any() else None

    points = model.hook_points
    with torch.inference_mode(), points.borrowed(), points.hiding(hide, GIVEN):
        return model.run(GIVEN)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "gpt_neo"])
def test_a_softmax_without_the_edges_predicts_the_same(name):
    model, heads, edges = (
        patchable_transformers(small_model(name), "self", GIVEN),
        [(0, 1), (2, 0)],
        [(6, 2), (7, 2)],
    )
    before = state_of(model.root)
    logits = predicted(model, heads, edges)
    expected = scores_without(small_model(name, attention="eager"), IDS, heads, edges)
    torch.testing.assert_close(logits[0].double().log_softmax(-1), expected, atol=1e-4, rtol=0)
    assert state_of(model.root) == before


@pytest.mark.parametrize("name", ["gpt2", "bloom", "falcon", "mistral"])
def test_a_query_keeps_a_key(name):
    with pytest.raises(UsageError, match="no other key"):
        predicted(patchable_transformers(small_model(name), "self", GIVEN), [(0, 0)], [(0, 0)])
