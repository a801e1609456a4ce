"""Observing a model of transformers: the weights bit for bit, what is refused, how it is left."""

import threading
import warnings

import numpy as np
import pytest
import torch
from transformers import (
    DiffLlamaConfig,
    DiffLlamaModel,
    LongformerConfig,
    LongformerModel,
    LongT5Config,
    LongT5Model,
    MambaConfig,
    MambaModel,
    SwinConfig,
    SwinModel,
    T5EncoderModel,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from attnviz.engine import observe_torch
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import capture
from attnviz.engine.effects import Variant
from attnviz.engine.scan.run import open_scan
from attnviz.errors import AttnvizError, LoadError, UnsupportedError
from attnviz.models import attention_interface
from attnviz.models.prepare import prepared
from attnviz.models.third_party import third_party
from attnviz.records import Input, Tokens

from ..every_causal import WORDS, causal_kinds, small_causal
from .architectures import (
    ARCHITECTURES,
    eager_attentions,
    inputs_of,
    observe_transformers,
    small_model,
    state_of,
)
from .causal_oracle import loss_of, removed, reported, runs
from .conftest import Recorder

LOOK_UP = AttentionInterface.get_interface
LENGTH = 13
"""Beyond every window, chunk and top-k of these models, and beyond the texts they are tried on."""
IDS = torch.randint(4, WORDS, (1, LENGTH), generator=torch.Generator().manual_seed(3))
TOLERANCE = 1e-4
CRASHES = (RuntimeError, ValueError, LookupError, TypeError, AttributeError)
QUICK = ("deepseek_v32", "jamba", "llama4_text", "xlstm", "gptj")
"""Attention by an index, blocks without attention, chunks, a refusal, its own functions."""


class StopError(Exception):
    pass


class Raises:
    def wants(self, kind, layer):
        return True

    def observe(self, text, kind, layer, start, weights, beside):
        raise StopError


@pytest.mark.parametrize("name", ["gpt2", "t5", "falcon", "xglm"])
def test_a_raising_observer_leaves_the_model_as_it_was(name):
    model, inputs = small_model(name), inputs_of(name)
    model.train()
    next(model.children()).eval()
    before = state_of(model)
    assert {module.training for module in model.modules()} == {True, False}
    with pytest.raises(StopError):
        observe_transformers(model, Raises(), **inputs)
    assert state_of(model) == before
    assert attention_interface._answer.get() is None
    assert AttentionInterface.get_interface is LOOK_UP


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo"])
def test_a_model_in_training_is_observed_without_dropout(name):
    model, inputs = small_model(name), inputs_of(name)
    model.train()
    observer = Recorder()
    observe_transformers(model, observer, **inputs)
    assert all(module.training for module in model.modules())
    for place, weights in eager_attentions(name, **inputs).items():
        assert torch.equal(observer.seen[place], weights)


def test_two_threads_at_once_do_not_mix():
    expected = {name: eager_attentions(name, **inputs_of(name)) for name in ("gpt2", "t5")}
    together = threading.Barrier(2, timeout=20)
    wrong = []

    class Meets:
        def __init__(self, name):
            self.name, self.calls = name, 0

        def wants(self, kind, layer):
            return True

        def observe(self, text, kind, layer, start, weights, beside):
            if self.calls < 3:  # so many layers both have: neither thread runs ahead
                together.wait()
            self.calls += 1
            if not torch.equal(weights, expected[self.name][kind, layer][text]):
                wrong.append((self.name, kind, layer))

    def run(model, name):
        observe_transformers(model, Meets(name), **inputs_of(name))

    threads = [threading.Thread(target=run, args=(small_model(name), name)) for name in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_two_threads_that_share_a_model_take_turns():
    model, inputs = small_model("gpt2"), inputs_of("gpt2")
    model.train()
    observers = [Recorder() for _ in range(4)]
    threads = [
        threading.Thread(target=observe_transformers, args=(model, observer, inputs["input_ids"]))
        for observer in observers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert model.config._attn_implementation == "sdpa"
    assert all(module.training for module in model.modules())
    for place, weights in eager_attentions("gpt2", **inputs).items():
        assert all(torch.equal(observer.seen[place], weights) for observer in observers)


@pytest.mark.parametrize(
    "name", ["gpt2", "mistral", "stablelm", "bert", "modernbert", "t5", "bart", "qwen3_next"]
)
def test_unwanted_layers_of_a_long_text_run_fused(name, monkeypatch):
    monkeypatch.setattr(observe_torch, "_EXACT_CELLS", 0)
    fused = []
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def counted(module, *args, **kwargs):
        fused.append(module)
        return original(module, *args, **kwargs)

    inputs = inputs_of(name)
    expected = eager_attentions(name, **inputs)
    wanted = list(expected)[-1]
    model, observer = small_model(name), Recorder({wanted})
    observe_transformers(model, Recorder(), **inputs)  # so that no plain pass comes with it
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", counted)
    observe_transformers(model, observer, **inputs)
    assert len(fused) == len(expected) - 1
    assert observer.seen.keys() == {wanted}
    # The causal and window masks must have reached the fused layers: their error is rounding.
    torch.testing.assert_close(observer.seen[wanted], expected[wanted], rtol=0, atol=1e-5)


def test_neither_vocabulary_nor_unwanted_decoder_runs():
    model, inputs = small_model("t5"), inputs_of("t5")
    ran = []
    model.decoder.register_forward_hook(lambda *call: ran.append("decoder"))
    model.lm_head.register_forward_hook(lambda *call: ran.append(tuple(call[-1].shape)))
    observe_transformers(model, Recorder({("encoder", 1)}), inputs["input_ids"])
    assert ran == []
    # T5's trunk does not run by itself: its projection gets a single token.
    observe_transformers(model, Recorder({("cross", 1)}), **inputs)
    assert ran == ["decoder", (1, 1, 97)] * 2  # once more plainly, for the first text so long
    ran.clear()
    observe_transformers(model, Recorder({("cross", 1)}), **inputs)
    assert ran == ["decoder", (1, 1, 97)]
    assert not model.lm_head._forward_pre_hooks


def test_attention_past_the_interface_is_noticed_and_observed_by_report(monkeypatch):
    name = "gpt_neo"
    monkeypatch.setattr("attnviz.engine.observe_torch.uses_interface", lambda model: True)
    observer, inputs = Recorder(), inputs_of(name)
    observe_transformers(small_model(name), observer, **inputs)
    for place, weights in eager_attentions(name, **inputs).items():
        assert torch.equal(observer.seen[place], weights)


def test_a_layer_that_calls_twice_is_observed_by_report():
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 37, "num_attention_heads": 2}
    config = DiffLlamaConfig(vocab_size=97, num_hidden_layers=3, num_key_value_heads=2, **sizes)
    model, ids = DiffLlamaModel(config).eval(), torch.arange(3, 14)[None]
    observer = Recorder()
    observe_transformers(model, observer, ids)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = model(ids, output_attentions=True).attentions
    assert list(observer.seen) == [("self", 0), ("self", 1), ("self", 2)]
    assert all(map(torch.equal, observer.seen.values(), expected))


def test_a_decoder_is_observed_where_its_encoder_cannot_be():
    torch.manual_seed(0)
    sizes = {"d_model": 23, "d_kv": 5, "d_ff": 37, "num_layers": 2, "num_heads": 3}
    model = LongT5Model(LongT5Config(vocab_size=97, decoder_start_token_id=0, **sizes))
    inputs, observer = inputs_of("t5"), Recorder({("cross", 0), ("cross", 1)})
    observe_transformers(model, observer, **inputs)
    assert {weights.shape for weights in observer.seen.values()} == {(1, 3, 7, 11)}
    for wanted in (None, {("encoder", 0)}):
        with pytest.raises(UnsupportedError, match="LongT5Model does not weigh every token"):
            observe_transformers(model, Recorder(wanted), **inputs)


def test_an_encoder_opened_alone_has_one_stack():
    model, observer = T5EncoderModel(small_model("t5").config), Recorder()
    observe_transformers(model, observer, inputs_of("t5")["input_ids"])
    assert list(observer.seen) == [("self", 0), ("self", 1)]


def mamba():
    return MambaModel(MambaConfig(vocab_size=97, hidden_size=8, state_size=3, num_hidden_layers=2))


def longformer():
    sizes = {"hidden_size": 21, "intermediate_size": 37, "num_attention_heads": 3}
    config = LongformerConfig(
        vocab_size=97, num_hidden_layers=2, attention_window=[4, 4], pad_token_id=0, **sizes
    )
    return LongformerModel(config)


def swin():
    sizes = {"embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 2}
    return SwinModel(SwinConfig(image_size=8, patch_size=2, **sizes))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (mamba, "MambaModel computes no attention weights"),
        (longformer, "LongformerModel does not weigh every token against every token"),
        (swin, "SwinModel reads pixel_values, not text"),
    ],
)
def test_what_has_no_matrix_over_tokens_is_refused_in_one_line(build, sentence):
    model = build()
    with pytest.raises(UnsupportedError, match=sentence) as refusal:
        observe_transformers(model, Recorder(), torch.arange(3, 14)[None])
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 5


@torch.inference_mode()
def logits(model, inputs):
    return model(**inputs).logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_kind_and_layer_is_equal_and_the_model_is_as_before(name, monkeypatch):
    if ARCHITECTURES[name].registered:
        monkeypatch.delattr("attnviz.engine.observe_torch._observe_reported")
    model, inputs = small_model(name), inputs_of(name)
    before, state = logits(model, inputs), state_of(model)
    observer = Recorder()
    observe_transformers(model, observer, **inputs)
    expected = eager_attentions(name, **inputs)
    assert observer.seen.keys() == expected.keys()
    for place, weights in expected.items():
        assert torch.equal(observer.seen[place], weights), place
    assert state_of(model) == state
    assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize(
    "name", [name for name, kind in ARCHITECTURES.items() if kind.stack == "both"]
)
def test_texts_of_equal_length_do_not_confuse_self_and_cross(name):
    for length in (1, 5):
        model, inputs = small_model(name), inputs_of(name, source=length, target=length)
        observer = Recorder()
        observe_transformers(model, observer, **inputs)
        expected = eager_attentions(name, **inputs)
        assert observer.seen.keys() == expected.keys()
        assert all(torch.equal(observer.seen[place], expected[place]) for place in expected)


TOKENS = Tokens(
    tuple(IDS[0].tolist()), tuple(f"w{word}" for word in IDS[0].tolist()), (False,) * LENGTH
)

SEEN = {
    *QUICK,
    "minimax_m3_vl_text",
    "kimi_linear",
    "hrm_text",
    "glm_moe_dsa",
    "hy_v4",
    "axk2",
    "qwen3_next",
    "gemma2",
    "gpt_oss",
}
SEEN |= {*causal_kinds()[::2]}
"""What the long run measures: these, and every second of all classes."""


class Rows:
    """Gathers the weights (head, query, key) of each layer from blocks of rows."""

    norms = False

    def __init__(self):
        self.layers = {}

    def wants(self, kind, layer):
        return True

    def observe(self, text, kind, layer, start, weights, beside):
        heads, rows, keys = weights.shape
        whole = self.layers.setdefault(layer, np.zeros((heads, LENGTH, LENGTH)))
        whole[:, start : start + rows, :keys] = weights


def outcome(kind, monkeypatch):
    """``right``, what is refused, or what the library itself cannot make; else an assertion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with third_party("cannot be made"):
                plain, eager = small_causal(kind), small_causal(kind, "eager")
                runs(plain, IDS)
        except LoadError as error:
            return str(error)
        refusals = []
        for check in (heads, patterns, ablate):
            try:
                opened = prepared(kind, plain, None, torch.device("cpu"), seed=0)
                check(opened, eager, monkeypatch)
            except UnsupportedError as error:
                refusals.append(f"{check.__name__} refused: {error}")
    assert not any("\n" in refusal for refusal in refusals)
    return "; ".join(refusals) or "right"


def heads(opened, eager, monkeypatch):
    layers = capture(opened, TOKENS, kind="self").layers
    expected = reported(eager, IDS)
    if len(expected) == opened.info.layers:  # linear attention reports as well
        expected = [expected[layer.layer] for layer in layers]
    assert len(expected) in (0, len(layers))
    for layer, weights in zip(layers, expected, strict=False):
        assert np.array_equal(layer.weights, weights.float().numpy()), layer.layer


def patterns(opened, eager, monkeypatch):
    layers = capture(opened, TOKENS, kind="self").layers
    for long in (10**6, 2):  # whole matrices, then in blocks where that is possible
        monkeypatch.setattr(observe_torch, "LONG", long)
        rows = Rows()
        backend_of(opened).observe(rows, [Input(TOKENS)])
        for layer in layers:
            apart = abs(rows.layers[layer.layer] - layer.weights).max()
            assert apart <= TOLERANCE, (long, layer.layer, apart)


def ablate(opened, eager, monkeypatch):
    scan = open_scan(opened, [Input(TOKENS)])
    points = scan._runner.model.hook_points.calls
    chosen = sorted({0, len(points) // 2, len(points) - 1})
    variants = [Variant(((points[at].layer, points[at].heads - 1),)) for at in chosen]
    clean = loss_of(eager, IDS)
    for piece in scan.scan(0, variants, range(len(variants))):
        assert piece.baseline["loss"] == pytest.approx(clean, abs=TOLERANCE)
        for place, index in enumerate(piece.variants):
            point = points[chosen[index]]
            with removed(eager, chosen[index], len(points), point.heads - 1, point.heads):
                expected = loss_of(eager, IDS) - clean
            found = piece.metrics["loss_delta"][place]
            assert found == pytest.approx(expected, abs=TOLERANCE), variants[index]


@pytest.mark.parametrize("kind", QUICK)
def test_what_is_shown_is_the_models_own(kind, monkeypatch):
    refused = {"xlstm": "heads refused: xLSTMForCausalLM computes no attention weights"}
    assert outcome(kind, monkeypatch).startswith(refused.get(kind, "right"))


@pytest.mark.long
def test_every_second_causal_class_is_right_or_refused(monkeypatch):
    found, wrong = {}, {}
    for kind in sorted(SEEN):
        try:
            found[kind] = outcome(kind, monkeypatch)
        except (*CRASHES, AttnvizError, AssertionError) as error:  # one run tells all
            wrong[kind] = f"{type(error).__name__} {' '.join(str(error).split())[:200]}"
    assert wrong == {}
    assert sum(said == "right" or "refused:" in said for said in found.values()) >= 70
