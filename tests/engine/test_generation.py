"""What is written, and where heads look meanwhile, is what transformers gives over whole texts."""

import copy
import shutil
from itertools import cycle

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from attnviz.attention import growing
from attnviz.engine import generation_torch
from attnviz.engine.generation import Sampling, generate, written
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.resolve import load
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.work import LoadOptions, Work
from attnviz.records import ModelInfo, Tokens

from ..every_causal import small_causal
from .architectures import ARCHITECTURES, inputs_of, small_model, state_of

STEPS = 6
CACHED = (
    *("gpt2", "llama", "mistral", "gemma2", "gpt_oss", "qwen3_next", "gptj", "bloom", "falcon"),
    "t5",
)
SCORES = np.random.default_rng(5).normal(size=23) * 3


def opened(name, model):
    info = ModelInfo(name, None, name, "float32", 3, 6, 6, 4)
    both = ARCHITECTURES[name].stack == "both"
    kinds = ("encoder", "decoder", "cross") if both else ("self",)
    return TransformersModel(info, model, None, kinds, None)


@pytest.fixture
def readers(monkeypatch):
    """What has read the texts of the test."""
    made, real = [], generation_torch.open_reader

    def noting(*given, **named):
        made.append(real(*given, **named))
        return made[-1]

    monkeypatch.setattr(generation_torch, "open_reader", noting)
    return made


@pytest.mark.parametrize(
    ("name", "most"), [*zip(CACHED, cycle((1, 2**24))), ("gpt2", 2**24), ("t5", 1)]
)
def test_torch_models_write_and_look_as_transformers_says(name, most, readers, monkeypatch):
    """Also if only the last token is observed, as in texts with more weights than ``most``.

    Every architecture once, in turn with either; one stack and two have both.
    """
    monkeypatch.setattr(generation_torch, "_OBSERVED", most)
    model, ids = small_model(name), inputs_of(name)["input_ids"]
    eager, state = small_model(name, "eager"), state_of(model)
    both = ARCHITECTURES[name].stack == "both"
    with torch.inference_mode():
        told = eager.generate(ids, do_sample=False, max_new_tokens=STEPS, use_cache=False)[0]
    begun = 1 if both else ids.shape[1]
    for kind in ("decoder", "cross") if both else ("self",):
        tokens = Tokens.bare(ids[0].tolist())
        steps = list(generate(opened(name, model), tokens, Sampling(tokens=STEPS), kind=kind))
        assert [step.id for step in steps] == told.tolist()[begun:]
        for step in steps[::2]:
            read = told[None, : step.query + 1]
            given = {"input_ids": ids, "decoder_input_ids": read} if both else {"input_ids": read}
            with torch.inference_mode():
                whole = eager(**given, output_attentions=True)
            logs = whole.logits[0, -1].double().log_softmax(-1)
            assert step.probability == pytest.approx(float(logs[step.id].exp()), abs=1e-5)
            assert step.entropy == pytest.approx(float(-(logs.exp() * logs).sum()), abs=1e-4)
            weights = whole[f"{kind}_attentions"] if both else whole.attentions
            for layer, each in zip(sorted(step.rows), weights, strict=True):
                np.testing.assert_allclose(step.rows[layer], each[0, :, -1].numpy(), atol=1e-5)
    assert state_of(model) == state
    assert all(reader._cached and reader._quietly for reader in readers)


@pytest.mark.parametrize("most", [2**24, 1])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_heads_that_are_removed_write_nothing(backend, most, checkpoint, monkeypatch):
    """The same as a model whose output projection reads nothing of them."""
    monkeypatch.setattr(generation_torch, "_OBSERVED", most)
    monkeypatch.setattr(growing, "_HELD", most)
    directory, (layer, head) = str(checkpoint("llama")), (1, 3)
    model = load(
        directory, LoadOptions(backend=backend, work=Work(9 if backend == "numpy" else None))
    )
    tokens = model.encode("the cat sat on the mat")
    steps = list(generate(model, tokens, Sampling(tokens=STEPS), removed=[(layer, head)]))
    changed = copy.deepcopy(load(directory, LoadOptions(backend="torch")).model)
    width = changed.config.head_dim
    with torch.inference_mode():
        projection = changed.model.layers[layer].self_attn.o_proj.weight
        projection[:, head * width : (head + 1) * width] = 0
        for step in steps:
            read = written(tokens, steps).ids[: step.query + 1]
            logits = changed(torch.tensor([read])).logits[0, -1]
            assert step.probability == pytest.approx(float(logits.softmax(-1)[step.id]), abs=1e-5)
            assert step.id == int(logits.argmax())


