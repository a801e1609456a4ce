"""What later heads take straight from one head is what the model's own modules make of it."""

import numpy as np
import pytest
import torch

from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.attribution.circuits import numpy_path_reads, path_effects
from attnviz.engine.attribution.followed_run import torch_path_reads
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.bundled import Bundled
from attnviz.models.model import random_copies
from attnviz.models.prepare import prepared
from attnviz.models.resolve import load
from attnviz.models.stack_model import StackModel
from attnviz.records import Input, Tokens

from ...attention.test_families import IDS, MODELS, made, stack
from ...attention.test_families import stack as stack_of
from ..architectures import ARCHITECTURES, small_model, state_of
from ..stacks import once_quick
from .attribution_oracle import ROUTES, Recorded

CLEAN, CORRUPT = (7, 5, 11, 42, 13, 5), (7, 5, 23, 42, 31, 5)
SENDER = ("self", 0, 1)

_LLAMA = ("model.layers.{}.input_layernorm", "model.layers.{}.self_attn.{}_proj")
READERS = {
    "gpt2": ("transformer.h.{}.ln_1", "transformer.h.{}.attn.c_attn"),
    "llama": _LLAMA,
    "gemma2": _LLAMA,
    "gpt_neox": (
        "gpt_neox.layers.{}.input_layernorm",
        "gpt_neox.layers.{}.attention.query_key_value",
    ),
    "gpt_neo": ("transformer.h.{}.ln_1", "transformer.h.{}.attn.attention.{}_proj"),
}
"""The norm and the projection that read; of all three at once where there is but one."""

WRITERS = {
    **{name: ROUTES[name].heads["self"] for name in READERS if name in ROUTES},
    "gpt_neo": ("transformer.h.{}.attn.attention.out_proj",),
}
BACKENDS = [
    *((name, "torch") for name in ("gpt2", "llama", "gemma2", "gpt_neox")),
    *((name, "numpy") for name in ("gpt2", "llama", "gpt_neo")),
]
"""GPT-Neo's queries are not seen on torch, and Gemma 2 does not run in NumPy, nor a head of which
less than a pair is rotated; NumPy's other families are compared with torch."""
CHANGED = [*IDS[:4], 23, *IDS[5:9], 31, 45, 8, 100]
SENDERS = [("self", 0, 1), ("self", 0, 2), ("self", 1, 0)]


def read_by(name, model, what, layer, normed):
    """(token, head, dim) of what a head's query, key or value projection makes, without bias."""
    path = READERS[name][1].format(layer, what[0])
    module = model.get_submodule(path)
    dim = 7 if name == "gpt_neo" else ARCHITECTURES[name].config.get("head_dim", 8)
    weight = module.weight if name == "gpt2" else module.weight.T
    merged = normed @ weight
    if name == "gpt2":
        return merged.chunk(3, -1)[["query", "key", "value"].index(what)].unflatten(-1, (-1, dim))
    if name == "gpt_neox":
        heads = model.config.num_attention_heads
        return merged.unflatten(-1, (heads, 3, -1))[:, :, ["query", "key", "value"].index(what)]
    return merged.unflatten(-1, (-1, dim))


