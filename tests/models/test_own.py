"""The textbook's case: seeded random attention over the words of any language."""

import math

import numpy as np
import pytest

from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.errors import UsageError
from attnviz.models.own import OwnAttention


def weights_of(model, text):
    tokens, observed = model.encode(text), []
    model.run_rows(
        [tokens.ids], len(tokens), lambda layer: True, lambda *block: observed.append(block)
    )
    ((layer, start, weights, norms),) = observed
    assert (layer, start, norms) == (0, 0, None)
    return weights[0]


def test_words_of_any_language_are_the_tokens():
    tokens = OwnAttention().encode("  나는 오늘 학교에 갔다 .\n")
    assert tokens.texts == ("나는", "오늘", "학교에", "갔다", ".")
    assert tokens.ids == (0, 1, 2, 3, 4)
    assert tokens.special == (False,) * 5
    assert OwnAttention().encode("the cat and the dog and the").ids == (0, 1, 2, 0, 3, 2, 0)
    assert OwnAttention().encode("one two three", 2).texts == ("one", "two")


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_text_without_words_is_refused(text):
    with pytest.raises(UsageError, match="at least one word"):
        OwnAttention().encode(text)


@pytest.mark.parametrize("causal", [False, True])
def test_the_weights_are_those_of_the_formula(causal):
    """Head by head, from the seeds: softmax(Q Kᵀ / √d_k) over embeddings and weights drawn anew."""
    d_model, heads, kv_heads, head_dim, seed = 15, 4, 2, 3, 11
    actual = weights_of(
        OwnAttention(d_model, heads, kv_heads, head_dim=head_dim, causal=causal, seed=seed),
        "a b a c",
    )
    drawn = np.random.default_rng((seed, 1)).standard_normal((3, d_model))
    words = drawn[[0, 1, 0, 2]].astype(np.float32).astype(np.float64)
    generator = np.random.default_rng(seed)
    matrices = []
    for rows in (heads * head_dim, kv_heads * head_dim):
        bound = math.sqrt(6 / (rows + d_model))
        matrices.append(generator.uniform(-bound, bound, (rows, d_model)))
    for head in range(heads):
        group = head // (heads // kv_heads)
        query = words @ matrices[0][head * head_dim : (head + 1) * head_dim].T
        key = words @ matrices[1][group * head_dim : (group + 1) * head_dim].T
        for row in range(4):
            seen = row + 1 if causal else 4
            powers = [math.exp(query[row] @ key[j] / math.sqrt(head_dim)) for j in range(seen)]
            expected = [power / sum(powers) for power in powers] + [0] * (4 - seen)
            np.testing.assert_allclose(actual[head, row], expected, atol=1e-6)


def test_nothing_wanted_is_nothing_handed_over():
    model = OwnAttention()
    observed = []
    ids = [model.encode("a b").ids]
    model.run_rows(ids, 2, lambda layer: False, lambda layer, *_: observed.append(layer))
    assert not observed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 12, "heads": 5}, "heads that divide it: 1, 2, 3, 4, 6, 12"),
        ({"heads": 8, "kv_heads": 3}, "kv_heads that divide 8: 1, 2, 4, 8"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"d_model": -64}, "d_model must be at least 1, got -64"),
        ({"kv_heads": 0}, "kv_heads must be at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_line(arguments, message):
    with pytest.raises(UsageError, match=message) as caught:
        OwnAttention(**arguments)
    assert "\n" not in str(caught.value)


def crossed(model, text, target):
    keys = model.encode(text)
    return model.cross_weights(model.encode_queries(target, keys), keys)


def test_one_text_looks_at_another():
    # A text that looks at itself is self-attention; its words may stand in any order.
    model = OwnAttention(24, 4, 2, seed=3)
    assert crossed(model, "a b c d e f", "w x y z").shape == (4, 4, 6)
    own = weights_of(model, "the cat saw the cat")
    found = crossed(model, "the cat saw the cat", "saw cat")
    np.testing.assert_allclose(found, own[:, [2, 1]], rtol=1e-6)  # products of other sizes
    model = OwnAttention()
    keys = model.encode("the cat saw the dog")
    assert model.encode_queries("a dog and the bird a", keys).ids == (4, 3, 5, 0, 6, 4)
    with pytest.raises(UsageError, match="at least one word"):
        model.encode_queries(" ", keys)
    weights = crossed(OwnAttention(causal=True), "a b c", "x y z")
    assert np.triu(weights, 1).any()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("score", ["scaled-dot", "dot", "additive"])
def test_the_score_is_the_one_asked_for(score):
    model = OwnAttention(12, 3, score=score, seed=4)
    assert model.info.score == model.redrawn(9).info.score == score
    words = model.embed((0, 1, 2))
    expected = NumpyAttention.random(12, 3, seed=4, score=score)(words)[1]
    np.testing.assert_allclose(weights_of(model, "a b c"), expected, atol=1e-6)
