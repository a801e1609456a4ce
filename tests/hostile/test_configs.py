"""Configs as a stranger might send them, as far as ``params`` reads them."""

import json
import math

import pytest

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
NO_SIZES = (0, -1, 10**30, 1.5, math.nan, math.inf, True, "x", [], {"a": 1})


def test_a_dtype_that_is_none_is_refused_where_no_file_states_it(refused, llama):
    directory = llama(dtype="banana")
    for weights in directory.glob("*.safetensors"):
        weights.unlink()
    assert "dtype = 'banana'" in refused(3, "params", str(directory))


@pytest.mark.parametrize("field", SIZES)
def test_a_size_that_is_none_is_refused(refused, llama, field):
    for value in NO_SIZES:
        assert field in refused(3, "params", str(llama(**{field: value})), "--json"), value


def test_code_that_a_config_names_is_not_asked_for(run, llama):
    for value in ({}, {"AutoModel": None}, {"AutoModel": "x.Y"}):
        assert run("params", str(llama(auto_map=value)), "--json").document["total"] > 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_hidden_layers": 10**9}, "expected at most 2,000"),
        ({"num_attention_heads": -4}, "num_attention_heads"),
        ({"hidden_size": 10**18}, "hidden_size"),
        ({"vocab_size": math.nan}, "vocab_size"),
    ],
)
def test_a_model_that_would_be_built_is_refused_too(refused, tmp_path, fields, said):
    config = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert said in refused(3, "params", str(tmp_path), "--json")


def test_floats_as_transformers_writes_them(run, tmp_path):
    import transformers

    config = transformers.Mamba2Config(
        hidden_size=16, num_heads=4, head_dim=8, state_size=4, n_groups=1, num_hidden_layers=2
    )
    config.architectures = ["Mamba2ForCausalLM"]
    config.save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    assert run("params", str(tmp_path), "--json").document["total"] > 0


def test_a_gate_that_a_t5_names_alone_counts(run, checkpoint, tmp_path):
    fields = json.loads((checkpoint("t5") / "config.json").read_text())
    totals = []
    for gated in (False, True):
        (tmp_path / "config.json").write_text(json.dumps(fields | {"is_gated_act": gated}))
        totals.append(run("params", str(tmp_path), "--json").document["total"])
    assert totals[1] - totals[0] == 4 * 6 * 7  # a third matrix d_model × d_ff in each layer
