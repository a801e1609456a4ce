import math
from itertools import product

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from attnviz.attention.rotary import Rotary, apply_rotary, counted_tables


@pytest.mark.parametrize(("head_dim", "theta"), [(32, 1e4), (64, 5e5), (6, 1e4), (128, 1e4)])
def test_equals_llama(convert, normal, head_dim, theta):
    config = LlamaConfig(
        hidden_size=3 * head_dim,
        num_attention_heads=3,
        head_dim=head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    query, key = normal(2, 3, 97, head_dim), normal(2, 3, 97, head_dim)
    positions = np.arange(97)
    expected_tables = LlamaRotaryEmbedding(config)(torch.ones(1), torch.arange(97)[None])
    expected = apply_rotary_pos_emb(
        torch.from_numpy(query), torch.from_numpy(key), *expected_tables
    )
    tables = Rotary(theta).tables(convert(positions), head_dim, like=convert(query))
    for table, wanted in zip(tables, expected_tables, strict=True):
        np.testing.assert_allclose(table, wanted[0], atol=1e-5)
    for x, wanted in zip((query, key), expected, strict=True):
        np.testing.assert_allclose(apply_rotary(convert(x), *tables), wanted, atol=1e-5)


def test_angles_are_rounded_as_float32_far_from_the_start(convert):
    cos, sin = Rotary(5e5).tables([1009], 64, like=convert(np.zeros(1, np.float32)))
    for pair in range(32):
        power = np.float32(5e5 ** float(np.float32(2 * pair) / np.float32(64)))
        angle = float(np.float32(1009) * (np.float32(1) / power))
        assert float(cos[0, pair]) == pytest.approx(math.cos(angle), abs=1e-6)
        assert float(sin[0, 32 + pair]) == pytest.approx(math.sin(angle), abs=1e-6)


def test_each_text_may_have_its_own_positions(convert, normal):
    x = convert(normal(2, 3, 2, 4))
    positions = convert(np.array([[0, 1], [5, 6]]))
    cos, sin = Rotary(1e4).tables(positions, 4, like=x)
    assert cos.shape == (2, 2, 4)
    turned = apply_rotary(x, cos[:, None], sin[:, None])
    alone = apply_rotary(x[1], *Rotary(1e4).tables([5, 6], 4, like=x))
    np.testing.assert_array_equal(turned[1], alone)


def test_the_tables_have_the_type_of_the_vectors(convert):
    half = convert(np.zeros(1, np.float16))
    cos, sin = Rotary(1e4).tables(range(3), 4, like=half)
    assert cos.dtype == sin.dtype == half.dtype


@pytest.mark.parametrize("head_dim", [0, 5])
def test_an_odd_head_is_refused(convert, head_dim):
    with pytest.raises(ValueError, match=f"even head_dim, got {head_dim}"):
        Rotary(1e4).tables([0], head_dim, like=convert(np.zeros(1)))


def test_kept_tables_are_those_of_their_positions():
    rotary = Rotary(10_000.0, 4)
    for places in (range(9), range(3, 9), range(9)):
        kept = counted_tables(rotary, places, 8, np.dtype(np.float32))
        for found, position in product(kept, places):
            angle = np.float32(position) * np.array([1, 0.01, 1, 0.01], np.float32)
            expected = np.cos(angle) if found is kept[0] else np.sin(angle)
            assert found[position - places.start] == pytest.approx(expected, abs=1e-6)
