"""What is shown of a module: its kinds of attention, its layers by name, its tokens."""

import numpy as np
import pytest
import torch
from torch import nn

import attnviz
from attnviz.errors import UsageError
from attnviz.inspect.heads.saved import read_heads

SOURCE, TARGET = torch.randint(30, (2, 6)), torch.randint(30, (2, 6))
WORDS = "one two three four five six"


class Translator(nn.Module):
    """Two stacks over two texts of one length, which only their names tell apart."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.stacks = nn.Transformer(16, 4, 2, 3, 32, batch_first=True)

    def forward(self, source, target, hidden=None):
        later = nn.Transformer.generate_square_subsequent_mask(6)
        return self.stacks(
            self.words(source),
            self.words(target),
            tgt_mask=later,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Translator().eval()


def ids(row):
    return tuple(map(str, row.tolist()))


@pytest.mark.parametrize(
    ("kind", "layers", "causal", "queries", "keys"),
    [
        ("encoder", 2, False, SOURCE, SOURCE),
        ("decoder", 3, True, TARGET, TARGET),
        ("cross", 3, False, TARGET, SOURCE),
    ],
)
def test_kinds_have_their_own_layers_and_tokens(model, kind, layers, causal, queries, keys):
    maps = attnviz.capture(model, SOURCE, TARGET, kind=kind, batch=1)
    stack = "encoder" if kind == "encoder" else "decoder"
    part = "multihead_attn" if kind == "cross" else "self_attn"
    names = {at: f"stacks.{stack}.layers.{at}.{part}" for at in range(layers)}
    assert (maps.layers, maps.report.record.causal) == (names, causal)
    assert (maps.tokens, maps.key_tokens) == (ids(queries[1]), ids(keys[1]))
    assert np.shape(maps) == (4 * layers, 6, 6)


def test_the_first_kind_is_shown_and_the_others_are_named(model, tmp_path):
    maps = attnviz.capture(model, SOURCE, target=TARGET, tokens=WORDS)
    notes = " ".join(maps.report.record.model.notes)
    assert "layers: L0 stacks.encoder.layers.0.self_attn, L1" in notes
    assert "encoder attention; there is decoder and cross attention too (kind)" in notes
    assert "text 0 of a batch of 2, counted from 0 (batch)" in notes
    assert (maps.text, maps["L1H2"].shape) == (WORDS, (6, 6))
    assert "text   one two" in str(maps)
    maps.save(tmp_path / "maps.json")
    again = read_heads((tmp_path / "maps.json").read_bytes(), "maps")
    assert again.first.record.model.layer_names == tuple(maps.layers.values())


def test_hidden_keys_are_a_mask(model):
    hidden = torch.zeros(2, 6, dtype=torch.bool)
    hidden[0, 4:] = True
    record = attnviz.capture(model, SOURCE, TARGET, hidden=hidden, kind="cross").report.record
    for layer in record.layers:
        assert not layer.weights[..., 4:].any()
        assert (record.seen(layer) == ~hidden[0].numpy()).all()


def test_layers_and_heads_by_number_and_name(model):
    def places(**choice):
        return [*attnviz.capture(model, SOURCE, TARGET, **choice)]

    assert places(layer=-1, head="1,3") == [(1, 1), (1, 3)]
    assert places(kind="decoder", head="L2H0") == [(2, 0)]
    assert places(layer="*.layers.1.multihead_attn", head=0) == [(1, 0)]
    assert {layer for layer, _ in places(layer="stacks.decoder.*.self_attn")} == {0, 1, 2}


class Mixed(nn.Module):
    """Attention over two lengths of one text, as in a model that pools."""

    def __init__(self):
        super().__init__()
        self.whole, self.pooled = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x):
        halved = x[:, ::2]
        return self.pooled(halved, halved, halved)[0] + self.whole(x, x, x)[0][:, ::2]


def test_layers_of_several_lengths():
    x = torch.randn(1, 6, 8)
    maps = attnviz.capture(Mixed(), x)
    assert (maps.layers, [*maps]) == ({0: "pooled", 1: "whole"}, [(0, 0), (0, 1)])
    assert "not shown: 1 layer over 6 x 6 tokens (layer)" in maps.report.record.model.notes
    assert [*attnviz.capture(Mixed(), x, layer="whole")] == [(1, 0), (1, 1)]
    with pytest.raises(UsageError, match="different lengths: choose one of pooled, whole"):
        attnviz.capture(Mixed(), x, layer="0,1")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"kind": "self"}, "no self attention here: expected kind encoder or decoder or cross"),
        ({"layer": "attn"}, "no module 'attn' attends here: expected one of stacks.encoder"),
        ({"layer": 7}, "no layer 7"),
        ({"tokens": "one two"}, "tokens has 2 tokens, the weights have 6"),
        ({"hiden": None}, "unexpected keyword argument 'hiden': did you mean hidden[?]"),
        ({"layers": 1}, "'layers': did you mean layer[?]"),
        ({"vectors": True}, "vectors are for models that read texts"),
    ],
)
def test_what_does_not_fit(model, choice, said):
    with pytest.raises((UsageError, TypeError), match=said):
        attnviz.capture(model, SOURCE, TARGET, **choice)
