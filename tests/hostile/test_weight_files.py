"""Weight files as strangers send them: names, headers and numbers that lie are one line."""

import json
import math
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnviz

from ..first_screens import command_lines
from ..quick import one_in
from ..terminals import POSIX

TEXT = "the cat sat on the mat"
QUERY = "model.layers.1.self_attn.q_proj.weight"
ADVICE = "try --dtype float32"
COMMANDS = command_lines("not finite")
VALUES = [(0.0, ""), (3e38, ""), (3e38, QUERY)]


@pytest.fixture
def indexed(llama):
    """A Llama whose weights lie in ``shard``, which its index calls ``named``."""

    def make(shard, named, index="model.safetensors.index.json"):
        directory = llama()
        path = directory / "model.safetensors"
        tensors = load_file(path)
        if shard.endswith(".bin"):
            torch.save(tensors, directory / shard)
            path.unlink()
        else:
            (directory / shard).parent.mkdir(exist_ok=True)
            path.rename(directory / shard)
        table = {"metadata": {}, "weight_map": dict.fromkeys(tensors, named)}
        (directory / index).write_text(json.dumps(table))
        return directory

    return make


@pytest.mark.parametrize(
    ("shard", "named"),
    [
        ("pytorch_model.bin", "pytorch_model.bin"),
        ("../outside.safetensors", "../outside.safetensors"),
        ("sub/a.safetensors", "sub/../../m/sub/a.safetensors"),
        ("a.safetensors", "/a.safetensors"),
        ("a.safetensors", "..\\a.safetensors"),
        ("a.safetensors", "a" * 5_000 + ".safetensors"),
        ("a.safetensors", "a.safetensors\0"),
        ("a.safetensors", ""),
    ],
    ids=lambda name: ascii(name)[:30],
)
def test_an_index_that_names_other_files(shard, named, indexed, refused):
    said = refused(3, "heads", "the cat", "--model", str(indexed(shard, named)))
    assert "model.safetensors.index.json names the file" in said
    assert "expected names that end in .safetensors of files inside its directory" in said


def test_pickles_are_named_by_an_index_of_pickles_alone(indexed, run, refused):
    index = "pytorch_model.bin.index.json"
    plain = indexed("a.bin", "a.bin", index)
    asked = ("heads", "the cat", "--model", str(plain))
    assert "only as pickles" in refused(3, *asked)
    assert run(*asked, "--allow-pickle").code == 0
    table = json.loads((plain / index).read_text())
    table["weight_map"] = dict.fromkeys(table["weight_map"], "../a.bin")
    (plain / index).write_text(json.dumps(table))
    assert "names that end in .bin" in refused(3, *asked, "--allow-pickle")


def test_a_folder_and_links_to_a_cache_are_followed(indexed, run, tmp_path):
    """A snapshot in the hub's cache is a directory of links to ../../blobs."""
    directory = indexed("sub/a.safetensors", "sub/a.safetensors")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(path for path in directory.rglob("*") if path.is_file()):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert run("heads", "the cat", "--model", str(directory)).code == 0


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


PLACES = (
    *("model.embed_tokens.weight", QUERY),
    *("model.layers.0.input_layernorm.weight", "lm_head.weight"),
)

EVERYWHERE = [
    (command, *VALUES[(at + turn) % 3]) for at, command in enumerate(COMMANDS) for turn in range(3)
]


@pytest.fixture
def broken(llama):
    """``broken(value, place, dtype)``: a checkpoint with this number in that tensor, or in all."""

    def make(value, place="", dtype="float32"):
        directory = llama(dtype=dtype)
        file = directory / "model.safetensors"
        tensors = {name: held.to(getattr(torch, dtype)) for name, held in load_file(file).items()}
        for name, held in tensors.items():
            if place in ("", name):
                held.fill_(value) if math.isfinite(value) else held[..., -1:].fill_(value)
        save_file(tensors, file, metadata={"format": "pt"})
        return str(directory)

    return make


def on(command, model):
    """Its line with this model."""
    name, *rest = COMMANDS[command]
    return (name, model, *rest) if name == "diff" else (name, *rest, "--model", model)


