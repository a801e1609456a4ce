"""Every family's weights are those of transformers' eager attention."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from huggingface_hub.errors import StrictDataclassError

from attnviz.attention.families import FAMILIES, NotUnderstoodError
from attnviz.attention.family_reading import by_role, checkpoint_layout
from attnviz.attention.growing import StackReader
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.models.stored_tensors import StoredTensors

from ..quick import one_in
from ..small_models import plain_weights

CONFIGS = json.loads(Path(__file__).with_name("hub_configs.json").read_text(encoding="utf-8"))
"""``config.json`` of checkpoints on the hub, as those repositories have them."""

IDS = [5, 7, 11, 5, 13, 17, 90, 2, 3, 44, 45, 7, 100]
_TABLE = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
MODELS = {name: (fields.pop("class"), fields) for name, fields in _TABLE["models"].items()}
"""By name the class of a model and the fields of its config."""
YARN, LONG = _TABLE["positions"]["yarn"], _TABLE["positions"]["longrope"]
BEFORE, AFTER = 28, 36
"""Tokens between which one more is read at a time; LongRoPE turns every key anew at 33."""
LAYERS = 2
CONTEXT = 40
ACTIVATIONS = ["relu", "gelu", "gelu_new", "gelu_fast", "silu", "gelu_pytorch_tanh", "tanh"]
KINDS = ["full_attention", "sliding_attention"]
ROPES = ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]


def made(directory, name, dtype=torch.float32):
    """A model whose weights are large, so that each of them shows, saved to a directory."""
    named, settings = MODELS[name]
    model_class = getattr(transformers, named)
    config = model_class.config_class(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.to(dtype)
    model.save_pretrained(directory)
    return model


def stack(directory):
    fields = json.loads((directory / "config.json").read_text())
    stored = StoredTensors([directory / "model.safetensors"])
    read = checkpoint_layout(fields, stored.shapes)
    return NumpyStack(read.shape, by_role(stored, read.parts)), read


def difference(model, ours, ids):
    """The largest of any weight."""
    with torch.no_grad():
        computed = model(torch.tensor([ids]), output_attentions=True)
    expected = computed.attentions
    found = plain_weights(ours, ids)
    assert len(found) == len(expected)
    return max(
        float(np.abs(found[layer] - weights[0].float().numpy()).max())
        for layer, weights in enumerate(expected)
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_those_of_transformers(name, tmp_path):
    model = made(tmp_path, name)
    ours, read = stack(tmp_path)
    assert difference(model, ours, IDS) <= 1e-5
    assert read.architecture == MODELS[name][0]
    assert read.predicts == (model.get_output_embeddings() is not None)
    if read.predicts:
        with torch.no_grad():
            expected = model(torch.tensor([IDS])).logits[0].numpy()
        np.testing.assert_allclose(ours.logits(IDS), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "dtype", "error"),
    [
        *((name, torch.float16, 2**-8) for name in ("gpt2", "phi3")),
        *((name, torch.bfloat16, 2**-5) for name in ("gemma", "bert")),
    ],
)
def test_half_of_the_bits_are_read_exactly(name, dtype, error, tmp_path):
    opened = type(made(tmp_path, name, dtype)).from_pretrained
    ours, _ = stack(tmp_path)
    eager = {"attn_implementation": "eager"}
    assert difference(opened(tmp_path, dtype=dtype, **eager).eval(), ours, IDS) <= error
    assert difference(opened(tmp_path, dtype=torch.float32, **eager).eval(), ours, IDS) <= 1e-5


def test_padding_tokens_of_roberta_stand_in_one_place(tmp_path):
    model = made(tmp_path, "roberta")
    assert difference(model, stack(tmp_path)[0], [0, 5, 1, 7, 1, 1, 9, 2]) <= 1e-5


@pytest.mark.parametrize("name", ["gpt2", "gpt-neo", "mistral", "neox", "bert"])
def test_rows_and_queries_and_keys_make_the_same_weights(name, tmp_path):
    made(tmp_path, name)
    ours, read = stack(tmp_path)
    whole = {layer: found for layer, found in plain_weights(ours, IDS).items() if layer > 0}
    rows = {layer: np.zeros_like(weights) for layer, weights in whole.items()}

    def look(layer, start, weights, norms):
        rows[layer][:, start : start + weights.shape[-2], : weights.shape[-1]] = weights[0]

    ours.run_rows([IDS], 4, lambda layer: layer > 0, look)
    for layer, weights in whole.items():
        np.testing.assert_allclose(rows[layer], weights, atol=1e-6)
    pairs = {}
    ours.run_queries_keys(
        IDS, lambda layer: layer == 2, lambda layer, *both: pairs.update({layer: both})
    )
    query, key, told = pairs[2]
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(read.shape.head_dim)
    seen = np.ones((len(IDS), len(IDS)), bool)
    if read.shape.causal:
        seen = np.tril(seen)
    if read.shape.windows:
        seen &= ~np.tril(seen, -read.shape.windows[2])
    assert seen.all() if told is None else (told == seen).all()
    powers = np.where(seen, np.exp(scores), 0)
    np.testing.assert_allclose(powers / powers.sum(-1, keepdims=True), whole[2], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse"),
        ("gpt2", {"new_field": 1}, "new_field"),
        ("llama, gelu", {"rope_parameters": {"rope_theta": None}}, "positions of None"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("gpt-neo", {"attention_types": [[["local"], 3]]}, "attention_layers"),
        ("gpt-neo", {"window_size": None}, "global and local"),
        ("llama, gelu", {"partial_rotary_factor": 0.5}, "a part of each head"),
        ("gpt2", {"activation_function": "mish"}, "mish"),
        ("gpt2", {"n_head": 4}, "4 heads do not divide 21"),
        ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2DoubleHeadsModel"),
        ("gpt2", {"model_type": "gpt3"}, "gpt3"),
        ("gpt2", {"auto_map": {"AutoModel": "a.B"}}, "auto_map"),
        ("gpt2", {"n_inner": 80}, "c_fc"),
        ("gpt2", {"quantization_config": {}}, "quantization_config"),
        ("llama 3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
        ("llama 3", {"rope_parameters": {"rope_type": "proportional"}}, "proportional"),
        ("llama, long", {"rope_parameters": {**LONG, "long_factor": [1.0]}}, "5 factors"),
        ("llama, yarn", {"rope_parameters": {**YARN, "factor": None}}, "None"),
        ("phi3", {"rope_parameters": {**YARN}}, "yarn"),
        ("llama, tied", {"tie_word_embeddings": False}, "lm_head"),
        ("llama 3", {"layer_types": ["linear_attention"]}, "linear_attention"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window is 0"),
        ("neox", {"use_parallel_residual": False}, "use_parallel_residual"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("bert", {"num_hidden_layers": 4}, "layer.3"),
        ("bert", {"num_hidden_layers": 2}, "layer.2"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id"),
    ],
)
def test_what_is_not_described_is_said(name, change, said, tmp_path):
    made(tmp_path, name)
    fields = json.loads((tmp_path / "config.json").read_text()) | change
    with pytest.raises(NotUnderstoodError, match=said):
        checkpoint_layout(fields, StoredTensors([tmp_path / "model.safetensors"]).shapes)


@pytest.mark.parametrize("family", one_in(2, FAMILIES), ids=lambda family: family.model_types[0])
def test_heads_have_no_part_in_the_weights(family, tmp_path):
    settings = next(
        settings
        for name, settings in MODELS.values()
        if getattr(transformers, name).config_class.model_type in family.model_types
    )
    for architecture in family.heads:
        model_class = getattr(transformers, architecture)
        torch.manual_seed(5)
        number = 2 if architecture.endswith("Answering") else 5
        model = model_class(model_class.config_class(**settings, num_labels=number)).eval()
        model.set_attn_implementation("eager")
        model.save_pretrained(tmp_path / architecture)
        ours, read = stack(tmp_path / architecture)
        with torch.no_grad():
            expected = model.base_model(torch.tensor([IDS]), output_attentions=True).attentions
        found = plain_weights(ours, IDS)
        for layer, weights in enumerate(expected):
            np.testing.assert_allclose(found[layer], weights[0].numpy(), atol=1e-5)
        assert read.predicts == (model.get_output_embeddings() is not None)


@pytest.mark.parametrize("name", one_in(2, CONFIGS))
def test_configs_of_the_hub_are_understood(name, tmp_path):
    """Tensors as those repositories have them, of which some are older than their names."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = getattr(transformers, CONFIGS[name]["architectures"][0])(config)
    stored = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    if getattr(config, "tie_word_embeddings", False):
        stored = {key: shape for key, shape in stored.items() if "decoder." not in key}
    if name == "gpt2":
        del stored["lm_head.weight"]
        stored = {key.removeprefix("transformer."): shape for key, shape in stored.items()}
        stored |= {f"h.{layer}.attn.bias": (1, 1, 1024, 1024) for layer in range(12)}
    if "pythia" in name:
        stored["embed_out.weight"] = stored.pop("lm_head.weight")
        for layer in range(6):
            stored[f"gpt_neox.layers.{layer}.attention.bias"] = (1, 1, 2048, 2048)
            stored[f"gpt_neox.layers.{layer}.attention.masked_bias"] = ()
            stored[f"gpt_neox.layers.{layer}.attention.rotary_emb.inv_freq"] = (8,)
    if name == "google-bert/bert-base-uncased":
        older = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new, old in older:
            stored = {key.replace(new, old): shape for key, shape in stored.items()}
        stored |= {"bert.pooler.dense.weight": (768, 768), "cls.seq_relationship.bias": (2,)}
    read = checkpoint_layout(CONFIGS[name], stored)
    assert {part.name for part in read.parts.values()} <= stored.keys()
    assert read.predicts == (model.get_output_embeddings() is not None)


