"""What is observed is the model's own forward pass, or the run ends with exit 5 and a sentence."""

import threading

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnviz.engine.attention_calls import AttentionCall
from attnviz.engine.effects import Variant

from ..conftest import save_tokenizer
from ..engine.architectures import observe_transformers
from ..engine.causal_oracle import loss_of, removed
from ..engine.scans import torch_scan
from ..every_causal import small_causal

TEXT = "the cat sat on the mat because the cat sat on the mat"


@pytest.fixture
def saved(tmp_path):
    """The directory of a small random model of a type."""

    def make(kind):
        directory = tmp_path / kind
        small_causal(kind).save_pretrained(directory)
        save_tokenizer(directory)
        return str(directory)

    return make


@pytest.mark.parametrize("command", ["heads", "ablate", "patterns"])
def test_experts_run_in_float64(command, saved, run):
    assert run(command, TEXT, "--model", saved("mixtral"), "--dtype", "float64").code == 0


def scaled(way):
    right = getattr(AttentionCall, way)

    def wrong(call):
        output, weights = right(call)
        return output * 1.001, weights

    return wrong


@pytest.mark.parametrize(
    ("way", "command"),
    [
        ("eager", ["heads", TEXT]),
        ("eager", ["patterns", TEXT]),
        ("own", ["ablate", TEXT]),
        ("own", ["prune", TEXT, "--fraction", ".3"]),
    ],
)
def test_a_pass_that_is_not_the_models_own_is_refused(way, command, llama, refused, monkeypatch):
    monkeypatch.setattr(AttentionCall, way, scaled(way))
    line = refused(5, *command, "--backend", "torch", "--model", str(llama()))
    assert "LlamaForCausalLM computes something else while it is observed" in line
    assert "choose another model" in line


def test_the_plain_pass_runs_once_for_a_length_class():
    model, passes = small_causal("llama"), []
    model.model.register_forward_hook(lambda *call: passes.append(1))

    class Nothing:
        def wants(self, kind, layer):
            return True

        def observe(self, text, kind, layer, start, weights, beside):
            return

    for length, expected in ((9, 2), (9, 1), (16, 1), (5, 2), (17, 2), (32, 1)):
        passes.clear()
        observe_transformers(model, Nothing(), torch.arange(3, 3 + length)[None])
        assert len(passes) == expected, length


def test_another_thread_looks_up_what_it_always_did():
    model, met = small_causal("llama"), []

    def look_up():
        met.append(ALL_ATTENTION_FUNCTIONS.get_interface("eager", "its own"))
        met.append(ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", "its own"))

    class Meets:
        def wants(self, kind, layer):
            return layer == 0

        def observe(self, text, kind, layer, start, weights, beside):
            thread = threading.Thread(target=look_up)
            thread.start()
            thread.join()

    observe_transformers(model, Meets(), torch.arange(3, 12)[None])
    assert met == ["its own", ALL_ATTENTION_FUNCTIONS["sdpa"]]


def test_a_soft_cap_holds_where_the_logits_are_small():
    sizes = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3, "head_dim": 8}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3}
    config = Gemma2Config(vocab_size=97, final_logit_softcapping=30.0, **sizes, **heads)
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.model.embed_tokens.weight.mul_(3)
    ids = torch.randint(4, 97, (1, 13), generator=torch.Generator().manual_seed(3))
    assert 0.5 < model(ids).logits.abs().max() < 1.5
    scan = torch_scan(model, [ids[0].tolist()])
    (piece,) = scan.scan(0, [Variant(((1, 2),))], [0])
    clean = loss_of(model, ids)
    with removed(model, 1, 3, 2, 3):
        expected = loss_of(model, ids) - clean
    assert piece.baseline["loss"] == pytest.approx(clean, abs=2e-6)
    assert piece.metrics["loss_delta"][0] == pytest.approx(expected, abs=2e-6)
