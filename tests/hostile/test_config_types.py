"""Fields of another type or of no sense in a checkpoint's small files: one line each."""

import json
import math

import pytest

from attnviz.errors import LoadError
from attnviz.models.checkpoint_files import read_config

TYPES = [
    ({"model_type": ["llama"]}, "has model_type = ['llama']: expected the name of a model type"),
    ({"architectures": "x"}, "has architectures = 'x': expected a list of class names"),
    ({"architectures": [["x"]]}, "has architectures = [['x']]: expected a list of class names"),
    ({"auto_map": "x.Y"}, "has auto_map = 'x.Y': expected an object of class names"),
    ({"tokenizer_class": ["x"]}, "has tokenizer_class = ['x']: expected the name of a class"),
    ({"configuration_files": ["a.json"]}, "expected none: only config.json is read"),
]


@pytest.mark.parametrize(("fields", "says"), TYPES, ids=str)
def test_types(fields, says, llama, refused):
    directory = str(llama(**fields))
    assert says in refused(3, "params", directory)
    assert says in refused(3, "heads", "the cat", "--model", directory)


def test_references_to_code_that_is_not_needed_are_ignored(llama, run):
    for named in ({"AutoModel": None}, {"AutoTokenizer": ["x.Y", None]}):
        assert run("heads", "the cat", "--model", str(llama(auto_map=named))).code == 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_hidden_layers": 0}, "has 0 layers of 6 heads, 2 for keys and values, each 4 wide"),
        ({"head_dim": 0}, "each 0 wide: expected 1 or more of each"),
        ({"num_attention_heads": 0}, "the config.json of "),
        ({"num_key_value_heads": 0}, "makes no model"),
        ({"sliding_window": -1}, "sliding_window = -1: expected a number of tokens"),
        ({"model_type": "mamba"}, "its model_type 'mamba' is a MambaConfig"),
        ({"dtype": 5}, "the weights of "),
        ({"pad_token_id": 99}, "makes no model: Padding_idx must be within num_embeddings"),
    ],
    ids=str,
)
def test_values(fields, says, llama, refused):
    said = refused(3, "heads", "the cat", "--model", str(llama(**fields)))
    assert says in said
    assert "ModelInfo(" not in said


@pytest.mark.parametrize("command", ["ablate", "patterns"])
def test_a_forward_pass_that_fails(command, llama, refused, monkeypatch):
    monkeypatch.delattr("transformers.models.llama.modeling_llama.rotate_half")
    text = "the cat sat on the mat because the cat sat"
    said = refused(3, command, text, "--model", str(llama()), "--backend", "torch")
    assert "LlamaForCausalLM cannot run over this text: " in said


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_max_length": "x"}, "the tokenizer of "),
        ({"tokenizer_class": "AutoModel"}, "'AutoModel' as its class, which is none of a token"),
        ({"tokenizer_class": 5}, "the tokenizer of "),
        ({"tokenizer_class": "AutoTokenizer"}, "the tokenizer of "),
    ],
    ids=str,
)
def test_settings_of_a_tokenizer(fields, says, llama, refused):
    path = llama() / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    assert says in refused(3, "heads", "the cat", "--model", str(path.parent))


@pytest.mark.parametrize("base", [math.nan, 0, -1.0, math.inf, 10**400], ids=str)
@pytest.mark.parametrize(
    "place", [lambda b: {"rope_theta": b}, lambda b: {"rope_parameters": {"a": {"rope_theta": b}}}]
)
def test_a_rotary_base_is_a_number_above_0(tmp_path, base, place):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **place(base)}))
    with pytest.raises(LoadError, match=r"has rope_theta = .*: expected a number above 0"):
        read_config("m", tmp_path)
