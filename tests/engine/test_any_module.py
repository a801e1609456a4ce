"""Attention of any module: equal to a softmax by hand in float64, and nothing left behind."""

import copy
import math
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import attnviz
from attnviz.engine.any_module import observe_module, run_without
from attnviz.errors import UnsupportedError, UsageError

BATCH, QUERIES, KEYS, HEADS, WIDTH = 2, 5, 7, 4, 16
LATER = torch.ones(QUERIES, QUERIES).triu(1).bool()
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])
layer = partial(nn.TransformerEncoderLayer, WIDTH, HEADS, 32, batch_first=True)
KINDS = {}
HINT = {"is_causal": True, "need_weights": False}
token_first = partial(nn.MultiheadAttention, WIDTH, HEADS)
stack = partial(nn.TransformerEncoder, layer(), 2)
two_stacks = partial(nn.Transformer, WIDTH, HEADS, 1, 1, 32, batch_first=True)
own_attention = partial(attnviz.MultiHeadAttention, WIDTH, HEADS, kv_heads=2, causal=True)


def texts(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


X, Y = texts(BATCH, QUERIES, WIDTH), texts(BATCH, KEYS, WIDTH)


def softmax(query, key, mask=None):
    """The definition, in float64: of (…, query, d) and (…, key, d); True in a mask hides."""
    scores = query.double() @ key.double().mT / math.sqrt(query.shape[-1])
    if mask is not None:
        boolean = mask.dtype == torch.bool
        scores = scores.masked_fill(mask, -math.inf) if boolean else scores + mask
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def packed(own, query, key, mask=None):
    """The weights of ``nn.MultiheadAttention`` over (batch, token, width)."""
    weights = own.q_proj_weight, own.k_proj_weight
    if own.in_proj_weight is not None:
        weights = own.in_proj_weight.split(WIDTH)
    sides = [
        (x.double() @ weight.double().T + bias.double()).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for x, weight, bias in zip(
            (query, key), weights, own.in_proj_bias.split(WIDTH), strict=False
        )
    ]
    return softmax(*sides, mask)


class Split(nn.Module):
    """Attention as tutorials write it; ``mix`` is how they multiply and hide."""

    def __init__(self, mix, kv_heads=HEADS):
        super().__init__()
        self.mix, self.kv_heads, self.dropout = mix, kv_heads, nn.Dropout(0.5)
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4 * kv_heads)
        self.v, self.o = nn.Linear(WIDTH, 4 * kv_heads), nn.Linear(WIDTH, WIDTH)

    def sides(self, x, y):
        split = [(self.q(x), HEADS), (self.k(y), self.kv_heads), (self.v(y), self.kv_heads)]
        return [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each, heads in split]

    def forward(self, x, context=None):
        mixed = self.mix(*self.sides(x, x if context is None else context), self.dropout)
        return self.o(mixed.transpose(1, 2).flatten(-2))


def by_matmul(q, k, v, dropout):
    scores = (q @ k.transpose(-2, -1) / math.sqrt(4)).masked_fill(LATER, -1e9)
    return torch.matmul(dropout(functional.softmax(scores, dim=-1)), v)


def by_einsum(q, k, v, dropout):
    weights = torch.einsum("bhqd,bhkd->bhqk", q * 0.5, k).softmax(-1).type(q.dtype)
    return torch.einsum("bhqk,bkhd->bqhd", dropout(weights), v.transpose(1, 2)).transpose(1, 2)


def by_bmm(q, k, v, dropout):
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT) * 0.5
    scores = (scores.view(BATCH, HEADS, QUERIES, QUERIES) + FLOATS).view(-1, QUERIES, QUERIES)
    powers = (scores - scores.max(-1, keepdim=True).values).exp()
    return torch.bmm(powers / powers.sum(-1, keepdim=True), v.flatten(0, 1)).unflatten(
        0, (BATCH, -1)
    )


def fused(**more):
    return lambda q, k, v, _: functional.scaled_dot_product_attention(
        q, k, v, dropout_p=0.1, **more
    )


FLOATS = texts(QUERIES, QUERIES)


