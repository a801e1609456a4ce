"""The logit lens is what the model predicts with its later blocks taken out, one after another;
what heads raise is what ``why`` says of them, word by word."""

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
import torch

from attnviz.engine.attribution.on_torch import TorchAttributor
from attnviz.engine.attribution.parts import AskedLogit, block_readings, head_readings
from attnviz.engine.backend import backend_of
from attnviz.engine.device_sizes import DeviceSizes
from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work
from attnviz.records import Input

from ...every_causal import causal_kinds
from ...quick import one_in
from .test_attribution_every import GIVEN, IDS, STREAMS, opened
from .test_on_numpy import SHAPES, TEXT
from .test_on_numpy import directory as directory

PROMPT = "When Nancy met John, nobody knew why Nancy met"
COMPARED = ("gpt2", "gemma2", "falcon", "cohere", "gpt_bigcode")
"""Norms of both kinds, a softcap, a logit factor, parallel blocks, one that fixes its batch."""
RANKS = [3438, 3882, 1, 1, 1, 1, 1]
KL = [20.4827, 14.0682, 0.0146, 0.0072, 0.0053, 0.0035, 0.0]
PROBABILITIES = [0.0, 1e-6, 0.949836, 0.969254, 0.968348, 0.962239, 0.965738]


def asked(position=None, answer=None):
    return AskedLogit(position, answer, None, ())


@pytest.mark.parametrize("words", [3, 40])
def test_what_heads_raise_is_read_of_arrays_and_of_what_a_gpu_keeps(words):
    rows = np.random.default_rng(0).integers(-4, 5, (6, words)).astype(float)  # with ties
    heads = [("self", 0, head) for head in range(6)]
    found = head_readings([(heads[:2], rows[:2]), (heads[2:], rows[2:])], 1)
    assert found == head_readings([(heads, torch.from_numpy(rows))], 1)
    for row, reading in zip(rows - rows.mean(1, keepdims=True), found, strict=True):
        order = sorted(range(words), key=lambda word: -row[word])
        assert [word for word, _ in reading.raises] == [at for at in order[:5] if row[at] > 0]
        lowest = [at for at in order[::-1][:5] if row[at] < 0]
        assert [word for word, _ in reading.lowers] == lowest
        assert reading.answer == pytest.approx(row[1])


def read_lens(model, given, question):
    backend = backend_of(model)
    return backend.open_attributor(given).lens(given, question)


RAISED = {
    (1, 2): [(" John", 4.2206), (" James", 3.3984), (" Cy", 2.7376), (" Jimmy", 2.5524)],
    (1, 0): [(" John", 3.428), ("gether", 2.1588), ("ards", 2.0066), (" brother", 1.978)],
    (1, 3): [(" John", 2.1154), (" Poirot", 1.8689), (" Inglethorp", 1.6906), (" Dr", 1.4444)],
}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_bundled_model(backend):
    model = Bundled()
    given = Input(model.encode(PROMPT))
    if backend == "numpy":
        found = read_lens(model, given, asked())
    else:
        patchable = backend_of(model).open_patchable("self", given)
        found = TorchAttributor(patchable, given).lens(given, asked())
    assert [each.block for each in found.blocks] == [None, 0, 1, 2, 3, 4, 5]
    assert [each.rank for each in found.blocks] == RANKS
    assert [each.kl for each in found.blocks] == pytest.approx(KL, abs=1e-4)
    assert [each.probability for each in found.blocks] == pytest.approx(PROBABILITIES, abs=1e-5)
    assert found.tallies
    heads = {each.head[1:]: each for each in found.heads}
    assert len(heads) == 24
    for place, expected in RAISED.items():
        words = model.vocabulary().texts([word for word, _ in heads[place].raises])
        for word, (_, value), (name, golden) in zip(
            words, heads[place].raises, expected, strict=False
        ):
            assert (word, value) == (name, pytest.approx(golden, abs=1e-4))


