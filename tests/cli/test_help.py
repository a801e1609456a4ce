"""Help, version, and what the shell is offered."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import attnviz
from attnviz.cli.app import COMMANDS, GROUPS
from attnviz.cli.heads import EXAMPLES
from attnviz.cli.options import complete_model
from attnviz.models.shapes import shape_names

from ..conftest import POSIX


def test_version(run: Any) -> None:
    result = run("--version")
    assert (result.code, result.out, result.err) == (0, f"attnviz {attnviz.__version__}\n", "")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(run: Any, option: str) -> None:
    result = run(option)
    assert (result.code, result.err) == (0, "")
    assert "See where each attention head looks" in result.out
    assert "heads" in result.out
    assert run().out == result.out


def test_all_commands_fit_one_small_screen(run: Any) -> None:
    lines = run("--help", env={"COLUMNS": "80"}).lines
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    for name, does in COMMANDS.items():
        assert sum(f" {name.ljust(10)}{does}" in line for line in lines) == 1, name


def test_there_is_room_for_twenty_six_commands(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    further = [f"further{number}" for number in range(26 - len(COMMANDS))]
    for group, names in (("Look", further[::2]), ("Measure", further[1::2])):
        more = dict.fromkeys(names, "Tell what is of interest.")
        monkeypatch.setitem(GROUPS, group, GROUPS[group] | more)
    lines = run("--help", env={"COLUMNS": "80"}).lines
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert "\n".join(lines).count("Tell what is of interest.") == len(further)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_of_heads(run: Any, option: str) -> None:
    result = run("heads", option, env={"COLUMNS": "100"})
    assert (result.code, result.err) == (0, ""), result
    assert "Examples" in result.out
    assert 'attnviz heads "The cat sat on the mat because it was tired."' in result.out
    for name in (
        *("--layer", "--head", "--kind", "--target", "--truncate", "--values", "--top", "--token"),
        *("--sort", "--reverse", "--index-base", "--model", "--seed", "--d-model", "--heads"),
        *(
            "--kv-heads",
            "--causal",
            "--compare-mask",
            "--score",
            "--device",
            "--dtype",
            "--revision",
            "--offline",
            "--file",
        ),
        *("--trust-remote-code", "--allow-pickle", "--json", "--save", "--palette", "--color"),
        *("--ascii", "--width", "--explain", "--quiet"),
    ):
        assert re.search(rf"{name}\b", result.out), name
    assert max(map(len, result.lines)) <= 100


def test_every_example_of_the_help_runs(run: Any, tmp_path: Path) -> None:
    """Those that need a file or a checkpoint of the reader's own aside."""
    examples = [line for line in EXAMPLES.splitlines() if line.startswith("attnviz ")]
    assert len(examples) >= 4
    (tmp_path / "story.txt").write_text("The cat sat on the mat.")
    for example in examples:
        arguments = shlex.split(example)[1:]
        if "./my-checkpoint" not in arguments:
            assert run(*arguments).code == 0, example


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("t", ["tiny"]), ("m", ["mha"]), ("configs/gpt2-medi", ["configs/gpt2-medium"]), ("xyz", [])],
)
def test_model_names_are_offered(typed: str, offered: list[str]) -> None:
    assert complete_model(typed) == offered


def test_every_named_shape_is_offered() -> None:
    assert complete_model("") == ["tiny", "mha", *(f"configs/{name}" for name in shape_names())]


def test_the_completion_of_bash(program: Any, environment: dict[str, str]) -> None:
    def offered(line: str) -> list[str]:
        variables = {
            "_ATTNVIZ_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        done = subprocess.run(
            program, env=environment | variables, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert offered("attnviz he") == ["heads"]
    assert offered("attnviz heads --model t") == ["tiny"]
    assert offered("attnviz heads -m mh") == ["mha"]
    assert offered("attnviz heads --pal") == ["--palette"]
    assert offered("attnviz heads --palette ma") == ["magma"]
    assert {"entropy", "previous-token"} <= {*offered("attnviz heads --sort ")}


@POSIX
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_show_completion(program: Any, environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "show.sh"
    script.write_text(f"{shlex.join(program)} --show-completion; true\n")  # detected by the parent
    done = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert "_ATTNVIZ_COMPLETE=complete_bash" in done.stdout
