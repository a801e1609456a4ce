"""``params`` of a directory whose weight files say what they like."""

import json
import os
import struct

import pytest

from ..terminals import POSIX


@pytest.fixture
def asked(stranger, run):
    """``asked(header)``: the document of ``params`` beside a file with this header."""

    def ask(header):
        directory = stranger("gpt2", "config.json", dtype=None, torch_dtype=None)
        text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
        (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
        assert run("params", str(directory)).code == 0
        return run("params", str(directory), "--json").document

    return ask


def tensor(dtype, shape, size):
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}


@pytest.mark.parametrize(
    "header",
    [
        "[]", "5", "null", '"x"', "[" * 100_000, "[[1, 2]]",
        {"a": None}, {"a": tensor("F16", None, 2)}, {"a": tensor("F16", 5, 2)},
        {"a": tensor("F16", ["x"], 2)}, {"a": tensor("F16", [-5], 2)},
        {"a": tensor("F16", [1e300, 1e300], 2)}, {"a": tensor("F16", [True], 2)},
        {"a": tensor("F16", [1], -2)}, {"a": tensor("F16", [1], "2")},
        {"a": tensor("F16", [1], 1e400)}, {"a": tensor({"F16": 1}, [1], 2)},
        {"a": tensor("\x1b[31mF16", [1], 2)},
    ],
    ids=range(18),
)  # fmt: skip
def test_a_header_that_cannot_be_tells_no_dtype(asked, header):
    assert asked(header)["weights"]["stated_by"] is None


def test_dtypes_of_files_that_are_short_or_of_eight_bits(asked):
    """No dtype has fewer than no numbers; keys and values beside float8 files are wider."""
    document = asked({"a": tensor("F16", [10**9], 8), "b": tensor("F32", [10**8], 8)})
    assert document["weights"]["dtype"] == "float16"
    assert not document["weights"].get("other_dtypes")
    assert document["weights"]["bytes"] == 2 * document["total"]
    document = asked({"a": tensor("F8_E4M3", [1000], 1000)})
    assert document["weights"]["dtype"] == "float8_e4m3fn"
    assert document["kv_cache"]["dtype"] == "bfloat16"


@POSIX
def test_a_pipe_in_place_of_a_file_is_not_waited_for(stranger, run):
    directory = stranger("gpt2", "config.json")
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"a": "p.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    os.mkfifo(directory / "p.safetensors")
    assert run("params", str(directory)).code == 0
