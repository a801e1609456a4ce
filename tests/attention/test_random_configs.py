"""Whatever a config says, a checkpoint is either not understood or computed as by transformers."""

import json
import random

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from attnviz.attention.families import FAMILIES, NotUnderstoodError
from attnviz.attention.family_reading import by_role, checkpoint_layout
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.models.stored_tensors import StoredTensors

from ..quick import one_in
from ..small_models import plain_weights

UNBUILT = (ValueError, TypeError, LookupError, RuntimeError, AssertionError, ArithmeticError)
UNBUILT += (StrictDataclassError,)
LAYERS = 2
CONTEXT = 40
ACTIVATIONS = ["relu", "gelu", "gelu_new", "gelu_fast", "silu", "gelu_pytorch_tanh", "tanh"]
KINDS = ["full_attention", "sliding_attention"]
ROPES = ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]


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
