"""Operations are those of the products that a run makes, and single numbers count for little."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel

import attnviz
from attnviz.models.bundled import Bundled
from attnviz.models.numpy_checkpoint import open_numpy
from attnviz.models.own import OwnAttention
from attnviz.models.work import ModelSizes, sizes_of

from .test_numpy_checkpoint import made

WIDE = ModelSizes(
    layers=12,
    heads=12,
    matrices=12 * 768**2,
    reading=3 * 768**2,
    width=768,
    mixed=768,
    vocabulary=50257,
)


def test_the_sizes_of_the_bundled_model_are_those_of_its_tensors():
    model = Bundled()
    sizes = sizes_of(model)
    layers = [tensor for name, tensor in model.tensors.items() if "layers.0." in name]
    queries, keys, values = (
        model.tensors[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"
    )
    assert sizes.matrices == sum(tensor.size for tensor in layers)
    assert sizes.reading == queries.size + keys.size + values.size
    assert (sizes.width, sizes.vocabulary) == model.tensors["model.embed_tokens.weight"].shape[::-1]


@pytest.mark.parametrize("family", ["gpt2", "bert", "mistral"])
def test_numpy_and_torch_have_the_same_sizes(family, tmp_path):
    directory = str(made(tmp_path, family))
    ours = sizes_of(open_numpy(directory, None, None))
    theirs = sizes_of(attnviz.load(directory, backend="torch"))
    extra = abs(theirs.matrices - ours.matrices) / ours.matrices
    assert extra < 0.1  # biases and norms have no matrices
    assert replace(theirs, matrices=0) == replace(ours, matrices=0)


def test_a_model_without_sizes_has_those_of_its_info():
    sizes = sizes_of(OwnAttention(d_model=64, heads=4))
    assert (sizes.layers, sizes.heads, sizes.width, sizes.vocabulary) == (1, 4, 64, 0)


def test_a_forward_pass_is_counted_as_torch_counts_it():
    """Within a third: single numbers are added to the products, which torch alone counts."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=2))
    sizes = replace(WIDE, layers=2)
    with FlopCounterMode(display=False) as counted, torch.inference_mode():
        model.transformer(torch.arange(64)[None])
    assert 1 <= sizes.forward(64) / counted.get_total_flops() < 4 / 3


def test_each_change_is_a_row_from_its_layer_on():
    nothing = WIDE.changed(40, [])
    assert nothing == pytest.approx(WIDE.forward(40) + WIDE.read_out(40))
    costs = [WIDE.changed(40, [layer]) - nothing for layer in range(12)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] - costs[1] == pytest.approx(WIDE.forward(40) / 12)
    assert WIDE.changed(40, [3, 3, 7]) - nothing == pytest.approx(2 * costs[3] + costs[7])
    assert WIDE.changed(40, [3], read=1) < WIDE.changed(40, [3])


def test_what_is_held_grows_and_every_head_is_counted():
    assert WIDE.numbers_kept(20) == 2 * WIDE.numbers_kept(10)
    one, two = (WIDE.numbers_inside(64, rows) for rows in (1, 2))
    assert two == pytest.approx(2 * one)
    assert one > 64 * (8 * 768 + 4 * 768)  # the residual's copies, and a feed-forward block
    assert Counter(WIDE.every_head()) == dict.fromkeys(range(12), 12)