class Alone(nn.Module):
    """One head of its own, as in lectures."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, 4, bias=False) for _ in range(3))

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).mT * 0.5).masked_fill(LATER, -math.inf)
        return scores.softmax(-1) @ self.v(x)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Alone() for _ in range(HEADS))

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], -1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = layer()

    def forward(self, x):
        return self.block(self.block(x))


def mha(**more):
    return nn.MultiheadAttention(WIDTH, HEADS, dropout=0.2, batch_first=True, **more)


def seen_by_split(own, mask=None, context=X):
    q, k, _ = own.double().sides(X.double(), context.double())
    return [softmax(q, k.repeat_interleave(HEADS // own.kv_heads, 1), mask)]


def of_layers(own, mask):
    first, second = own.double().layers
    x = X.double()
    then = first(x, src_mask=mask)
    return [packed(first.self_attn, x, x, mask), packed(second.self_attn, then, then, mask)]


def of_two_stacks(own):
    one, own = X.double(), own.double()
    memory = own.encoder(Y.double())
    decoder, later = own.decoder.layers[0], LATER
    x = decoder.norm1(one + decoder._sa_block(one, later, None))
    inside = packed(own.encoder.layers[0].self_attn, Y, Y)
    own_text = packed(decoder.self_attn, one, one, later)
    return [inside, own_text, packed(decoder.multihead_attn, x, memory)]


Z = texts(BATCH, KEYS, 6), texts(BATCH, KEYS, 3)


def kind(name, make, inputs, expected, **named):
    """Add a kind of module: how it is made, its arguments, the weights that it shall have."""
    KINDS[name] = make, inputs, named, expected


def by_lists(own):
    return [torch.cat([softmax(h.q(X), h.k(X), LATER)[:, None] for h in own.heads], 1)]


def by_calls(own):
    then = own.double().block(X.double())
    return [packed(own.block.self_attn, x, x) for x in (X.double(), then)]


SELF, HIDDEN = (X, X, X), PADDED[:, None, None]
TURNED = tuple(x.transpose(0, 1) for x in (X, Y, Y))
kind("self", mha, SELF, lambda own: [packed(own, X, X)])
kind("cross", token_first, TURNED, lambda own: [packed(own, X, Y)], need_weights=False)
kind("widths", lambda: mha(kdim=6, vdim=3), (X, *Z), lambda own: [packed(own, X, Z[0])])
kind("one text", mha, (X[0], X[0], X[0]), lambda own: [packed(own, X[:1], X[:1])])
kind("causal", mha, SELF, lambda own: [packed(own, X, X, LATER)], attn_mask=LATER, **HINT)
kind("float mask", mha, SELF, lambda own: [packed(own, X, X, FLOATS)], attn_mask=FLOATS)
kind("padded", mha, SELF, lambda own: [packed(own, X, X, HIDDEN)], key_padding_mask=PADDED)
kind("fast path", stack, (X,), lambda own: of_layers(own, None))
kind("causal stack", stack, (X,), lambda own: of_layers(own, LATER), mask=LATER, is_causal=True)
kind("two stacks", two_stacks, (Y, X), of_two_stacks, tgt_mask=LATER)
grouped = fused(enable_gqa=True, is_causal=True)
kind("fused groups", lambda: Split(grouped, 2), (X,), lambda own: seen_by_split(own, LATER))
kind("fused cross", lambda: Split(fused()), (X, Y), lambda own: seen_by_split(own, None, Y))
masked = fused(attn_mask=~LATER)
kind("fused mask", lambda: Split(masked), (X,), lambda own: seen_by_split(own, LATER))
kind("matmul", lambda: Split(by_matmul), (X,), lambda own: seen_by_split(own, LATER))
kind("einsum", lambda: Split(by_einsum), (X,), seen_by_split)
kind("bmm", lambda: Split(by_bmm), (X,), lambda own: seen_by_split(own, FLOATS))
kind("heads in a list", Listed, (X,), by_lists)
kind("called twice", Twice, (X,), by_calls)
kind("the library's own", own_attention, (X,), lambda own: [own(X, return_weights=True)[1]])


def made(kind):
    torch.manual_seed(0)
    make, inputs, named, expected = KINDS[kind]
    return make().eval(), inputs, named, expected


@pytest.mark.parametrize("kind", KINDS)
def test_weights_equal_a_softmax_by_hand(kind):
    module, inputs, named, expected = made(kind)
    with torch.no_grad():
        wanted = expected(copy.deepcopy(module))
        for text in range(1 if kind == "one text" else BATCH):
            calls = observe_module(module, inputs, named, text).calls
            assert len(calls) == len(wanted)
            for call, right in zip(calls, wanted, strict=True):
                np.testing.assert_allclose(call.weights, right[text], atol=1e-6)
                assert call.weights.dtype == np.float32
                assert call.cross is (right.shape[-1] != right.shape[-2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_puts_out_zeros(kind):
    """All heads gone leave the bias of the output projection, and each counts by itself."""
    module, inputs, named, _ = made(kind)
    run = observe_module(module, inputs, named)
    head = run.calls[-1].heads[1]
    with torch.no_grad():
        whole = _first(run.output)
        if "fused" not in kind:  # theirs drops numbers of its own accord
            np.testing.assert_allclose(whole, _first(module(*inputs, **named)), atol=1e-5)
        without = _first(run_without(module, inputs, named, [head]))
        none = _first(run_without(module, inputs, named, run.calls[-1].heads))
    assert not torch.allclose(without, whole, atol=1e-5)
    if isinstance(module, nn.MultiheadAttention | Split):
        last = module.out_proj if isinstance(module, nn.MultiheadAttention) else module.o
        bias = last.bias.detach()
        np.testing.assert_allclose(none, bias.expand_as(none), atol=1e-6)
        each = [_first(run_without(module, inputs, named, [one])) for one in run.calls[-1].heads]
        np.testing.assert_allclose(sum(whole - one for one in each), whole - bias, atol=1e-5)
    if isinstance(module, Listed):
        assert not without[..., 4:8].any()
        assert torch.equal(without[..., :4], whole[..., :4])


@pytest.mark.parametrize("kind", ["self", "einsum", "matmul", "bmm", "fused groups"])
def test_a_head_that_puts_out_its_mean(kind):
    """By hand: z = A V, of which the head's part becomes its mean over texts and queries."""
    module, inputs, named, expected = made(kind)
    with torch.no_grad():
        weights = expected(copy.deepcopy(module))[0].float()
        if kind == "self":
            project, third = module.out_proj, slice(2 * WIDTH, None)
            value = functional.linear(X, module.in_proj_weight[third], module.in_proj_bias[third])
            value = value.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        else:
            project, value = module.o, module.sides(X, X)[2]
        mixed = weights @ value.repeat_interleave(HEADS // value.shape[1], 1)
        mixed[:, 1] = mixed[:, 1].mean((0, 1))
        right = project(mixed.transpose(1, 2).flatten(-2))
        found = _first(run_without(module, inputs, named, [(0, 1)], mean=True))
    np.testing.assert_allclose(found, right, atol=1e-6)


def _first(output):
    return output[0] if isinstance(output, tuple) else output


def test_keys_that_are_no_tokens():
    torch.manual_seed(0)
    module = mha(add_bias_kv=True, add_zero_attn=True).eval()
    run = observe_module(module, (X, X, X), {})
    with torch.no_grad():
        right = module(X, X, X, average_attn_weights=False)[1][0, ..., :QUERIES]
    np.testing.assert_allclose(run.calls[0].weights, right, atol=1e-6)
    assert "learned key" in run.notes[0]


class Breaks(Twice):
    def forward(self, x):
        super().forward(x)
        torch.rand(3)
        raise KeyError("the module's own")


@pytest.mark.parametrize("make", [Twice, Breaks])
def test_nothing_is_left_behind(make):
    module = make().train()
    module.block.norm1.eval()
    modules = [*module.modules()]
    state, flags = torch.get_rng_state(), [own.training for own in modules]
    kept = {name: part.clone() for name, part in module.state_dict().items()}
    with suppress(KeyError):
        assert "training mode" in observe_module(module, (X,), {}).notes[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert ([own.training for own in modules], torch.is_grad_enabled()) == (flags, True)
    assert not any(own._forward_hooks or own._forward_pre_hooks for own in modules)
    assert all(torch.equal(part, kept[name]) for name, part in module.state_dict().items())
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parts_in_torchscript_are_passed_over():
    part = torch.jit.trace(nn.Linear(WIDTH, WIDTH), X)
    run = observe_module(nn.Sequential(part, layer()), (X,), {})
    assert [call.name for call in run.calls] == ["1.self_attn"]
    assert "parts in TorchScript were not looked into" in run.notes


class Docked(nn.Module):
    """Cross attention over two texts of one length, with a mask as numbers."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, attention_mask, drug, protein):
        return (self.q(drug) @ self.k(protein).mT).softmax(-1) @ self.v(protein)


def test_arguments_are_texts_by_whole_words_of_their_names():
    """``protein`` has letters of "rotary", and is a text all the same."""
    given = torch.ones(BATCH, QUERIES).long(), X, Y[:, :QUERIES]
    run = observe_module(Docked(), given, {})
    assert run.calls[0].cross
    assert run.texts == given[1:]


def test_dropout_of_own_code_is_left_out():
    module = made("fused cross")[0]
    first, second = (observe_module(module, (X, Y), {}) for _ in range(2))
    assert torch.equal(first.output, second.output)
    assert first.notes == ("dropout that does not ask for the training mode was left out",)


class Native(Twice):
    def forward(self, x):
        return torch.native_dropout(super().forward(x), 0.5, False)[0]


def test_a_dropout_that_returns_its_mask_too_returns_it():
    assert observe_module(Native(), (X,), {}).output.shape == X.shape


class Linearised(nn.Module):
    """Linear attention: its softmax runs over the width, so that no token has a weight."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return self.q(x).softmax(-1) @ (self.k(x).softmax(-2).mT @ self.v(x))


@pytest.mark.parametrize("module", [nn.Linear(WIDTH, 2), Linearised(), nn.LSTM(WIDTH, 3)])
def test_no_weights_are_refused(module):
    with pytest.raises(UnsupportedError, match="computes no attention weights that can be read"):
        observe_module(module, (X,), {})


def test_wrong_weights_and_wrong_texts_are_refused():
    hint = {"attn_mask": FLOATS, "is_causal": True, "need_weights": False}  # which is not causal
    with pytest.raises(UnsupportedError, match="its weights give another output than it put out"):
        observe_module(made("self")[0], (X, X, X), hint)
    with pytest.raises(UsageError, match="batch=2: the inputs are a batch of 2, counted from 0"):
        observe_module(Twice(), (X,), {}, 2)
