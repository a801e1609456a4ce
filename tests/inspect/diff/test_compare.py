"""The numbers behind a comparison, against sums written out by hand, brute force and torch."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import attnviz
from attnviz.attention.numpy_attention import to_bfloat16
from attnviz.engine import observer
from attnviz.engine.capture import open_probing
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.diff import compare
from attnviz.inspect.diff.compare import (
    Divergences,
    ModelMaps,
    TextMaps,
    divergences,
    matched_pairs,
    model_maps,
    noise_floor,
    over_texts,
    pairs_by_index,
    predictions,
)
from attnviz.measures.divergence import js_divergence
from attnviz.models.bundled import Bundled
from attnviz.models.prepare import prepared
from attnviz.records import Input, ModelInfo, Tokens
from attnviz.texts import built_in_texts

from ...engine.architectures import small_model
from . import planted

TINY = Path(attnviz.__file__).parent / "data" / "tiny"
RNG = np.random.default_rng(5)
TEXT = " ".join(f"w{number * number % 37}" for number in range(60))


def test_bfloat16_is_rounded_as_torch_does():
    numbers = np.concatenate([RNG.normal(size=999), [0, 1.00390625, -1.01171875, 3e38]])
    numbers = numbers.astype(np.float32)
    expected = torch.from_numpy(numbers).bfloat16().float().numpy()
    np.testing.assert_array_equal(to_bfloat16(numbers), expected)


def made(rows, sinks=True):
    """One layer over texts: rows (text, head, query, key)."""
    texts = []
    for weights in np.asarray(rows, float):
        size = weights.shape[-1]
        tokens = Tokens(tuple(range(size)), ("a",) * size, (sinks, *[False] * (size - 1)))
        sink = np.arange(size) == 0
        outputs = {0: np.ones((*weights.shape[:2], 2))}
        texts.append(TextMaps(tokens, tokens, np.arange(size), sink, {0: weights}, outputs, None))
    info = ModelInfo("made", None, "None", "float32", 1, len(rows[0]), len(rows[0]), 2)
    return ModelMaps(info, "self", True, tuple(texts))


def causal_rows(texts, heads, size, seed=5):
    """Random rows, the same in any order of the tests."""
    draw = np.random.default_rng(seed)
    raw = np.tril(draw.dirichlet(np.full(size, 0.5), (texts, heads, size)) + 1e-6)
    return np.asarray(raw / raw.sum(-1, keepdims=True))


def test_divergences_are_means_over_queries_but_the_first():
    a, b = causal_rows(3, 2, 5), causal_rows(3, 2, 5, seed=6)
    found = divergences(made(a), made(b), [((0, 0), (0, 1)), ((0, 1), (0, 0))])
    by_hand = js_divergence(a[2, 0, 1:], b[2, 1, 1:]).mean()
    assert found.js[2, 0] == pytest.approx(by_hand)
    bare = [each[1:, 1:] / each[1:, 1:].sum(-1, keepdims=True) for each in (a[1, 1], b[1, 0])]
    assert found.no_sink[1, 1] == pytest.approx(js_divergence(*bare).mean())
    assert (abs(found.output) < 1e-15).all()
    assert predictions(made(a), made(b)) is None
    fewer = divergences(made(a), made(b), [((0, 0), (0, 1)), ((0, 1), (0, 0))], bare=False)
    assert (fewer.js == found.js).all()
    assert np.isnan(fewer.no_sink).all()


def test_a_match_finds_the_order_of_heads():
    rows, order = causal_rows(3, 5, 6), [3, 0, 4, 1, 2]
    pairs = matched_pairs(made(rows), made(rows[:, order]))
    assert pairs == [((0, order[at]), (0, at)) for at in np.argsort(order)]
    fewer = matched_pairs(made(rows), made(rows[:, order[:3]]))
    assert fewer == [((0, 0), (0, 1)), ((0, 3), (0, 0)), ((0, 4), (0, 2))]
    assert pairs_by_index({0: 5, 1: 2}, {0: 3, 2: 2}) == [((0, at), (0, at)) for at in range(3)]


def test_the_floor_is_twice_the_largest_mean_and_few_texts_have_no_interval():
    js = np.array([[0.1, 0.2], [0.3, 0.0]])
    nothing = np.full((2, 2), np.nan)
    floor = noise_floor(Divergences(js, nothing, nothing))
    assert floor.js == pytest.approx(0.4)
    assert math.isnan(floor.output)
    assert over_texts(js, 0)[0].ends is None
    six = over_texts(np.tile(js, (3, 1)), 0)[0]
    low, high = six.ends or (0, 0)
    assert low < 0.2 < high
    assert not six.above(low)
    assert six.above(low - 1e-9)
    assert not six.above(math.nan)


@pytest.fixture(scope="module")
def whole():
    model, texts = Bundled(), built_in_texts().texts
    maps = planted.maps_of(model, texts)
    return model, maps, planted.floor_of(model, maps, texts)


@pytest.mark.parametrize("head", [(1, 2), (5, 0)])
def test_a_planted_head_is_found_first(whole, head):
    model, maps, floor = whole
    for plant in (
        lambda t: planted.permute_queries(t, head, 1),
        lambda t: planted.zero_head(t, head),
    ):
        changed = planted.maps_of(planted.changed_model(model, plant), built_in_texts().texts)
        found = planted.verdict(maps, changed, floor)
        assert found.first == head
        assert min(found.changed | found.output_changed)[0] == head[0]


def test_four_bits_are_found_and_rounding_is_not(whole):
    model, maps, floor = whole
    texts = built_in_texts().texts
    noisy = planted.maps_of(
        planted.changed_model(model, lambda t: planted.four_bits(t, 4, 0)), texts
    )
    assert {layer for layer, _ in planted.verdict(maps, noisy, floor).changed} == {4, 5}
    for other in (model.narrowed(), Bundled("float64")):
        assert not planted.verdict(maps, planted.maps_of(other, texts), floor).found
    found = predictions(maps, noisy)
    p, q = (np.concatenate([text.predictions for text in side.texts]) for side in (maps, noisy))
    kl = (np.exp(p.astype(float)) * (p.astype(float) - q)).sum(-1)
    same = p.argmax(-1) == q.argmax(-1)
    assert found.kl == pytest.approx(kl.mean(), rel=1e-4)
    assert found.kl_error == pytest.approx(kl.std(ddof=1) / math.sqrt(len(p)), rel=1e-4)
    assert (found.same_top, found.positions) == (same.mean(), len(p))


def test_another_vocabulary_is_compared_over_the_tokens_that_both_have():
    """KL of what is left after the tokens of one model alone, each rescaled to one."""
    a, b = RNG.dirichlet(np.ones(5), (2, 7)), RNG.dirichlet(np.ones(8), (2, 7))
    maps = made(causal_rows(2, 1, 7))
    left, right = (
        replace(
            maps,
            texts=tuple(
                replace(text, predictions=np.log(rows))
                for text, rows in zip(maps.texts, shares, strict=True)
            ),
        )
        for shares in (a, b)
    )
    shared = b[..., :5] / b[..., :5].sum(-1, keepdims=True)
    outside = b[..., 5:].sum(-1).max()
    found, back, alike = (
        predictions(*pair) for pair in ((left, right), (right, left), (left, left))
    )
    assert found.kl == pytest.approx((a * np.log(a / shared)).sum(-1).mean())
    assert (found.outside, back.outside) == pytest.approx((outside, outside))
    assert found.same_top == (a.argmax(-1) == shared.argmax(-1)).mean()
    assert alike.outside is None


def made_model(name, changed=False):
    model = small_model(name)
    if changed:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
    return prepared(name, model, None, torch.device("cpu"))


def read(model, reduce, stride=None):
    given = Input(model.encode(TEXT, 30))
    return model_maps(open_probing(model), [given], stride, reduce=reduce)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "bert"])
def test_rows_outputs_and_predictions_equal_those_of_whole_maps(name, monkeypatch):
    """With grouped heads, windows, learned sinks and an encoder."""
    model = made_model(name)
    monkeypatch.setattr(compare, "MOST_BYTES", 30_000)
    some = read(model, "fused")
    whole = read(model, "full", some.stride)
    assert some.stride > 1
    (one,), (other,) = some.texts, whole.texts
    assert one.kept.tolist() == other.kept.tolist()
    for part in ("rows", "outputs"):
        found, expected = getattr(one, part), getattr(other, part)
        assert found.keys() == expected.keys() != set()
        for layer, values in expected.items():
            assert np.abs(found[layer] - values).max() < 1e-5, (part, layer)
    assert (one.predictions is None) == (other.predictions is None) == (name == "bert")
    if one.predictions is not None:
        assert np.abs(one.predictions - other.predictions).max() < 1e-4


@pytest.mark.long
def test_a_comparison_by_rows_gives_the_same_numbers(monkeypatch):
    one, other = made_model("llama"), made_model("llama", changed=True)
    found = [
        attnviz.diff(one, other, TEXT, noise_floor=0.01, truncate=True, reduce=reduce)
        for reduce in ("full", "fused")
    ]
    for a, b in zip(found[0].changes, found[1].changes, strict=True):
        assert [b.js, b.no_sink, b.output] == pytest.approx([a.js, a.no_sink, a.output], abs=1e-5)
    assert found[1].predictions.kl == pytest.approx(found[0].predictions.kl, abs=1e-5)
    monkeypatch.setattr(observer, "_LONG", 20)
    monkeypatch.setattr(observer, "_LARGE", 20)
    monkeypatch.setattr(compare, "MOST_BYTES", 4_000)
    with pytest.raises(UsageError, match="8 rows of attention take more than 4,000 bytes: shorten"):
        attnviz.diff(one, other, TEXT, noise_floor=0.01, truncate=True)


def test_what_has_no_rows_is_refused():
    with pytest.raises(UnsupportedError, match="leave out --reduce fused"):
        read(made_model("t5"), "fused")