def test_every_family_is_held_against_transformers():
    held = {getattr(transformers, named).config_class.model_type for named, _ in MODELS.values()}
    assert held == {name for family in FAMILIES for name in family.model_types}
    for family in FAMILIES:
        assert all(hasattr(transformers, named) for named in family.heads)


WRITING = [
    name for name, (cls, _) in MODELS.items() if cls.endswith(("CausalLM", "GPT2LMHeadModel"))
]


@pytest.mark.parametrize("name", WRITING[::3])
def test_a_text_that_grows_is_read_as_a_whole_one(name, tmp_path):
    model = made(tmp_path, name)
    reader, ids = StackReader(stack(tmp_path)[0]), (IDS * 3)[:BEFORE]
    with torch.no_grad():
        written = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=AFTER - BEFORE, use_cache=False
        )[0].tolist()
    while len(ids) < len(written):
        scores, rows = reader.read(ids)
        with torch.no_grad():
            whole = model(torch.tensor([ids]), output_attentions=True)
        np.testing.assert_allclose(scores, whole.logits[0, -1].numpy(), atol=1e-4, rtol=1e-4)
        for layer, weights in enumerate(whole.attentions):
            np.testing.assert_allclose(rows[layer], weights[0, :, -1].numpy(), atol=1e-5)
        ids = [*ids, int(scores.argmax())]
    assert ids == written


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "phi3", "gpt-neo", "neox", "bert", "distilbert"])
def test_a_removed_head_is_one_whose_columns_are_zero(name, tmp_path):
    made(tmp_path, name)
    ours, read = stack(tmp_path)
    roles = ours.tensors.stored
    heads = {(layer, head) for layer in range(read.shape.layers) for head in range(2)}

    def emptied(removed):
        changed = {role: np.array(roles[role], np.float32) for role in roles}
        for layer, head in removed:
            columns = changed[f"layers.{layer}.output.weight"]
            dim = columns.shape[1] // read.shape.heads
            columns[:, head * dim : (head + 1) * dim] = 0
        return NumpyStack(read.shape, changed)

    for removed in ({(1, 0)}, heads):
        found = plain_weights(ours.without(removed), IDS)
        expected = plain_weights(emptied(removed), IDS)
        for layer, weights in expected.items():
            np.testing.assert_allclose(found[layer], weights, atol=1e-6)