@contextmanager
def without_blocks(model, first):
    """Run the model with all blocks from one on taken out: they give back what they are given."""
    plain = {}
    (blocks,) = [
        part
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.ModuleList) and len(part) == 4 and name.count(".") <= 2
    ][:1]

    def giving_back(block):
        def forward(*args, **kwargs):
            hidden = args[0] if args else kwargs["hidden_states"]
            return hidden if plain[id(block)] is torch.Tensor else (hidden, None, None)

        return forward

    for block in blocks:
        block.register_forward_hook(lambda one, args, out: plain.update({id(one): type(out)}))
    model(IDS, use_cache=False)
    with ExitStack() as stack:
        for block in blocks[first:]:
            stack.enter_context(mock.patch.object(block, "forward", giving_back(block)))
        yield


def read(kind):
    model, patchable = opened(kind)
    return model, patchable, TorchAttributor(patchable, GIVEN).lens(GIVEN, asked())


@pytest.mark.parametrize("kind", one_in(2, [kind for kind in COMPARED if kind in causal_kinds()]))
def test_it_is_the_model_without_its_later_blocks(kind):
    model, patchable, found = read(kind)
    plain = []
    for block in range(5):
        with without_blocks(model, block), torch.no_grad():
            plain.append(model(IDS, use_cache=False).logits[0, -1].double().numpy())
    for mine, other in zip(
        found.blocks, block_readings(np.stack(plain), found.answer), strict=True
    ):
        assert mine.rank == other.rank
        assert mine.probability == pytest.approx(other.probability, abs=1e-5)
        assert mine.kl == pytest.approx(other.kl, abs=1e-4)
        assert [word for word, _ in mine.top] == [word for word, _ in other.top]
    attributor = TorchAttributor(patchable, GIVEN)
    foils = [word for word in (5, 7, 11) if word != found.answer]
    for foil in foils:
        why = attributor.attribute(GIVEN, answer=found.answer, foil=foil)
        other = attributor.lens(GIVEN, asked(answer=foil))
        for mine, theirs in zip(found.heads, other.heads, strict=True):
            assert mine.answer - theirs.answer == pytest.approx(
                why.heads[mine.head], abs=why.tolerance
            )


@pytest.mark.parametrize("kind", SHAPES)
def test_numpy_reads_what_torch_reads(directory, kind):
    place = str(directory(kind))
    both = []
    for backend in ("numpy", "torch"):
        model = load(place, LoadOptions(backend=backend, work=Work(9)))
        both.append(read_lens(model, Input(model.encode(TEXT)), asked(position=-3)))
    for one, other in zip(*(each.blocks for each in both), strict=True):
        assert (one.block, one.rank) == (other.block, other.rank)
        assert one.kl == pytest.approx(other.kl, abs=1e-5)
        assert one.probability == pytest.approx(other.probability, abs=1e-6)
    for mine, theirs in zip(*(each.heads for each in both), strict=True):
        assert mine.head == theirs.head
        assert mine.answer == pytest.approx(theirs.answer, abs=1e-4)
        assert dict(mine.raises) == pytest.approx(dict(theirs.raises), abs=1e-4)


@pytest.mark.parametrize("several", [True, False])
def test_a_gpu_follows_the_heads_of_a_layer_at_once(several, monkeypatch):
    """Or one by one, where torch knows no product of several."""
    _, _, alone = read("gpt2")
    own, asked_for = torch.autograd.grad, []

    def grad(*given, is_grads_batched=False, **options):
        asked_for.append(len(given[2]) if is_grads_batched else 0)
        if is_grads_batched and not several:
            raise RuntimeError("no batching rule")
        return own(*given, is_grads_batched=is_grads_batched, **options)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    monkeypatch.setattr(DeviceSizes, "waits", True)
    _, _, together = read("gpt2")
    assert max(asked_for) == len(together.heads) // 4
    assert len(asked_for) - asked_for.count(0) == 4
    assert (len(asked_for) < len(together.heads)) == several
    for one, other in zip(alone.heads, together.heads, strict=True):
        assert one.head == other.head
        assert one.answer == pytest.approx(other.answer, abs=1e-5)
        assert dict(one.raises) == pytest.approx(dict(other.raises), abs=1e-5)


def test_what_has_several_streams_is_refused():
    kind = next(kind for kind in sorted(STREAMS) if kind in causal_kinds())
    with pytest.raises(UnsupportedError, match="more between its blocks"):
        read(kind)
