"""A config.json that asks for more than its files hold is refused before it is built."""

import json
import shutil
import time

import pytest

_QUICK = 20.0
"""Seconds, on a machine with other work; each was a minute or a full memory before."""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"vocab_size": 20_000_000}, "lm_head.weight is 13×12 in the file and should be 20000000"),
        ({"intermediate_size": 20_000_000}, "mlp.down_proj.weight is 12×5 in the file"),
        ({"num_hidden_layers": 10**3}, "num_hidden_layers = 1,000, and its files hold 21 tensors"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1,000,000: expected at most 2,000"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers = 1,000,000,000"),
        ({"num_experts": 10**9}, "num_experts = 1,000,000,000: expected at most 2,000"),
        ({"num_attention_heads": 10**9, "hidden_size": 10**9}, "makes no model"),
        ({"vocab_size": 20_000_000, "quantization_config": {"quant_method": "x"}}, "at most"),
    ],
    ids=str,
)
def test_sizes_that_the_files_do_not_have(fields, says, llama, refused):
    began = time.monotonic()
    assert says in refused(3, "heads", "the cat", "--model", str(llama(**fields)))
    assert time.monotonic() - began < _QUICK


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("gpt2", {"n_positions": 2 * 10**7}, "wpe.weight is 17×6 in the file and should be 2000"),
        ("t5", {"num_decoder_layers": 10**9}, "num_decoder_layers = 1,000,000,000"),
        ("t5", {"d_ff": 10**8}, "DenseReluDense.wi.weight is 7×6 in the file"),
    ],
)
def test_sizes_of_other_families(kind, fields, says, checkpoint, refused, tmp_path):
    directory = tmp_path / kind
    shutil.copytree(checkpoint(kind), directory)
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    assert says in refused(3, "heads", "the cat", "--model", str(directory))


def test_parameters_that_the_files_name_otherwise(llama, refused):
    """No name is the same, so only the numbers of both can be compared."""
    from safetensors.torch import load_file, save_file

    path = llama(intermediate_size=10**6) / "model.safetensors"
    save_file({f"x.{name}": tensor for name, tensor in load_file(path).items()}, path)
    said = refused(3, "heads", "the cat", "--model", str(path.parent))
    assert "that asks for 72,001,908 parameters" in said
    assert "its files hold 2,268" in said


def test_a_size_that_does_not_fit_the_memory_and_a_shape_of_too_many_layers(
    llama, refused, tmp_path, monkeypatch
):
    shape = tmp_path / "shape.toml"
    shape.write_text(
        "[config]\nmodel_type = 'gpt2'\narchitectures = ['GPT2LMHeadModel']\nn_layer = 1000000000"
    )
    said = refused(3, "heads", "the cat", "--model", str(shape))
    assert "n_layer = 1,000,000,000: expected at most 2,000" in said
    monkeypatch.setattr("attnviz.models.memory.free_memory", lambda device: 1000)
    said = refused(3, "heads", "the cat", "--backend", "torch", "--model", str(llama()))
    assert "the weights of" in said
    assert "1.00 kB are free on cpu" in said