UNBUILT = (ValueError, TypeError, LookupError, RuntimeError, AssertionError, ArithmeticError)
UNBUILT += (StrictDataclassError,)


def rope(draw, dims):
    kind = draw.choice(ROPES)
    said = {"rope_type": kind, "rope_theta": draw.choice([10000.0, 7.0, 5e5])}
    if kind not in ("default", "longrope"):
        said["factor"] = draw.choice([1.0, 2.0, 4])
    if kind in ("yarn", "longrope", "llama3") and draw.random() < 0.8:
        said["original_max_position_embeddings"] = draw.choice([8, 16, 32, 200])
    if kind == "llama3":
        said |= {
            "low_freq_factor": draw.choice([1.0, 2]),
            "high_freq_factor": draw.choice([4.0, 1]),
        }
    if draw.random() < 0.3:
        said["partial_rotary_factor"] = draw.choice([0.25, 0.5, 1.0])
    turned = int(dims * said.get("partial_rotary_factor", 1)) // 2
    if kind == "longrope":
        said["short_factor"] = [1 + draw.random() for _ in range(turned)]
        said["long_factor"] = [2 + 3 * draw.random() for _ in range(turned)]
    if kind == "yarn":
        further = {"beta_fast": 8, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.5}
        further |= {"truncate": False, "attention_factor": 1.3}
        said |= {name: further[name] for name in draw.sample([*further], 3)}
    return said


