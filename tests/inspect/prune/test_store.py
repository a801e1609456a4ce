"""Pruned checkpoints, opened by plain transformers and held against hooks on the whole model."""

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from attnviz.errors import UnsupportedError
from attnviz.inspect.prune.store import PruneStore, keep_pooling
from attnviz.models.cut_tensors import OutputProjection
from attnviz.models.prepare import prepared

from ...small_models import SPECIAL, bert_fields, deepseek_fields, gpt_fields, llama_fields

_IDS = torch.tensor([[3, 11, 7, 2, 5, 7, 11]])
_LLAMA = llama_fields(24, 37, 31, (6, 2, 4))
_EVEN = _LLAMA | {"num_key_value_heads": 6}
_O_PROJ = "model.layers.{}.self_attn.o_proj"
_GROUP = {0: {0, 1, 2}, 1: {3, 4, 5}}
_ONE = {0: {5}, 1: {0}}

# name: config, output projection, removed heads, and what is to be left
_CASES = {
    "llama": (_LLAMA, _O_PROJ, _GROUP, ("cut", 3, 1)),
    "qwen2": (_LLAMA, _O_PROJ, _GROUP, ("cut", 3, 1)),  # biases
    "qwen3": (_EVEN, _O_PROJ, _ONE, ("cut", 5, 5)),  # a norm over each head
    "gemma2": (_LLAMA, _O_PROJ, {0: {0, 3}, 1: {2, 5}}, ("cut", 4, 2)),
    "phi3": (_LLAMA | {"pad_token_id": 0}, _O_PROJ, _GROUP, ("cut", 3, 1)),  # one qkv tensor
    "deepseek_v3": (deepseek_fields(layers=2), _O_PROJ, {0: {1}, 1: {2}}, ("cut", 2, 2)),
    # a norm over all heads together: fewer of them are another model
    "olmo2": (_EVEN, _O_PROJ, _ONE, ("masked", 6, 6)),
    "gpt2": (
        gpt_fields(24, 31),
        "transformer.h.{}.attn.c_proj",
        {0: {1}, 1: {2}},
        ("masked", 3, 3),
    ),
    "bert": (
        bert_fields(21, 37, 31),
        "bert.encoder.layer.{}.attention.output.dense",
        {0: {1}, 1: {2}},
        ("masked", 3, 3),
    ),
}


def _model(name, fields):
    config = AutoConfig.for_model(name, vocab_size=17, **SPECIAL | dict(fields))
    torch.manual_seed(0)
    auto = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return prepared(name, model, None, torch.device("cpu"))


def _masked(model, module, removed):
    """Logits with the heads' columns emptied at the input of the named output projections."""
    hooks = []
    for layer, heads in removed.items():

        def empty(module, args, heads=heads):
            outputs = args[0].clone()
            width = outputs.shape[-1] // model.info.heads
            for head in heads:
                outputs[..., head * width : (head + 1) * width] = 0
            return (outputs, *args[1:])

        named = model.model.get_submodule(module.format(layer))
        hooks.append(named.register_forward_pre_hook(empty))
    try:
        with torch.inference_mode():
            return model.model(_IDS).logits
    finally:
        for hook in hooks:
            hook.remove()


def _against(expected):
    def difference(model):
        with torch.inference_mode():
            return float((model(_IDS).logits - expected).abs().max()), 1e-5

    return difference


def _stored_numbers(directory):
    """Numbers in the file; what is tied is stored once."""
    with safe_open(directory / "model.safetensors", framework="numpy") as file:
        return sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118 (no mapping)


@pytest.mark.parametrize("name", _CASES)
def test_a_pruned_checkpoint_is_the_masked_model(name, tmp_path):
    fields, module, removed, (form, heads, kv_heads) = _CASES[name]
    model = _model(name, fields)
    before = {key: tensor.clone() for key, tensor in model.model.state_dict().items()}
    expected = _masked(model, module, removed)
    directory, store = tmp_path / "pruned", PruneStore(model, None, ())
    pruned = store.write(removed, directory, _against(expected))
    assert (pruned.form, pruned.heads, pruned.kv_heads) == (form, heads, kv_heads)

    opened = type(model.model).from_pretrained(directory).eval()
    with torch.inference_mode():
        found = opened(_IDS).logits
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert (found - model.model(_IDS).logits).abs().max() > 1e-3
    numbers = sum(parameter.numel() for parameter in opened.parameters())
    whole = sum(parameter.numel() for parameter in model.model.parameters())
    named = dict(opened.named_parameters(remove_duplicate=False))
    buffers = [each for name, each in opened.state_dict().items() if name not in named]
    beside = sum(each.numel() for each in buffers)  # such as a router's bias
    assert pruned.parameters == numbers == _stored_numbers(directory) - beside
    assert (numbers < whole) == (form == "cut")
    listed = json.loads((directory / "heads.json").read_text())
    assert listed["removed"] == {str(layer): sorted(gone) for layer, gone in removed.items()}
    assert (listed["form"], listed["parameters"]) == (form, numbers)
    assert pruned.shrinks == (form == "cut")
    modes = {entry.stat().st_mode for entry in directory.iterdir()}
    assert len(modes) == 1
    # the model in memory is as it was
    assert all(torch.equal(before[key], found) for key, found in model.model.state_dict().items())


