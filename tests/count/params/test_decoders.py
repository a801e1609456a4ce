"""Specs from configs: what is assumed, what is refused, and what is left to the library."""

from pathlib import Path

import pytest
import yaml

from attnviz.count.params.find_spec import find_spec, misspelt_field, spec_from_config
from attnviz.count.params.meta_count import count_on_meta
from attnviz.count.params.specs import with_kv_heads
from attnviz.errors import LoadError, UsageError

from .small_configs import DECODER

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}


def test_a_config_without_a_class_is_counted_with_its_usual_one():
    causal = spec_from_config({"model_type": "llama"})
    assert causal.architecture == "LlamaForCausalLM"
    assert causal.notes == ("the config names no class; counted as LlamaForCausalLM",)
    encoder = spec_from_config({"model_type": "bert"})
    assert encoder.architecture == "BertModel"


@pytest.mark.parametrize("config", MISTAKES["unclaimed"])
def test_what_the_arithmetic_does_not_claim(config):
    assert spec_from_config(config) is None


@pytest.mark.parametrize(("fields", "says"), MISTAKES["numbers"])
def test_numbers_that_do_not_fit(fields, says):
    with pytest.raises(LoadError) as caught:
        spec_from_config({**GPT2, **fields}, name="x")
    assert says in str(caught.value)


def test_groups_and_lists_that_do_not_fit():
    fields = {"num_attention_heads": 6, "num_key_value_heads": 4, "hidden_size": 12}
    with pytest.raises(LoadError, match="4 key/value heads, which do not divide its 6 heads"):
        spec_from_config({"model_type": "llama", **fields}, name="x")
    with pytest.raises(LoadError, match=r"layer_types = \['full_attention'\]: expected a list of"):
        spec_from_config({"model_type": "gemma2", "layer_types": ["full_attention"]}, name="x")


def test_fields_are_read_in_both_spellings():
    assert misspelt_field({**GPT2, "n_embed": 3}) == ("n_embed", "n_embd")
    assert misspelt_field({**GPT2, "n_ctx": 1024, "resid_pdrop": 0.1}) is None
    assert misspelt_field({"model_type": "mamba", "n_embed": 3}) is None
    ours = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    theirs = {"n_embd": 12, "n_layer": 2, "n_head": 3}
    assert spec_from_config({**GPT2, **ours}) == spec_from_config({**GPT2, **theirs})


def test_what_is_not_claimed_is_built_on_the_meta_device():
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    assert spec_from_config(config) is None
    built = count_on_meta(config, name="x")
    assert built.total == 109_482_240 + 2 * 768 + 2
    assert built.architecture == "BertForSequenceClassification"
    assert [part for part in built.parts if part[1]] == [
        ("bert", 109_482_240),
        ("classifier", 1538),
    ]
    assert count_on_meta({"model_type": "xlnet"}, name="x").architecture == "XLNetModel"


@pytest.mark.parametrize(
    "extra",
    [
        {"torch_dtype": "bfloat16"},
        {"_attn_implementation": "flash_attention_2"},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    ],
)
def test_fields_that_change_no_parameter(extra):
    built = count_on_meta({"model_type": "bert", "architectures": ["BertModel"], **extra}, name="x")
    assert built.total == 109_482_240


@pytest.mark.parametrize(("config", "says"), MISTAKES["unbuilt"])
def test_what_nobody_can_build(config, says):
    with pytest.raises(LoadError) as caught:
        count_on_meta(config, name="x")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_needs_images_caches_what_its_decoder_does():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    text = {**sizes, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    vision = {**sizes, "num_attention_heads": 4}
    kinds = {"text_config": {**text, "model_type": "gemma"}, "vision_config": vision}
    named = {"model_type": "paligemma", "architectures": ["PaliGemmaForConditionalGeneration"]}
    made = count_on_meta({**named, **kinds}, name="x", run=True)
    assert [layer.per_token for layer in made.kept or ()] == 3 * [2 * 2 * 16]
    assert made.notes == ("the activations of the vision tower are not counted",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "is not a checkpoint: the directory has no config.json"),
        ("{", "cannot be read as JSON"),
        ("[]", "should hold a JSON object, not list"),
    ],
)
def test_a_directory_without_a_config(tmp_path, text, says):
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(LoadError, match=says):
        find_spec(str(tmp_path))


def test_a_directory_has_no_revisions(tmp_path):
    with pytest.raises(UsageError, match="is a directory and has no revision 'main'"):
        find_spec(str(tmp_path), revision="main")


def test_built_in_models():
    tiny, own = find_spec("tiny").spec, find_spec("mha").spec
    table, norms = 4096 * 256, (2 * 6 + 1) * 256
    blocks = 6 * (4 * 256 * 4 * 32 + 3 * 256 * 688)
    assert tiny.total == table + norms + blocks
    assert own.total == 4 * 64**2


@pytest.mark.parametrize(
    ("kind", "name"),
    [("llama", "Llama"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"), ("olmo2", "Olmo2")],
)
def test_other_key_value_heads_count_as_in_a_model_that_is_built_with_them(kind, name):
    config = {**DECODER, "model_type": kind, "architectures": [f"{name}ForCausalLM"]}
    spec = spec_from_config(config)
    for kv_heads in (1, 3, 6):
        built = count_on_meta(config | {"num_key_value_heads": kv_heads}, name=kind)
        assert with_kv_heads(spec, kv_heads).total == built.total, kv_heads
    with pytest.raises(UsageError, match="6 heads do not share 4 key/value heads evenly"):
        with_kv_heads(spec, 4)
