"""First screens of ``attnviz params``: the answer in line 2, no taller than the terminal."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from attnviz.count.params.find_spec import stored_weights

from ...first_screens import SIZES

Run = Callable[..., Any]
SHAPE = ("--d-model", "4096", "--heads", "32")
ASKED = {
    "fits": ("llama-3-8b", "--tokens", "32768", "--memory", "24GB"),
    "layer": SHAPE,
    "pair": ("t5-base",),
    "experts": ("deepseek-v3", "--memory", "80GB"),
    "encoder": ("bert-base",),
    "vision": ("vit-base",),
    "compared": (*SHAPE, "--compare", "kv-heads=32,8,1", "--compare", "tokens=1024,4096"),
    "formula": (*SHAPE, "--formula"),
    "kinds": ("gemma-2-2b", "--per-layer"),
    "models": ("gpt2", "bert-base", "llama-2-7b"),
    "tiny": ("tiny",),
    "cards": ("llama-2-7b", "--gpu", "all", "--tokens", "4096", "--batch", "8"),
    "card": ("llama-3-8b", "--gpu", "L4"),
    "cards for an encoder": ("bert-base", "--gpu", "all"),
    "cards for several": ("llama-3-8b", "mixtral-8x7b", "--gpu", "H100,4090"),
    "cards compared": ("llama-3-8b", "--gpu", "T4", "--compare", "dtype=bfloat16,int4"),
}


@pytest.fixture
def first(run: Run) -> Callable[..., list[str]]:
    """The lines of a first screen: ``first(80, 24, "gpt2")``."""

    def call(columns: int, lines: int, *arguments: str) -> list[str]:
        size = {"COLUMNS": str(columns), "LINES": str(lines)}
        result = run("params", *arguments, "--no-full", env=size)
        assert (result.code, result.err) == (0, "")
        shown: list[str] = result.lines
        return shown

    return call


@pytest.mark.parametrize(("columns", "lines"), [*SIZES, (40, 10), (300, 90)])
@pytest.mark.parametrize("name", ASKED)
def test_it_fits(first: Any, name: str, columns: int, lines: int) -> None:
    usual = (columns, lines) in SIZES
    shown = first(columns, lines, *ASKED[name], *["--ascii"] * (not usual))
    assert len(shown) < lines
    assert max(map(cell_len, shown)) <= columns
    assert all(line == line.rstrip() for line in shown)
    if not usual:
        assert all(line.isascii() for line in shown)
        return
    assert shown[1].endswith((".", ";")) or shown[2].endswith(".")
    assert shown[-1].endswith("--full: everything")


@pytest.mark.parametrize("name", ["fits", "layer", "pair", "experts", "compared", "models"])
def test_first_screens(first: Any, golden: Callable[[str, str], None], name: str) -> None:
    golden(f"first_{name}", "\n".join([*first(80, 24, *ASKED[name]), ""]))


def test_a_wide_first_screen(first: Any, golden: Callable[[str, str], None]) -> None:
    golden("first_wide", "\n".join([*first(120, 40, *ASKED["fits"]), ""]))


def test_the_total_is_weights_and_cache(run: Run, first: Any) -> None:
    """Llama 3 8B by hand: 8,030,261,248 × 2 bytes, and 2 × 32 × 8 × 128 × 2 bytes a token."""
    needed = 8_030_261_248 * 2 + 2 * 32 * 8 * 128 * 2 * 32_768
    shown = first(80, 24, *ASKED["fits"])
    assert shown[1] == (
        f"Fits in 24 GB: needs {needed / 1e9:.2f} GB. ! The model was trained for 8,192 tokens "
        "only."
    )
    document = run("params", *ASKED["fits"], "--json").document
    assert document["needed_bytes"] == needed
    refused = first(80, 24, *ASKED["fits"][:-1], "20GB")
    assert refused[1].startswith(f"Does not fit in 20 GB: needs {needed / 1e9:.2f} GB, ")
    assert f"{(needed - 20e9) / 1e6:.1f} MB too much." in " ".join(refused[1:3])


def test_what_the_first_sentence_warns_of(first: Any) -> None:
    shown = first(80, 24, "gpt2", "bert-base", "llama-2-7b", "--memory", "8GB")
    assert shown[1].startswith("2 of 3 fit in 8 GB: gpt2, bert-base. llama-2-7b against")
    shown = first(80, 24, "llama-3-8b", "--tokens", "8192", "--memory", "24GB")
    assert shown[1] == "Fits in 24 GB: needs 17.13 GB."


def test_masked_pairs_are_left_out(run: Run, first: Any) -> None:
    """Causal attention sees half of the n² pairs; the whole is in everything alone."""
    shape = ("--d-model", "64", "--heads", "4", "--tokens", "1000")
    projections, pairs = 2 * 1000 * 4 * 64**2, 4 * 1000**2 * 64
    causal, whole = projections + pairs // 2, projections + pairs
    flops = run("params", *shape, "--json").document["flops"]
    assert (flops["total"], flops["total_visible"]) == (whole, causal)
    brief = "\n".join(first(80, 24, *shape))
    assert f"{causal / 1e6:.1f} MFLOP" in brief
    assert f"{whole / 1e6:.1f} MFLOP" not in brief
    assert f"{whole / 1e6:.1f} MFLOP" in run("params", *shape).out
    encoder = run("params", "bert-base", "--json").document["flops"]
    assert encoder["total"] == encoder["total_visible"]


# What the weights are stored in -----------------------------------------------------------------


def checkpoint_of(folder: Path, dtypes: dict[str, int], **fields: Any) -> str:
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


TOTAL = 11 * 12 + 7 * 12 + 2 * (12 * 12**2 + 13 * 12) + 2 * 12


@pytest.mark.parametrize(
    ("dtypes", "fields", "dtype", "size", "stated"),
    [
        ({"F32": TOTAL}, {}, "float32", 4 * TOTAL, "files"),
        ({"F16": TOTAL}, {"dtype": "float32"}, "float16", 2 * TOTAL, "files"),
        ({"F32": TOTAL, "I64": 9}, {}, "float32", 4 * TOTAL, "files"),
        ({"BF16": TOTAL - 24, "F32": 24}, {}, "bfloat16", 2 * TOTAL + 48, "files"),
        ({"F8_E4M3": TOTAL}, {}, "float8_e4m3fn", TOTAL, "files"),
        ({"I32": TOTAL, "F16": 24}, {"torch_dtype": "float16"}, "float16", 4 * TOTAL + 48, "files"),
        ({}, {"torch_dtype": "float32"}, "float32", 4 * TOTAL, "config"),
        ({}, {}, "bfloat16", 2 * TOTAL, None),
    ],
)
def test_the_files_say_what_weights_are_stored_in(
    run: Run,
    tmp_path: Path,
    dtypes: dict[str, int],
    fields: dict[str, Any],
    dtype: str,
    size: int,
    stated: str | None,
) -> None:
    folder = checkpoint_of(tmp_path / "odd", dtypes, **fields)
    document = run("params", folder, "--json").document
    assert document["total"] == TOTAL
    weights = document["weights"]
    assert (weights["dtype"], weights["bytes"], weights["stated_by"]) == (dtype, size, stated)
    assert document["needed_bytes"] == size + document["kv_cache"]["bytes"]
    shown = run("params", folder).out
    assert (f"dtype not stated, counted as {dtype}" in shown) == (stated is None)
    assert ("as its files have them" in shown) == ("I32" in dtypes)
    fit = run("params", folder, "--memory", "1MB", "--json").document["memory"]
    assert fit["weights"] == size


def test_each_dtype_is_stated(run: Run, first: Any, tmp_path: Path) -> None:
    folder = checkpoint_of(tmp_path / "odd", {"BF16": TOTAL - 24, "F32": 24})
    assert run("params", folder, "--json").document["weights"]["other_dtypes"] == {"float32": 24}
    lines = run("params", folder).lines
    for shown in (lines, first(80, 24, folder)):
        assert any(re.match(r" +bfloat16 +7,968 bytes .*3,984 numbers", line) for line in shown)
        assert any(re.match(r" +float32 +96 bytes .*24 numbers", line) for line in shown)


def test_an_option_takes_the_place_of_the_files(run: Run, tmp_path: Path) -> None:
    folder = checkpoint_of(tmp_path / "odd", {"BF16": TOTAL - 24, "F32": 24})
    weights = run("params", folder, "--dtype", "int8", "--json").document["weights"]
    assert (weights["bytes"], weights["stated_by"], weights["other_dtypes"]) == (
        TOTAL,
        "option",
        {},
    )


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"[1]x", b"\x02" * 9])
def test_a_damaged_file_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert stored_weights(tmp_path).numbers == {}


def test_a_real_checkpoint(run: Run, checkpoint: Any) -> None:
    """The header against what the library itself reads from the file."""
    import safetensors

    folder = checkpoint("bert")
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as weights:
        held = sum(weights.get_tensor(name).nbytes for name in weights.keys())  # noqa: SIM118
    assert sum(stored_weights(folder).sizes.values()) == held
    assert run("params", str(folder), "--json").document["weights"]["dtype"] == "float32"