def drawn(draw, model_class):
    """Settings of a small model, and its head_dim."""
    config = model_class.config_class
    heads, dims = draw.choice([1, 2, 3, 4]), draw.choice([4, 6, 8, 10])
    usual = {"num_hidden_layers": LAYERS, "num_attention_heads": heads, "hidden_size": heads * dims}
    usual |= {"vocab_size": 101, "max_position_embeddings": CONTEXT}
    settings = {config.attribute_map.get(name, name): value for name, value in usual.items()}
    settings |= {"bos_token_id": 2, "eos_token_id": 3}
    settings["pad_token_id"] = 1 if config.model_type == "roberta" else 0
    shared = [one for one in (1, 2, 3, 4) if heads % one == 0]
    values = {
        **dict.fromkeys(("hidden_act", "activation", "activation_function"), ACTIVATIONS),
        **{key: [16, 31] for key in ("intermediate_size", "n_inner", "hidden_dim")},
        **{key: [True, False] for key in ("attention_bias", "mlp_bias", "tie_word_embeddings")},
        **{key: [True, False] for key in ("use_sliding_window", "use_parallel_residual")},
        **{key: [None, 1, 3, 50] for key in ("sliding_window", "window_size")},
        **{key: [1e-05, 0.1] for key in ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon")},
        "num_key_value_heads": shared,
        "head_dim": [dims, 6, 8],
        "max_window_layers": [0, 1],
        "layer_types": [[draw.choice(KINDS) for _ in range(LAYERS)]],
        "no_rope_layers": [[draw.choice([0, 1]) for _ in range(LAYERS)]],
        "attention_types": [[[["local", "global"], 1]], [[["local"], 2]]],
        "rope_parameters": [rope(draw, dims) for _ in range(3)],
        "position_embedding_type": ["absolute", "absolute", "relative_key"],
        "sinusoidal_pos_embds": [True, False],
        "scale_attn_weights": [True, False],
        "scale_attn_by_inverse_layer_idx": [True, False],
        "embedding_size": [13, 24],
        "type_vocab_size": [1, 3],
        "is_decoder": [True, False, False],
        "original_max_position_embeddings": [7, 4096],
        "use_bidirectional_attention": [True, None],
        "surprise": [1],
    }
    known = {*config().to_dict(), "surprise"}
    needed = {"num_key_value_heads", "attention_types", "window_size", "embedding_size"} & known
    further = draw.sample(sorted(values.keys() & known - needed), draw.choice([1, 2, 4]))
    settings |= {name: draw.choice(values[name]) for name in [*sorted(needed), *further]}
    return settings, dims


def changed(draw, fields, dims):
    """The fields with one of them as someone may have written it by hand."""
    name = draw.choice(sorted(fields))
    match draw.choice(["nothing", "left out", "null", "twice", "rope"]):
        case "left out":
            return {key: value for key, value in fields.items() if key != name}
        case "null":
            return fields | {name: None}
        case "twice" if isinstance(fields[name], int | float):
            return fields | {name: fields[name] * 2}
        case "rope":
            return fields | {"rope_scaling": rope(draw, dims)}
    return fields


def is_computed(draw, model_class, directory):
    """Whether a checkpoint was understood; where it was, weights are those of transformers."""
    settings, dims = drawn(draw, model_class)
    try:
        model = model_class(model_class.config_class(**settings))
    except UNBUILT:
        return False
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else parameter.add_(0.1)
    model.save_pretrained(directory)
    path = directory / "config.json"
    fields = changed(draw, json.loads(path.read_text()), dims)
    path.write_text(json.dumps(fields))
    stored = StoredTensors([directory / "model.safetensors"])
    try:
        read = checkpoint_layout(fields, stored.shapes)
    except NotUnderstoodError:
        return False
    ids = [draw.randrange(101) for _ in range(draw.choice([1, 2, 9, 19]))]
    opened = model_class.from_pretrained(directory, attn_implementation="eager")
    with torch.no_grad():
        opened = opened.eval().double().base_model
        expected = opened(torch.tensor([ids]), output_attentions=True).attentions
    ours = NumpyStack(read.shape, by_role(stored, read.parts), np.float64)
    found = plain_weights(ours, ids)
    for layer, weights in enumerate(expected):
        np.testing.assert_allclose(found[layer], weights[0].numpy(), atol=1e-5, err_msg=str(fields))
    return True


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [(100, 1), *(pytest.param(seed, 3, marks=pytest.mark.long) for seed in (0, 1))],
)
@pytest.mark.parametrize("family", one_in(2, FAMILIES), ids=lambda family: family.model_types[0])
def test_not_understood_or_equal(family, seed, wanted, tmp_path):
    draw = random.Random(f"{family.model_types[0]} {seed}")
    torch.manual_seed(seed)
    computed = tried = 0
    while computed < wanted:
        tried += 1
        assert tried < 60
        model_class = getattr(transformers, draw.choice(sorted(family.heads)))
        computed += is_computed(draw, model_class, tmp_path / str(tried))
