"""Direct logit attribution in NumPy is that of the running torch model, which has its own way."""

import numpy as np
import pytest

from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.backend import backend_of
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work
from attnviz.records import Input

from ...small_models import (
    WORDS,
    bert_fields,
    gpt_fields,
    llama_fields,
    random_model,
    word_tokenizer,
)

TEXT = "the cat sat on the mat because the cat"
SHAPES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", gpt_fields(21, 37, layers=3)),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        dict(llama_fields(20, 23, 37, (4, 2, 6), 3), attention_bias=True, mlp_bias=True),
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", bert_fields(24, 29, 37, layers=3)),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", llama_fields(20, 23, 37, (4, 1, 6), 3)),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    import torch

    def made(kind):
        place = tmp_path_factory.mktemp("numpy") / kind
        torch.manual_seed(11)
        fields = {"vocab_size": len(WORDS), "initializer_range": 0.3, "pad_token_id": 0}
        model = random_model(SHAPES[kind], **fields, bos_token_id=1, eos_token_id=2)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or parameter.ndim == 1:  # zeros and ones as they come
                parameter.data += 0.3 * torch.randn_like(parameter)
        model.save_pretrained(place)
        word_tokenizer().save_pretrained(place)
        return place

    return made


def both(name):
    from attnviz.engine.attribution.on_torch import TorchAttributor

    numpy = load(name, LoadOptions(work=Work(64)))
    torch = numpy if name == "tiny" else load(name, LoadOptions(backend="torch"))
    given = Input(numpy.encode(TEXT))
    first = backend_of(numpy).open_attributor(given)
    return (numpy, first), (
        torch,
        TorchAttributor.of(torch.info, backend_of(torch).open_patchable("self", given), given),
    )


def test_equals_come_in_one_order(directory):
    """Of a model without weights, whose biases are parts though they add nothing."""
    from safetensors.numpy import load_file, save_file

    place = directory("gpt2")
    file = place / "model.safetensors"
    tensors = {name: np.zeros_like(held) for name, held in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    (numpy, first), (_, second) = both(str(place))
    ours, theirs = (one.attribute(Input(numpy.encode(TEXT))) for one in (first, second))
    assert [word for word, _ in ours.top] == [word for word, _ in theirs.top] == [0, 1, 2, 3, 4]
    assert ours.answer == theirs.answer == 0
    assert [part[:1] + part[2:] for part in ours.parts] == [
        part[:1] + part[2:] for part in theirs.parts
    ]


@pytest.mark.parametrize("kind", ["tiny", *SHAPES])
def test_equal_to_torch(directory, kind):
    name = kind if kind == "tiny" else str(directory(kind))
    (numpy, first), (_, second) = both(name)
    given = Input(numpy.encode(TEXT))
    for question in ({}, {"position": 4, "answer": 5}, {"answer": 6, "foil": 4}):
        maps = [("self", 1, 0), ("self", 2, 2)]
        ours = first.attribute(given, **question, maps=maps)
        theirs = second.attribute(given, **question, maps=maps)
        near = 1e-5 * max(abs(theirs.logit), 1.0)
        assert ours.tallies
        assert ours.logit == pytest.approx(theirs.logit, abs=near)
        assert (ours.position, ours.answer, ours.foil) == (
            *(theirs.position, theirs.answer, theirs.foil),
        )
        assert [one for one, _ in ours.top] == [one for one, _ in theirs.top]
        expected = {part[:1] + part[2:]: part.contribution for part in theirs.parts}
        found = {part[:1] + part[2:]: part.contribution for part in ours.parts}
        assert found.keys() == expected.keys()
        assert [found[part] for part in expected] == pytest.approx([*expected.values()], abs=near)
        for mine, others in ((ours.rows, theirs.rows), (ours.maps, theirs.maps)):
            assert mine.keys() == others.keys()
            for key, row in others.items():
                assert np.abs(mine[key] - row).max() < near
        for key, row in ours.maps.items():
            assert row[ours.position] == pytest.approx(ours.rows[key], abs=near)


def test_other_weights_do_not_tally(directory, monkeypatch):
    """The sum is held against the model's own logit, not against itself."""
    model = load(str(directory("gpt2")), LoadOptions(work=Work(64)))
    given = Input(model.encode(TEXT))
    assert backend_of(model).open_attributor(given).attribute(given).tallies
    own = NumpyStack.unembed
    monkeypatch.setattr(NumpyStack, "unembed", lambda stack, read: 1.01 * own(stack, read))
    assert not backend_of(model).open_attributor(given).attribute(given).tallies
