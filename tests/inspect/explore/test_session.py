"""Frames, removals and effects, held against hooks on torch and against ``ablate``."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnviz.engine.capture import Choice
from attnviz.engine.effects import Variant
from attnviz.engine.generation import Sampling
from attnviz.engine.scan.run import inputs_of, open_scan
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.explore import session
from attnviz.inspect.explore.session import LiveSession, open_session
from attnviz.models.bundled import Bundled
from attnviz.models.resolve import LoadOptions

from ...small_models import SPECIAL, WORDS, bert_fields, gpt_fields, t5_fields, word_tokenizer

TEXT = "When Mary and John went out, John gave Mary a book."


def nothing(share):
    pass


@pytest.fixture(scope="module")
def tiny():
    return LiveSession(Bundled(), text=TEXT)


def test_maps_that_are_too_large_are_refused_before_a_run(tiny, monkeypatch):
    """The limit is between the bytes of 24 maps over a text and those of a text a word longer."""
    count = len(tiny.model.encode(TEXT))
    monkeypatch.setattr(session, "_LARGEST", 4 * 24 * count**2)
    assert tiny.frame(TEXT).report.record.layers
    for run in (tiny.frame, lambda text: tiny.effects(text, nothing)):
        with pytest.raises(UsageError, match=f"over {count + 1} tokens .* are held: .*--queries"):
            run(f"{TEXT} John")


# Other models --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Directories of a decoder, an encoder and an encoder–decoder with random weights."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    place, words = tmp_path_factory.mktemp("models"), len(WORDS)
    torch.manual_seed(5)
    t5 = {**t5_fields(12, 5, 17), **SPECIAL, "bos_token_id": None}
    made = {
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=words, **gpt_fields(12, 31), **SPECIAL)),
        "bert": BertForMaskedLM(BertConfig(vocab_size=words, **bert_fields(12, 17, 31))),
        "t5": T5ForConditionalGeneration(T5Config(vocab_size=words, **t5)),
    }
    for name, model in made.items():
        with torch.no_grad():  # peaked enough for heads to matter
            for weight in model.parameters():
                weight.mul_(1 if name == "t5" else 4)
        model.save_pretrained(place / name)
        word_tokenizer().save_pretrained(place / name)
    return place


def without(model, kind, removed):
    """Rows or columns of W_O set to zero, where they read a removed head."""
    for layer, head in removed:
        if kind == "gpt2":
            weight = model.transformer.h[layer].attn.c_proj.weight.T
        elif kind == "bert":
            weight = model.bert.encoder.layer[layer].attention.output.dense.weight
        else:
            stack = model.encoder if kind == "encoder" else model.decoder
            weight = stack.block[layer].layer[kind == "cross"]
            weight = (weight.EncDecAttention if kind == "cross" else weight.SelfAttention).o.weight
        dim = weight.shape[1] // 3
        weight[:, head * dim : (head + 1) * dim] = 0


def by_hand_norms(model, ids, removed):
    """‖v_j W_O^h‖ of a GPT-2, (layer, head, key), by its own modules alone."""
    fresh, found = copy.deepcopy(model), []
    with torch.no_grad():
        norms = [block.attn.c_proj.weight.clone() for block in fresh.transformer.h]
        without(fresh, "gpt2", removed)
        hidden = fresh.transformer(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for block, read, output in zip(fresh.transformer.h, hidden, norms, strict=False):
            value = block.attn.c_attn(block.ln_1(read))[0].chunk(3, -1)[2]
            dim = value.shape[1] // 3
            parts = [slice(head * dim, (head + 1) * dim) for head in range(3)]
            found.append([(value[:, part] @ output[part]).norm(dim=-1).numpy() for part in parts])
    return found


CASES = {
    "gpt2 in NumPy": ("gpt2", "gpt2", {}, None),
    "gpt2 on torch": ("gpt2", "gpt2", {"backend": "torch"}, None),
    "bert in NumPy": ("bert", "bert", {}, None),
    "bert on torch": ("bert", "bert", {"backend": "torch"}, None),
    "encoder": ("t5", "encoder", {}, "encoder"),
    "decoder": ("t5", "decoder", {}, "decoder"),
    "cross": ("t5", "cross", {}, "cross"),
}


@pytest.mark.parametrize(
    ("case", "removed"), [*((case, {(0, 1), (1, 0)}) for case in CASES), ("gpt2 in NumPy", set())]
)
def test_frames_and_effects_of_checkpoints(checkpoints, case, removed):
    from transformers import BertForMaskedLM, GPT2LMHeadModel, T5ForConditionalGeneration

    name, kind, options, chosen = CASES[case]
    classes = {"gpt2": GPT2LMHeadModel, "bert": BertForMaskedLM, "t5": T5ForConditionalGeneration}
    target = "the cat sat on" if chosen in ("decoder", "cross") else None
    text = "the tired cat sat on the mat"
    choice = Choice(kind=chosen, target=target)
    options = LoadOptions(offline=True, **options)
    session = open_session(str(checkpoints / name), options, choice, text)
    frame = session.frame(text, frozenset(removed))
    record = frame.report.record
    model = classes[name].from_pretrained(checkpoints / name, attn_implementation="eager").eval()

    def oracle(removed):
        inputs = {"input_ids": torch.tensor([session.model.encode(text).ids])}
        ids = inputs["input_ids"]
        if name == "t5":
            ids = torch.tensor([session.model.encode_target(target or text).ids])
            inputs["decoder_input_ids"] = ids
        fresh = copy.deepcopy(model)
        with torch.no_grad():
            without(fresh, kind, removed)
            found = fresh(**inputs, output_attentions=True)
        field = "attentions" if name != "t5" else f"{kind}_attentions"
        losses = torch.nn.functional.cross_entropy(found.logits[0, :-1].double(), ids[0, 1:])
        return getattr(found, field), found.logits[0, -1].softmax(-1), float(losses)

    weights, chances, loss = oracle(removed)
    for layer, head, found in record:
        np.testing.assert_allclose(found, weights[layer][0, head], atol=3e-6)
    if kind in ("bert", "encoder"):
        assert (frame.loss, frame.likely) == (None, ())
    else:
        assert frame.loss == pytest.approx(loss, abs=1e-5)
        chosen = [token.probability for token in frame.likely]
        assert chosen == sorted(chosen, reverse=True)
        assert sum(chosen) <= 1 + 1e-6
        if name == "gpt2":
            values = by_hand_norms(model, record.queries.ids, removed)
            np.testing.assert_allclose([frame.norms[0], frame.norms[1]], values, atol=1e-4)
        best = int(chances.argmax())
        assert (frame.likely[0].id, frame.likely[0].probability) == (
            best,
            pytest.approx(float(chances[best]), abs=1e-5),
        )
    if name == "gpt2":
        (step,) = session.generation(text, Sampling(tokens=1), frozenset(removed))
        assert step.id == frame.likely[0].id
        np.testing.assert_allclose(step.rows[1][2], frame.weights((1, 2))[-1], atol=1e-5)
    else:
        with pytest.raises(UnsupportedError):
            list(session.generation(text, Sampling(), frozenset(removed)))
    effects = session.effects(text, nothing)
    assert set(effects.values) == {(layer, head) for layer in range(2) for head in range(3)}
    if effects.metric == "loss_delta":
        for head, found in effects.values.items():
            expected = oracle({head})[2] - oracle(())[2]
            assert found == pytest.approx(expected, abs=1e-5)
    else:
        assert kind in ("bert", "encoder")
        (piece,) = open_scan(
            open_session(str(checkpoints / name), replace(options, backend="torch")).model,
            inputs_of([session.model.encode(text)]),
        ).scan(0, [Variant((head,)) for head in effects.values], range(6))
        expected = piece.metrics["output_mse"][np.argsort(piece.variants)]
        np.testing.assert_allclose(list(effects.values.values()), expected, rtol=1e-3, atol=1e-6)


# What is seen of a frame ---------------------------------------------------------------------


def test_one_token_and_as_many_as_there_are(tiny):
    one = tiny.frame("")
    assert (len(one.report.record.queries), one.loss, len(one.likely)) == (1, None, 10)
    np.testing.assert_array_equal(one.weights((0, 0)), [[1]])
    with pytest.raises(UsageError, match="1 token"):
        tiny.effects("", nothing)
    full = tiny.frame(" cat" * (tiny.model.context - 1))
    assert full.weights((5, 3)).shape == (tiny.model.context, tiny.model.context)
    with pytest.raises(UsageError, match="at most"):
        tiny.frame(" cat" * tiny.model.context)


@pytest.mark.parametrize("head", [(6, 0), (0, 4), (-1, 0)])
def test_heads_that_are_not_there(tiny, head):
    with pytest.raises(UsageError, match=r"no (head|layer)"):
        tiny.frame(TEXT, frozenset({head}))
    with pytest.raises(UsageError, match=r"no (head|layer)"):
        tiny.generation(TEXT, Sampling(), frozenset({head}))


def test_a_scan_ends_where_it_is_cancelled_and_runs_in_a_thread(tiny):
    class CancelledError(Exception):
        pass

    shares = []

    def advance(share):
        shares.append(share)
        if share > 0.3:
            raise CancelledError

    with ThreadPoolExecutor(2) as pool:
        scan, frame = pool.submit(tiny.effects, TEXT, advance), pool.submit(tiny.frame, TEXT)
        with pytest.raises(CancelledError):
            scan.result()
        assert frame.result().loss == tiny.frame(TEXT).loss
    assert max(shares) < 0.6


def test_a_torch_model_may_be_asked_by_several_threads(checkpoints):
    options = LoadOptions(offline=True, backend="torch")
    session, text = open_session(str(checkpoints / "gpt2"), options), "the cat sat on the mat"
    removed = [frozenset({(layer, head)}) for layer in range(2) for head in range(3)]
    losses = [session.frame(text, heads).loss for heads in removed]
    values = session.effects(text, nothing).values
    ids = [step.id for step in session.generation(text, Sampling(tokens=6))]
    with ThreadPoolExecutor(4) as pool:
        scans = [pool.submit(session.effects, text, nothing) for _ in range(2)]
        writes = pool.submit(lambda: list(session.generation(text, Sampling(tokens=6))))
        frames = [pool.submit(session.frame, text, heads) for heads in removed * 3]
        assert [frame.result().loss for frame in frames] == losses * 3
        assert all(scan.result().values == values for scan in scans)
        assert [step.id for step in writes.result()] == ids
