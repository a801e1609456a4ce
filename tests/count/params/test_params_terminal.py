"""``attnviz params`` as a process: in a terminal of 80 columns, in a pipe, and what it imports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyte

from ...terminals import in_fresh_process

SHAPE = ("params", "--d-model", "4096", "--heads", "32")
_HEAVY = ("torch", "numpy", "transformers", "huggingface_hub", "tokenizers", "matplotlib")


def test_bars_have_colours_and_lengths(screen: Callable[..., pyte.Screen]) -> None:
    shown = screen(*SHAPE, "--kv-heads", "8", rows=100)
    lengths = {}
    for row, line in enumerate(shown.display):
        name = line.split(" ")[0]
        bar = [column for column in range(80) if shown.buffer[row][column].data in "━╸"]
        if bar:
            assert len({shown.buffer[row][column].fg for column in bar}) == 1
            assert shown.buffer[row][bar[0]].fg != "default"
            lengths[name] = len(bar)
    assert lengths["query"] == lengths["output"]
    assert lengths["key"] == lengths["value"] < lengths["query"]


def test_what_changes_is_bold(screen: Callable[..., pyte.Screen]) -> None:
    shown = screen(*SHAPE, "--compare", "heads=8,32", "--full", rows=100)
    (row,) = [row for row, line in enumerate(shown.display) if line.startswith("heads  ")]
    heading = shown.display[row]
    for below in (row, row + 1, row + 2):
        assert shown.buffer[below][heading.index("head_dim *") + 7].bold
        assert not shown.buffer[below][heading.index("attention") + 8].bold


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """Several commands in one process."""
    commands = (
        SHAPE,
        (*SHAPE, "--json"),
        (*SHAPE, "--compare", "kv-heads=32,8,1", "--explain"),
        ("params", "llama-2-70b", "--tokens", "4096", "--memory", "160GB", "--formula"),
        ("params", "gpt2", "bert-base", "deepseek-v3"),
        (*SHAPE, *(f"--save=x{ending}" for ending in (".json", ".csv", ".md"))),
    )
    code = (
        "import sys; from attnviz.cli.boundary import run\n"
        f"for command in {commands!r}:\n"
        "    sys.argv[1:] = [*command, '--quiet']; assert run() == 0"
    )
    out, err = in_fresh_process(code, _HEAVY, folder=tmp_path)
    assert out
    assert err == ""
