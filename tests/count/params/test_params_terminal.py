"""``attnviz params`` as a process: in a terminal of 80 columns, in a pipe, and what it imports."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pyte
import pytest

from ...terminals import in_fresh_process

SHAPE = ("params", "--d-model", "4096", "--heads", "32")
_HEAVY = ("torch", "numpy", "transformers", "huggingface_hub", "tokenizers", "matplotlib")


def test_bars_have_colours_and_lengths(
    screen: Callable[..., pyte.Screen],
) -> None:
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


def test_what_changes_is_bold(
    screen: Callable[..., pyte.Screen],
) -> None:
    shown = screen(*SHAPE, "--compare", "heads=8,32", "--full", rows=100)
    (row,) = [row for row, line in enumerate(shown.display) if line.startswith("heads  ")]
    heading = shown.display[row]
    for below in (row, row + 1, row + 2):
        assert shown.buffer[below][heading.index("head_dim *") + 7].bold
        assert not shown.buffer[below][heading.index("attention") + 8].bold


def test_a_pipe_gets_plain_text(program: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        [*program, *SHAPE], env=environment, capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    quick = subprocess.run(
        [*program, "params", "llama-2-70b", "--json"], env=environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert '"total": 68976648192' in quick.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        SHAPE,
        (*SHAPE, "--json"),
        (*SHAPE, "--compare", "kv-heads=32,8,1", "--explain"),
        ("params", "llama-2-70b", "--tokens", "4096", "--memory", "160GB", "--formula"),
        ("params", "gpt2", "bert-base", "deepseek-v3"),
        (*SHAPE, *(f"--save=x{ending}" for ending in (".json", ".csv", ".md"))),
    ],
    ids=["shape", "json", "compare", "name", "names", "save"],
)
def test_nothing_heavy_is_imported(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code = "from attnviz.cli.boundary import run; run()"
    out, err = in_fresh_process(code, _HEAVY, *arguments, "--quiet", folder=tmp_path)
    assert out
    assert err == ""
