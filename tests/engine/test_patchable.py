"""A borrowed model: keys hidden in it, and one with code of its own, are those of transformers."""

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from attnviz.engine.patchable import Untouched, patchable_transformers, run_pass
from attnviz.errors import UnsupportedError, UsageError
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


class _Config(PretrainedConfig):
    model_type = "of_its_own"
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 11, 12, 2, 3


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        length = x.shape[1]
        query, key, value = self.qkv(x).view(len(x), length, 3, 3, 4).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = (query @ key.mT).masked_fill(hidden, -torch.inf).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).reshape(x.shape)
        return x + self.out(mixed)


class _Own(PreTrainedModel):
    config_class = _Config

    def __init__(self, config, normed=True):
        super().__init__(config)
        self.words, self.blocks = nn.Embedding(11, 12), nn.ModuleList([_Block(), _Block()])
        self.norm, self.head = nn.LayerNorm(12) if normed else None, nn.Linear(12, 11)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, **_):
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x)
        return CausalLMOutput(logits=self.head(x * 2 if self.norm is None else self.norm(x)))


def test_its_final_states_are_what_its_head_reads():
    torch.manual_seed(0)
    model = _Own(_Config()).eval()
    given = Input.of_ids((3, 1, 4, 1, 5))
    opened = patchable_transformers(model, "self", given)
    assert opened.stack is model.norm
    with torch.inference_mode(), opened.hook_points.borrowed():
        found = run_pass(opened, given, Untouched(), project_all=True)
    assert found.projected is not None
    torch.testing.assert_close(found.hidden, found.projected)
    assert found.hidden.shape == (1, 5, 12)


def test_states_that_no_module_puts_out_are_refused():
    torch.manual_seed(0)
    model = _Own(_Config(), normed=False).eval()
    with pytest.raises(UnsupportedError, match="_Own returns no hidden states"):
        patchable_transformers(model, "self", Input.of_ids((3, 1, 4, 1, 5)))
