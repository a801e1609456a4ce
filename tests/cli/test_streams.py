"""Real processes in pipes: readers that leave, closed and full streams, narrow encodings."""

import os
import subprocess

import pytest

from ..terminals import POSIX

pytestmark = POSIX

SENTENCE = "The cat sat on the mat because it was tired."


@pytest.fixture
def shell(program, environment, tmp_path):
    """Runs a line of shell in which ``attnviz`` is the command line."""
    script = tmp_path / "attnviz"
    script.write_text(f'#!/bin/sh\nexec "{program[0]}" {program[1]} "{program[2]}" "$@"\n')
    script.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{environment['PATH']}"

    def run(line, **env):
        return subprocess.run(
            ["bash", "-c", line],
            env=environment | {"PATH": path} | env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("arguments", "reader"), [(f'heads "{SENTENCE}"', "head -1"), ("heads --help", "true")]
)
def test_a_reader_that_leaves(shell, arguments, reader):
    done = shell(f'attnviz {arguments} | {reader}; echo "${{PIPESTATUS[0]}}"')
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.parametrize("arguments", [f'heads "{SENTENCE}"', "--help"])
def test_closed_standard_output(shell, arguments):
    done = shell(f"attnviz {arguments} >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_standard_error_and_input(shell):
    assert shell("attnviz heads a --layer 9 2>&-").returncode == 2
    done = shell("attnviz heads - <&-")
    assert done.returncode == 2
    assert done.stderr.startswith("attnviz: standard input is closed")


def test_a_pipe_is_80_columns_wide_and_without_colour(shell):
    done = shell(f'attnviz heads "{SENTENCE}" --explain')
    assert max(map(len, done.stdout.splitlines())) in range(60, 81)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "env",
    [
        {"LANG": "C", "LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "cp1252"},
    ],
)
@pytest.mark.long
def test_poor_locales(shell, env):
    line = 'attnviz heads "나는 오늘 학교에 갔다 ." --model mha --token "갔다"'
    done = shell(line, **env)
    assert (done.returncode, done.stderr) == (0, "")
    carried = "LANG" in env
    assert ("갔다" in done.stdout) == carried
    assert (r"\uac14\ub2e4" in done.stdout) == (not carried)
