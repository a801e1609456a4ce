"""A model with code of its own that returns logits and maps, and no hidden states."""

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from attnviz.engine.patchable import Untouched, patchable_transformers, run_pass
from attnviz.errors import UnsupportedError
from attnviz.records import Input


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
