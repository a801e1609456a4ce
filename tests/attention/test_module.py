"""Multi-head attention and its three scores, in torch and in NumPy, against loops."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnviz.attention.functional import additive_scores, scores_by
from attnviz.attention.module import MultiHeadAttention, fused_attention
from attnviz.attention.numpy_attention import NumpyAttention

from .conftest import naive_attention

SHAPES = {
    "self": {},
    "grouped": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "narrow heads": {"head_dim": 2},
    "wide values": {"value_dim": 5, "output_width": 7},
    "other inputs": {"key_width": 5, "value_width": 3},
    "no biases": {f"{name}_bias": False for name in ("query", "key", "value", "output")},
    "causal": {"causal": True},
    "rotary": {"rotary": 100.0, "head_dim": 6, "causal": True, "kv_heads": 2},
    "unscaled": {"score": "dot", "kv_heads": 2},
    "unscaled causal": {"score": "dot", "causal": True},
    "additive": {"score": "additive", "kv_heads": 2},
    "additive causal": {"score": "additive", "causal": True},
}


@pytest.fixture
def build():
    """Builds an attention of width 12 with 4 heads whose biases are not zero, for evaluation."""

    def of(**options):
        torch.manual_seed(3)
        attention = MultiHeadAttention(12, 4, **options)
        for parameter in attention.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter)
        return attention.eval()

    return of


@pytest.fixture
def inputs(normal):
    """Query, key and value of a batch of two, as wide as the options ask."""

    def of(options):
        query = normal(2, 5, 12)
        if "rotary" in options:
            return query, query, query
        return (
            query,
            normal(2, 7, options.get("key_width", 12)),
            normal(2, 7, options.get("value_width", 12)),
        )

    return of


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_naive_loop(build, inputs, close, name, padded):
    options = SHAPES[name]
    attention = build(**options)
    query, key, value = inputs(options)
    keys = key.shape[1]
    lengths = (keys, 3) if padded else (keys, keys)
    mask = np.arange(keys) < np.array(lengths)[:, None, None, None]

    def visible(text, head, i, j):
        return j < lengths[text] and not (options.get("causal") and j > i + keys - 5)

    expected, expected_weights = naive_attention(
        attention.state_dict(),
        query,
        key,
        value,
        heads=4,
        kv_heads=options.get("kv_heads", 4),
        visible=visible,
        theta=options.get("rotary"),
        score=attention.score,
    )
    given = (
        [torch.from_numpy(query)] * 3
        if key is query
        else map(torch.from_numpy, (query, key, value))
    )
    given = [*given, torch.from_numpy(mask) if padded else None]
    output, weights = attention(*given, return_weights=True)
    close(output, expected)
    close(weights, expected_weights)
    close(attention(*given), expected)  # by the fused kernels
    in_numpy = NumpyAttention.from_state(
        attention.state_dict(),
        4,
        options.get("kv_heads"),
        causal=attention.causal,
        rotary=attention.rotary,
        score=attention.score,
    )
    assert in_numpy.shape == attention.shape
    output, weights = in_numpy(query, key, value, mask if padded else None)
    close(output, expected)
    close(weights, expected_weights)
    assert output.dtype == np.float32


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [3, 5, 7])
@pytest.mark.parametrize("form", ["none", "boolean", "additive", "wider additive"])
def test_fused_output_equals_the_open_one(build, normal, close, causal, keys, form):
    attention = build(causal=causal)
    query, key = torch.from_numpy(normal(2, 5, 12)), torch.from_numpy(normal(2, keys, 12))
    visible = torch.from_numpy(normal(2, 4, 5, keys) > 0)
    visible[0, 1, 2] = False  # a query that sees nothing
    mask = {
        "none": None,
        "boolean": visible,
        "additive": torch.where(visible, 0.3, -torch.inf),
        "wider additive": torch.where(visible, 0.3, -torch.inf).double(),
    }[form]
    output, weights = attention(query, key, mask=mask, return_weights=True)
    close(attention(query, key, mask=mask), output)
    assert weights.dtype == torch.float32
    if mask is not None:
        assert (weights[0, 1, 2] == 0).all()


def test_no_batch_axis_and_several(build, normal, close):
    attention = build(causal=True)
    texts = torch.from_numpy(normal(2, 3, 5, 12))
    together = attention(texts)
    close(together[1, 2], attention(texts[1, 2]))


def test_positions_move_both_query_and_key(build, normal, close):
    attention = build(rotary=10.0, head_dim=6)
    text = torch.from_numpy(normal(2, 5, 12))
    places = torch.tensor([[0, 1, 2, 3, 4], [9, 10, 11, 12, 13]])
    close(attention(text, positions=places), attention(text))  # distances are what counts
    apart = attention(text, positions=torch.tensor([0, 1, 2, 3, 9]))
    assert not torch.allclose(apart, attention(text), atol=1e-3)
    in_numpy = NumpyAttention.from_state(attention.state_dict(), 4, rotary=10.0)
    close(in_numpy(text.numpy(), positions=np.array([0, 1, 2, 3, 9]))[0], apart)


def test_a_hook_replaces_the_weights(build, normal, close):
    attention = build(value_dim=5)
    text = torch.from_numpy(normal(2, 5, 12))
    handle = attention.weights_point.register_forward_hook(
        lambda module, args, weights: torch.eye(5).expand_as(weights)
    )
    # Each token now sees itself alone: its own value, through the output projection.
    close(attention(text), attention.output_projection(attention.value_projection(text)))
    output, weights = attention(text, return_weights=True)
    close(weights, torch.eye(5).expand(2, 4, 5, 5))
    handle.remove()
    assert not torch.allclose(attention(text), output, atol=1e-3)


@pytest.mark.parametrize("return_weights", [False, True])
def test_a_hook_that_empties_a_head_leaves_the_projection_of_the_rest(
    build, normal, close, return_weights
):
    attention = build(value_dim=5)
    text = torch.from_numpy(normal(2, 5, 12))
    kept = {}

    def empty_head_2(module, args, outputs):
        kept["outputs"] = outputs
        changed = outputs.clone()
        changed[:, 2] = 0
        return changed

    attention.heads_point.register_forward_hook(empty_head_2)
    output = attention(text, return_weights=return_weights)
    outputs = kept["outputs"]
    assert outputs.shape == (2, 4, 5, 5)
    weight, bias = attention.output_projection.weight, attention.output_projection.bias
    rest = sum(outputs[:, h] @ weight[:, 5 * h : 5 * h + 5].T for h in (0, 1, 3)) + bias
    close(output[0] if return_weights else output, rest)


@pytest.mark.parametrize("return_weights", [False, True])
def test_gradients_flow(build, normal, return_weights):
    attention = build(kv_heads=2, rotary=100.0, head_dim=2).train()
    text = torch.from_numpy(normal(2, 5, 12)).requires_grad_()
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[0] = False  # a query that sees nothing must not turn the gradients into NaN
    output = attention(text, mask=mask, return_weights=return_weights)
    (output[0] if return_weights else output).square().sum().backward()
    for tensor in (text, *attention.parameters()):
        assert torch.isfinite(tensor.grad).all()
        assert tensor.grad.abs().sum() > 0


def test_both_ways_have_the_same_gradients(build, normal, close):
    attention = build(causal=True)
    gradients = []
    for options in ({}, {"return_weights": True}):
        text = torch.from_numpy(np.ones((2, 5, 12), np.float32) * np.arange(12, dtype=np.float32))
        text = (text / 12 + torch.linspace(0, 1, 5)[:, None]).requires_grad_()
        output = attention(text, **options)
        (output[0] if options else output).square().sum().backward()
        gradients.append(text.grad)
    close(*gradients)


def test_dropout_only_while_training(build, normal, close):
    attention, whole = build(dropout=0.5), build()
    text = torch.from_numpy(normal(2, 5, 12))
    close(attention(text), whole(text))
    close(attention(text, return_weights=True)[0], whole(text))
    attention.train()
    for options in ({}, {"return_weights": True}):
        drawn = [attention(text, **options) for _ in range(2)]
        one, other = (x[0] if options else x for x in drawn)
        assert not torch.allclose(one, other, atol=1e-3)
    # What is returned are the weights themselves, not what dropout left of them.
    close(drawn[0][1].sum(-1), torch.ones(2, 4, 5))


def test_dropout_is_unbiased_on_the_open_way(build, normal):
    attention = build(dropout=0.25).train()
    text = torch.from_numpy(normal(1, 5, 12)).expand(4000, 5, 12)
    torch.manual_seed(5)
    mean = attention(text, return_weights=True)[0].mean(0)
    whole = attention.eval()(text[:1])[0]
    np.testing.assert_allclose(mean.detach(), whole.detach(), atol=0.1)


def test_parameters_start_xavier_uniform_and_biases_empty():
    torch.manual_seed(0)
    attention = MultiHeadAttention(30, 5, value_dim=2)
    bound = (6 / (30 + 10)) ** 0.5
    assert 0.95 * bound < attention.value_projection.weight.abs().max() <= bound
    assert (attention.value_projection.bias == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 12, "heads": 5}, "d_model of 12 does not divide into 5 heads"),
        ({"d_model": 12, "heads": 0}, "d_model of 12 does not divide into 0 heads"),
        ({"d_model": 12, "heads": 4, "kv_heads": 3}, "4 heads do not divide into groups over 3"),
        ({"d_model": 12, "heads": 4, "kv_heads": 0}, "kv_heads must be at least 1, got 0"),
        ({"d_model": 12, "heads": 4, "value_dim": -1}, "value_dim must be at least 1, got -1"),
        ({"d_model": 12, "heads": 4, "dropout": 1.0}, r"probability in \[0, 1\), got 1.0"),
        ({"d_model": 12, "heads": 4, "rotary": 1e4}, "even head_dim, got 3"),
    ],
)
def test_shapes_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**arguments)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 5, 11)], r"query of shape \(..., token, 12\), got \(2, 5, 11\)"),
        ([(12,)], r"query of shape \(..., token, 12\), got \(12,\)"),
        ([(2, 5, 12), (2, 7, 11)], r"key of shape \(..., token, 12\)"),
        ([(2, 5, 12), (2, 7, 12), (2, 7, 11)], r"value of shape \(..., token, 12\)"),
        ([(2, 5, 12), (2, 7, 12), (2, 6, 12)], "key and value in their tokens"),
        ([(2, 5, 12), (3, 7, 12)], "agree in their batch axes"),
        ([(2, 5, 12), (2, 5, 12), (2, 5, 12), (2, 5, 5)], "does not broadcast over the weights"),
        ([(5, 12), (5, 12), (5, 12), (1, 1, 5, 5)], "does not broadcast over the weights"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(build, shapes, message):
    attention = build()
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        attention(*map(torch.from_numpy, arrays))
    with pytest.raises(ValueError, match=message):
        NumpyAttention.from_state(attention.state_dict(), 4)(*arrays)


def test_rotary_cross_attention_is_refused(build, normal):
    attention = build(rotary=1e4, head_dim=2)
    text, other = normal(2, 5, 12), normal(2, 7, 12)
    with pytest.raises(ValueError, match="positions are those of one text"):
        attention(torch.from_numpy(text), torch.from_numpy(other))
    with pytest.raises(ValueError, match="positions are those of one text"):
        NumpyAttention.from_state(attention.state_dict(), 4, rotary=1e4)(text, other)


# The way that learns in bfloat16 on a CPU, against torch's kernel in float32.
@pytest.mark.parametrize("scale", [None, 0.7])
def test_attention_learns_in_bfloat16_what_it_learns_in_float32(scale):
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, 7, 5) for _ in range(3)]
    narrow = [part.to(torch.bfloat16).requires_grad_() for part in parts]
    wide = [part.detach().float().requires_grad_() for part in narrow]
    output = fused_attention(*narrow, causal=True, scale=scale)
    expected = functional.scaled_dot_product_attention(*wide, is_causal=True, scale=scale)
    direction = torch.randn(expected.shape)
    output.backward(direction.to(torch.bfloat16))
    expected.backward(direction)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, atol=0.03, rtol=0.03)
    for ours, theirs in zip(narrow, wide, strict=True):
        torch.testing.assert_close(ours.grad.float(), theirs.grad, atol=0.05, rtol=0.05)


def test_by_hand(convert, close):
    query = convert(np.array([[[1.0, 2.0, 0.0, -1.0]]]))
    key = convert(np.array([[[3.0, 0.5, 7.0, 2.0], [-1.0, -2.0, 0.0, 1.0]]]))
    close(scores_by("dot", query, key), [[[2, -6]]])
    close(scores_by("scaled-dot", query, key), [[[1, -3]]])
    tanh = math.tanh
    expected = tanh(4) + tanh(2.5) + tanh(7) + tanh(1)
    close(scores_by("additive", query, key), [[[expected, 0]]])
    weighted = additive_scores(query, key, convert(np.array([2.0, 0.0, 0.0, -1.0])))
    close(weighted, [[[2 * tanh(4) - tanh(1), 0]]])


# The layers of Keras take one head's query, value and key, and no projections.


def test_the_vector_learns(normal):
    attention = MultiHeadAttention(12, 4, score="additive")
    attention(torch.from_numpy(normal(2, 5, 12))).square().sum().backward()
    assert attention.score_weight.shape == (4, 3)
    for parameter in attention.parameters():
        assert torch.isfinite(parameter.grad).all()
    assert (attention.score_weight.grad != 0).any()
    count = sum(parameter.numel() for parameter in attention.parameters())
    assert count == 4 * 12 * 12 + 4 * 12 + 12
    assert "score=additive" in repr(attention)


def test_the_vector_is_drawn_xavier_uniform_and_last():
    additive = NumpyAttention.random(30, 6, seed=3, score="additive")
    plain = NumpyAttention.random(30, 6, seed=3)
    for name in ("query_weight", "key_weight", "value_weight", "output_weight"):
        np.testing.assert_array_equal(getattr(additive, name), getattr(plain, name))
    for vector in (
        additive.score_weight,
        MultiHeadAttention(30, 6, score="additive").score_weight.detach().numpy(),
    ):
        assert vector.shape == (6, 5)
        assert 0.8 < np.abs(vector).max() <= 1  # sqrt(6 / (5 + 1))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="one of scaled-dot, dot, additive, got 'cosine'"):
        MultiHeadAttention(12, 4, score="cosine")
    plain = NumpyAttention.random(12, 4)
    with pytest.raises(ValueError, match="one of scaled-dot, dot, additive, got 'cosine'"):
        dataclasses.replace(plain, score="cosine")
    with pytest.raises(ValueError, match="belongs to additive scores, not to scaled-dot"):
        dataclasses.replace(plain, score_weight=np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"score_weight of shape \(4, 3\), got \(3, 4\)"):
        dataclasses.replace(plain, score="additive", score_weight=np.ones((3, 4)))