def _bundled_like():
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = _model("llama", _LLAMA | sizes | {"head_dim": 8, "tie_word_embeddings": True})
    return model, PruneStore(model, None, ())


def test_a_width_that_llama_refuses_is_stored_as_a_relative(tmp_path):
    model, store = _bundled_like()
    removed = {0: {1}, 1: {0, 2}}
    expected = _masked(model, _O_PROJ, removed)
    planned = store.plan(removed)
    pruned = store.write(removed, tmp_path / "new", _against(expected))
    assert (pruned.heads, pruned.architecture) == (3, "MistralForCausalLM")
    assert planned.parameters == pruned.parameters
    assert planned.path is None
    assert pruned.zeroed == planned.zeroed == ((1, 0),)
    # 2 layers × (4 − 3) heads × 4 projections × 8 wide × 32
    whole = sum(parameter.numel() for parameter in model.model.parameters())
    assert whole - pruned.parameters == 2 * 4 * 8 * 32
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    with torch.inference_mode():
        assert torch.allclose(opened(_IDS).logits, expected, rtol=0, atol=1e-5)
    assert _stored_numbers(tmp_path / "new") == pruned.parameters  # the embedding is tied


def test_what_is_stored_narrower_is_still_tied(tmp_path):
    model, store = _bundled_like()
    removed = {0: {1, 2}, 1: {0, 2}}
    expected = _masked(model, _O_PROJ, removed)

    def loose(candidate):
        return _against(expected)(candidate)[0], 0.1

    store.dtype = torch.float16
    pruned = store.write(removed, tmp_path / "new", loose)
    assert pruned.architecture == "LlamaForCausalLM"
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert opened.dtype == torch.float16
    assert _stored_numbers(tmp_path / "new") == pruned.parameters


def test_layers_that_cannot_spare_a_head_are_masked_and_it_is_said(tmp_path):
    model, store = _bundled_like()
    removed = {0: {1}, 1: set()}
    expected = _masked(model, _O_PROJ, removed)
    pruned = store.write(removed, tmp_path / "new", _against(expected))
    assert (pruned.form, pruned.zeroed) == ("masked", ((0, 1),))
    assert "1 of 2 layers keeps all 4" in pruned.note
    assert pruned.shrinks
    assert pruned.parameters == sum(p.numel() for p in model.model.parameters())


def test_outputs_that_cannot_be_met_leave_nothing_behind(tmp_path):
    _, store = _bundled_like()

    def never(candidate):
        return float("nan"), 1e-5

    with pytest.raises(UnsupportedError, match="nothing was written"):
        store.write({0: {1}, 1: {1}}, tmp_path / "new", never)
    assert list(tmp_path.iterdir()) == []


def test_layers_that_share_a_projection_lose_the_same_heads(tmp_path):
    _, store = _bundled_like()
    store.projections = dict.fromkeys((0, 1), OutputProjection(_O_PROJ.format(0), 1))
    with pytest.raises(UnsupportedError, match="share one output projection"):
        store.write({0: {1}, 1: {2}}, tmp_path / "new", _against(torch.zeros(1)))
    assert list(tmp_path.iterdir()) == []


def test_pooling_of_sentence_transformers_is_kept(tmp_path):
    root, new = tmp_path / "old", tmp_path / "new"
    for path in (root / "0_Transformer", root / "1_Pooling", new):
        path.mkdir(parents=True)
    modules = [{"path": "0_Transformer"}, {"path": "1_Pooling"}]
    (root / "modules.json").write_text(json.dumps(modules))
    (root / "1_Pooling" / "config.json").write_text("{}")
    (root / "0_Transformer" / "sentence_bert_config.json").write_text("{}")
    keep_pooling(new, root / "0_Transformer")
    kept = {str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()}
    assert kept == {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"}
    assert json.loads((new / "modules.json").read_text()) == [{"path": ""}, {"path": "1_Pooling"}]