def said(result):
    return " ".join((result.out + result.err).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_tensor_is_named_and_no_advice_given(run, broken, command):
    """No number and an infinite one in turn."""
    model = broken([math.nan, math.inf][[*COMMANDS].index(command) % 2], QUERY)
    for extra in ((), ("--json",)):
        result = run(*on(command, model), *extra)
        assert result.code in ({1} if command == "verify" else {0, 3}), result
        assert "unexpected" not in result.err
        assert f"weights that are not finite: {QUERY}" in said(result)
        assert ADVICE not in said(result)
        if extra and result.out:
            json.loads(result.out, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_logit_that_is_none_is_not_taken_apart(run, broken, place, backend):
    """The same words from both; torch's fused attention makes zeros of a query of NaN."""
    model = broken(math.nan, place)
    for extra in ((), ("--json",)):
        result = run("why", TEXT, "--model", model, "--backend", backend, *extra)
        assert (result.code, result.out) == (3, "")
        assert result.err == (
            f"attnviz: the logit of {model!r} is nan in float32, nothing can be ranked: weights "
            f"that are not finite: {place}; what they reach has no numbers\n"
        )


@pytest.mark.parametrize("place", PLACES)
def test_heads_without_numbers_have_no_trait(run, broken, place):
    document = run("heads", TEXT, "--json", "--model", broken(math.nan, place)).document
    named = {head["layer"]: head["trait"]["name"] for head in document["heads"]}
    empty = {0, 1} if place in (PLACES[0], PLACES[2]) else {1} if place == QUERY else set()
    assert {layer for layer, name in named.items() if name == "no numbers"} == empty
    labels = run("patterns", TEXT, "--json", "--model", broken(math.nan, place)).document["heads"]
    assert all(head["label"] is None for head in labels if head["layer"] in empty)


@pytest.mark.parametrize(("command", "value", "place"), one_in(3, EVERYWHERE))
def test_zeros_and_overflow_crash_nothing(run, broken, command, value, place):
    """The quick run asks each command once, with the values in turn."""
    result = run(*on(command, broken(value, place)), "--json")
    assert result.code in (0, 1, 2, 3, 5), result
    assert "unexpected" not in result.err
    assert ADVICE not in said(result)  # it is float32 already
    if result.out:
        json.loads(result.out, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("command", ["heads", "patterns", "rollout"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_overflows_in_half_precision_is_advised_to_be_wider(run, broken, dtype, command):
    largest = torch.finfo(getattr(torch, dtype)).max
    half = (*COMMANDS[command], "--backend", "torch", "--model")
    assert ADVICE in said(run(*half, broken(largest, QUERY, dtype)))
    assert ADVICE not in said(run(*COMMANDS[command], "--model", broken(math.inf, QUERY, dtype)))


def test_many_tensors_are_counted_and_named_in_python(run, broken):
    record = attnviz.capture(broken(math.nan, QUERY), TEXT).report.record
    assert any(QUERY in note for note in record.model.notes)
    out = said(run("heads", TEXT, "--model", broken(math.nan)))
    assert "lm_head.weight" in out or "model.embed_tokens.weight" in out
    assert " more; what they reach has no numbers" in out


def test_predictions_that_are_none_are_not_alike(run, broken):
    other = ("--dtype-b", "bfloat16")
    model = broken(math.nan, "lm_head.weight")
    found = run("diff", model, *other, "--text", TEXT, "--json", "-q").document
    assert (found["kl"], found["same_top"]) == (None, None)


def test_a_gate_does_not_hold(run, broken):
    rules = (
        *("loss_on = 'the cat sat'", "head = 'L1H0'\nscore = 'first'"),
        *("heads_labelled = 'first'", "head = 'L1H0'\nscore = 'entropy'"),
        *("span = 'cat'\ntext = 'the cat sat'", "rows_sum_to_one = true"),
    )
    text = "".join(f"[[check]]\n{rule}\nat_most = 99\n" for rule in rules)
    Path("rules.toml").write_text(text)
    result = run("check", "rules.toml", "--model", broken(math.nan, PLACES[0]))
    assert result.code == 6
    assert "6 of 6 rules fail" in result.out
    assert f"weights that are not finite: {PLACES[0]}" in said(result)
    result = run("check", "new.toml", "--init", "--model", broken(math.nan, PLACES[0]))
    assert (result.code, result.out) == (3, "")
    assert f"weights that are not finite: {PLACES[0]}" in result.err


@pytest.mark.parametrize("command", ["heads", "rollout", "ablate"])
def test_a_run_that_gives_no_numbers_is_no_finding(run, llama, command):
    """Its weights are finite: only the run shows it."""
    directory = llama()
    config = json.loads((directory / "config.json").read_text()) | {"rms_norm_eps": math.nan}
    (directory / "config.json").write_text(json.dumps(config))
    line = said(run(*on(command, str(directory)), "--backend", "torch"))
    assert "(NaN)" in line
    assert "No link" not in line
