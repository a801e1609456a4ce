"""What a checkpoint's files say of the dtypes of its weights, without a tensor being read."""

import json
import re
import struct

import pytest

from attnviz.count.params.find_spec import stored_weights

TOTAL = 11 * 12 + 7 * 12 + 2 * (12 * 12**2 + 13 * 12) + 2 * 12


def checkpoint_of(folder, dtypes, **fields):
    """A GPT-2 of 12 features whose file claims so many numbers of each dtype."""
    folder.mkdir()
    config = {"model_type": "gpt2", "architectures": ["GPT2Model"], "n_embd": 12, "n_head": 3}
    config |= {"n_layer": 2, "vocab_size": 11, "n_positions": 7, **fields}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "F8_E4M3": 1}
    header, end = {}, 0
    for name, number in dtypes.items():
        start, end = end, end + number * sizes[name]
        header[name] = {"dtype": name, "shape": [number], "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(end)
    (folder / "model.safetensors").write_bytes(content)
    return str(folder)


@pytest.mark.parametrize(
    ("dtypes", "fields", "dtype", "size", "stated"),
    [
        ({"F32": TOTAL}, {}, "float32", 4 * TOTAL, "files"),
        ({"F16": TOTAL}, {"dtype": "float32"}, "float16", 2 * TOTAL, "files"),
        ({"BF16": TOTAL - 24, "F32": 24}, {}, "bfloat16", 2 * TOTAL + 48, "files"),
        ({"F8_E4M3": TOTAL}, {}, "float8_e4m3fn", TOTAL, "files"),
        ({"I32": TOTAL, "F16": 24}, {"torch_dtype": "float16"}, "float16", 4 * TOTAL + 48, "files"),
        ({}, {"torch_dtype": "float32"}, "float32", 4 * TOTAL, "config"),
        ({}, {}, "bfloat16", 2 * TOTAL, None),
    ],
)
def test_the_files_say_what_weights_are_stored_in(
    run, tmp_path, dtypes, fields, dtype, size, stated
):
    folder = checkpoint_of(tmp_path / "odd", dtypes, **fields)
    document = run("params", folder, "--json").document
    assert document["total"] == TOTAL
    weights = document["weights"]
    assert (weights["dtype"], weights["bytes"], weights["stated_by"]) == (dtype, size, stated)
    assert document["needed_bytes"] == size + document["kv_cache"]["bytes"]
    shown = run("params", folder).out
    assert (f"dtype not given; {dtype} assumed" in shown) == (stated is None)
    assert ("as its files have them" in shown) == ("I32" in dtypes)
    fit = run("params", folder, "--memory", "1MB", "--json").document["memory"]
    assert fit["weights"] == size


def test_each_dtype_is_stated(run, tmp_path):
    folder = checkpoint_of(tmp_path / "odd", {"BF16": TOTAL - 24, "F32": 24})
    assert run("params", folder, "--json").document["weights"]["other_dtypes"] == {"float32": 24}
    lines = run("params", folder).lines
    assert any(re.match(r" +bfloat16 +7,968 bytes .*3,984 numbers", line) for line in lines)
    assert any(re.match(r" +float32 +96 bytes .*24 numbers", line) for line in lines)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"[1]x", b"\x02" * 9])
def test_a_damaged_file_tells_nothing(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert stored_weights(tmp_path).numbers == {}