def opened_by(backend, name, model, directory):
    model.save_pretrained(directory)
    model.double()
    if backend == "torch":
        return prepared(name, model, None, torch.device("cpu"), seed=0)
    stack, read = stack_of(directory)
    stack = NumpyStack(read.shape, stack.tensors.stored, np.float64)
    tiny = Bundled()
    return StackModel(tiny.info, stack, lambda: None)


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_shares_are_what_norms_and_projections_by_hand_make_of_the_difference(
    name, backend, tmp_path
):
    model = small_model(name)
    opened = opened_by(backend, name, model, tmp_path)
    before = state_of(model)
    texts = Input.of_ids(CLEAN), Input.of_ids(CORRUPT)
    (found,) = path_effects(opened, *texts, [SENDER])
    assert state_of(model) == before
    clean, corrupt = (Recorded(model, {"input_ids": torch.tensor([one.ids])}) for one in texts)
    tokens = range(len(CLEAN))
    projection, *between = (path.format(0) for path in WRITERS[name])
    change = (clean.entered[projection] - corrupt.entered[projection])[0]
    heads = model.config.num_attention_heads
    alone = torch.zeros_like(change).unflatten(-1, (heads, -1))
    alone[:, SENDER[2]] = change.unflatten(-1, (heads, -1))[:, SENDER[2]]
    module = model.get_submodule(projection)
    written = module(alone.flatten(-2)) - module(torch.zeros_like(change))
    for step in between:
        written = torch.stack([corrupt.through(step, written[at], at) for at in tokens])
    with torch.no_grad():
        for layer in (1, 2):
            norm = READERS[name][0].format(layer)
            streams = [one.entered[norm][0] for one in (clean, corrupt)]

            def held(moved, norm=norm):
                return torch.stack([corrupt.through(norm, moved[at], at) for at in tokens])

            for what in ("query", "key", "value"):
                own = [
                    read_by(name, model, what, layer, one.left[norm][0]) for one in (clean, corrupt)
                ]
                difference = own[0] - own[1]
                size = difference.square().sum((0, 2))
                sent = read_by(name, model, what, layer, held(written))
                whole = read_by(name, model, what, layer, held(streams[0] - streams[1]))
                shares = (sent * difference).sum(-1) / size
                explained = (whole * difference).sum((0, 2)) / size
                for head in range(len(size)):
                    key = "self", layer, head
                    expected = shares[:, head].numpy()
                    assert found.shares[what][key] == pytest.approx(expected, abs=2e-6), (what, key)
                    whole_share = found.explained[what][key]
                    if name == "gemma2":  # norms behind attention change what is written, too
                        assert abs(whole_share - 1) < 0.4
                    else:
                        assert whole_share == pytest.approx(float(explained[head]), abs=2e-6)
                    if name in ("llama", "gemma2", "gpt_neo"):  # no bias in a query
                        relative = (size[head] / own[0][:, head].square().sum()).sqrt()
                        assert found.moved[what][key] == pytest.approx(float(relative), abs=2e-6)
    assert {key[1] for key in found.shares["query"]} == {1, 2}


def test_induction_heads_take_their_keys_from_the_previous_token_head():
    model = load("tiny")
    text = random_copies(model.vocabulary(), 12, 2, 1)
    drawn = np.random.default_rng(5).choice(model.vocabulary().plain, 12, replace=False)
    other = (text.ids[0], *drawn.tolist(), *text.ids[13:])
    senders = [("self", 0, head) for head in range(4)]
    found = path_effects(model, Input(text), Input.of_ids(other), senders)
    for head in (0, 2):
        shares = [one.share("key", ("self", 1, head)) for one in found]
        assert shares[0] > 0.6
        assert max(shares[1:]) < 0.1
        assert found[0].explained["key"]["self", 1, head] == pytest.approx(1, abs=0.1)


def test_of_equal_texts_nothing_is_told_and_of_unequal_lengths_it_is_refused():
    model = load("tiny")
    (same,) = path_effects(model, Input.of_ids(CLEAN), Input.of_ids(CLEAN), [SENDER])
    assert same.shares == {}
    with pytest.raises(UsageError, match="6 and 5 tokens"):
        path_effects(model, Input.of_ids(CLEAN), Input.of_ids(CORRUPT[:5]), [SENDER])
    with pytest.raises(UsageError, match="no self head 9 in layer 0"):
        path_effects(model, Input.of_ids(CLEAN), Input.of_ids(CORRUPT), [("self", 0, 9)])


def test_a_model_that_does_not_show_its_queries_is_refused():
    opened = prepared("gpt_neo", small_model("gpt_neo"), None, torch.device("cpu"), seed=0)
    with pytest.raises(UnsupportedError):
        path_effects(opened, Input.of_ids(CLEAN), Input.of_ids(CORRUPT), [SENDER])


def _equal(found, expected, near):
    assert (found.kind, found.layer, found.sort) == (expected.kind, expected.layer, expected.sort)
    size = np.abs(expected.clean).max()
    for name in ("clean", "difference", "whole"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= near * size, name
    assert found.alone.keys() == expected.alone.keys()
    for sender, part in expected.alone.items():
        assert np.abs(found.alone[sender] - part).max() <= near * size


@pytest.mark.parametrize(
    "name", once_quick([name for name in MODELS if not name.startswith("gpt-neo")])
)
def test_every_family_reads_what_torch_reads(name, tmp_path):
    model = made(tmp_path, name).double()
    ours, read = stack(tmp_path)
    ours.__init__(read.shape, ours.tensors.stored, np.float64)
    texts = Tokens.bare(IDS), Tokens.bare(CHANGED)
    found = numpy_path_reads(ours, *texts, SENDERS)
    inputs = Input(texts[0]), Input(texts[1])
    patchable = patchable_transformers(model, "self", inputs[0])
    expected = torch_path_reads(patchable, *inputs, SENDERS)
    assert len(found) == 3 * read.shape.layers
    by_place = {(one.layer, one.sort): one for one in expected}
    assert by_place
    for one in found:
        if one.alone:
            _equal(one, by_place[one.layer, one.sort], 1e-6)