@pytest.mark.parametrize("most", [2**24, 1])
def test_a_cache_that_lies_is_not_believed(most, readers, monkeypatch):
    """A model that forgets its positions once it has a cache goes on with whole passes."""
    monkeypatch.setattr(generation_torch, "_OBSERVED", most)
    model, ids = small_model("llama"), inputs_of("llama")["input_ids"]
    plain = list(generate(opened("llama", model), Tokens.bare(ids[0].tolist()), Sampling(5)))
    real = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: real(
        x, position_ids if x.shape[1] > 1 else 0 * position_ids
    )
    found = list(generate(opened("llama", model), Tokens.bare(ids[0].tolist()), Sampling(5)))
    assert [step.id for step in found] == [step.id for step in plain]
    assert [reader._cached for reader in readers] == [True, False]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=1.7, top_k=5),
        Sampling(temperature=1.3, top_p=0.05),
        Sampling(temperature=2.0, top_k=7, top_p=0.6),
    ],
)
def test_tokens_are_drawn_from_the_distribution_of_transformers(sampling):
    """Every place between 0 and 1 that could be drawn, in steps of a ten-thousandth."""
    warped = TemperatureLogitsWarper(sampling.temperature)(None, torch.tensor(SCORES[None]))
    if sampling.top_k is not None:
        warped = TopKLogitsWarper(sampling.top_k)(None, warped)
    if sampling.top_p is not None:
        warped = TopPLogitsWarper(sampling.top_p)(None, warped)

    class Grid:
        def random(self):
            return next(places)

    places = iter((np.arange(10_000) + 0.5) / 10_000)
    drawn = [sampling.choose(SCORES, Grid()) for _ in range(10_000)]
    shares = np.bincount(drawn, minlength=len(SCORES)) / len(drawn)
    np.testing.assert_allclose(shares, warped[0].softmax(-1).numpy(), atol=3e-4)


def test_a_text_ends_at_its_end_token_at_the_context_or_when_told(checkpoint):
    random = load(str(checkpoint("gpt2")), LoadOptions(work=Work(9)))
    ends = set()
    for seed in range(9):
        sampling = Sampling(tokens=11, temperature=2.0, seed=seed)
        ids = [step.id for step in generate(random, random.encode("the cat"), sampling)]
        assert 2 not in ids[:-1]
        ends.add((ids[-1] == 2, len(ids) == 11))
    assert ends == {(True, False), (False, True)}
    model = load("tiny")
    tokens = model.encode("The cat sat.")
    full = model.encode("cat " * 2000, model.context - 2)
    assert len(list(generate(model, full, Sampling(tokens=9)))) == 2
    asked = iter([False, False, True])
    assert len(list(generate(model, tokens, Sampling(), cancelled=lambda: next(asked)))) == 2


@pytest.mark.parametrize(
    ("name", "text", "options", "error", "told"),
    [
        ("mha", "a b", {}, UnsupportedError, "'mha' does not tell the next token"),
        ("bert", "the cat", {}, UnsupportedError, "does not tell the next token"),
        ("tiny", "a", {"removed": [(6, 0)]}, UsageError, "no layer 6 with heads"),
        ("tiny", "a", {"kind": "cross"}, UsageError, "writes nothing: expected --kind self"),
        ("tiny", "a " * 1500, {}, UsageError, "ends at 1,024: there is no room to write"),
    ],
)
def test_what_cannot_be_written_is_refused_before_it_begins(
    name, text, options, error, told, checkpoint
):
    path = str(checkpoint(name)) if name == "bert" else name
    for tokens in (9, None) if name == "bert" else (9,):
        model = load(path, LoadOptions(work=Work(tokens)))
        with pytest.raises(error, match=told):
            generate(model, model.encode(text), Sampling(), **options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"seed": -1},
    ],
)
def test_sampling_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(UsageError, match=r"^expected a? ?--"):
        Sampling(**wrong)


@pytest.mark.parametrize("kind", ["diffllama", "reformer"])
def test_a_model_whose_heads_are_not_found_writes_too(kind):
    """What it predicts is its own, its weights are those that it reports."""
    model, ids = small_causal(kind), [3, 7, 11, 5, 7, 9, 30, 7]
    info = ModelInfo(kind, None, kind, "float32", 4, 4, 4, 8)
    opened_model = TransformersModel(info, model, None, ("self",), None)
    steps = list(generate(opened_model, Tokens.bare(ids), Sampling(tokens=3)))
    for step in steps:
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        assert step.id == int(logits.argmax())
        assert step.probability == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
        assert {row.shape[1] for row in step.rows.values()} == {len(ids)}
        ids.append(step.id)
    with pytest.raises(UnsupportedError, match="cannot be removed"):
        generate(opened_model, Tokens.bare(ids), Sampling(), removed=[(0, 0)])


def test_both_backends_read_the_ends_of_both_files(checkpoint, tmp_path):
    directory = shutil.copytree(checkpoint("llama"), tmp_path / "m")
    (directory / "generation_config.json").write_text('{"eos_token_id": [5, 99]}')
    for backend, tokens in (("numpy", 9), ("torch", None)):
        model = load(str(directory), LoadOptions(backend=backend, work=Work(tokens)))
        assert model.end_ids == {2, 5}  # there is no token 99
