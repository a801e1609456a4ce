"""A small BERT whose heads attend as those of a trained one do: its weights are written by hand.

Its files look like those of all-MiniLM-L6-v2: a bare ``BertModel``, a config that names no dtype,
and the numbers of the positions among the tensors.
"""

import json

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from .models.tokenizer_files import CORPUS, bert_tokenizer
from .small_models import bert_fields

PREVIOUS = ((0, 1), (0, 2))
"""The heads that attend to the token before; all others rest on [CLS] and [SEP]."""

TEXTS = (
    "She opened the old wooden door slowly, and behind it a narrow staircase led down into a "
    "cellar full of dusty bottles that nobody had touched for years.",
    "The animal didn't cross the street because it was tired again, and nobody knew why.",
)
"""Texts of words that its tokenizer knows."""

_WIDTH, _HEADS, _LAYERS, _CONTEXT = 96, 4, 2, 512
_HEAD = _WIDTH // _HEADS
_SPECIAL = _WIDTH - 1
"""The dimension in which only [CLS] and [SEP] are large."""


def write_bert(directory):
    directory.mkdir()
    bert_tokenizer(directory, corpus=[*CORPUS, *TEXTS * 9], size=600)
    config = BertConfig(**bert_fields(_WIDTH, 16, _CONTEXT, _HEADS, _LAYERS), vocab_size=600)
    torch.manual_seed(0)
    model = BertModel(config).eval()
    with torch.no_grad():
        _teach(model)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    tensors["embeddings.position_ids"] = torch.arange(_CONTEXT)[None]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    said = config.to_dict() | {"architectures": ["BertModel"]}
    said = {name: value for name, value in said.items() if name not in ("dtype", "torch_dtype")}
    (directory / "config.json").write_text(json.dumps(said))


def _teach(model):
    rates = torch.from_numpy(np.geomspace(0.05, 3.0, _HEAD // 2)).float()
    angles = torch.arange(_CONTEXT)[:, None] * rates
    places = model.embeddings.position_embeddings.weight
    places.zero_()
    places[:, 0:_HEAD:2], places[:, 1:_HEAD:2] = angles.cos(), angles.sin()
    words = model.embeddings.word_embeddings.weight
    words.mul_(10)
    words[:, :_HEAD] = 0
    words[:, _SPECIAL] = 0
    words[2:4, _SPECIAL] = 6.0  # [CLS] and [SEP]
    for number, layer in enumerate(model.encoder.layer):
        attention = layer.attention.self
        for head in range(_HEADS):
            rows = slice(head * _HEAD, (head + 1) * _HEAD)
            query, key = attention.query, attention.key
            key.weight[rows] = 0
            query.weight[rows] = 0
            if (number, head) in PREVIOUS:
                key.weight[rows, :_HEAD] = 4 * torch.eye(_HEAD)
                query.weight[rows, :_HEAD] = 4 * _turned_back(rates)
            else:
                key.weight[rows.start, _SPECIAL] = 4.0
                query.bias[rows.start] = 4.0


def _turned_back(rates):
    """Return the matrix that turns the angles of a position into those of the one before."""
    turned = torch.zeros(_HEAD, _HEAD)
    for pair, rate in enumerate(rates):
        cos, sin = rate.cos(), rate.sin()
        turned[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor(
            [[cos, sin], [-sin, cos]]
        )
    return turned
