"""The entry point: exit codes reach the system, and Ctrl-C ends in a line even during imports."""

import gc
import os
import subprocess
import sys

import pytest

from attnviz.cli import boundary
from attnviz.cli.main import main

from ..quick import one_in


@pytest.fixture(autouse=True)
def _collecting(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)  # this process goes on


def code_of(call):
    with pytest.raises(SystemExit) as end:
        call()
    return end.value.code


@pytest.mark.parametrize("code", [0, 2, 5])
def test_the_exit_code(monkeypatch, code):
    monkeypatch.setattr(boundary, "run", lambda: code)
    assert code_of(main) == code
    assert os.environ["OPENBLAS_NUM_THREADS"]  # NumPy is held to one thread


def test_ctrl_c_in_a_run_and_during_imports(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    class Interrupting:
        def find_spec(self, name, *_):
            if name == "attnviz.cli.boundary":
                raise KeyboardInterrupt

    monkeypatch.setattr(boundary, "run", interrupted)
    assert code_of(main) == 130
    assert capsys.readouterr() == ("", "attnviz: interrupted\n")
    monkeypatch.delitem(sys.modules, "attnviz.cli.boundary")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert code_of(main) == 130
    assert capsys.readouterr() == ("", "attnviz: interrupted\n")


def test_a_command_without_torch_says_so_in_one_line():
    """In a process of its own, in which torch cannot be imported."""
    lines = "import sys; sys.modules['torch'] = None; from attnviz.cli.boundary import run; "
    asked = "sys.argv = ['attnviz', 'why', 'The cat', '--model', 'configs/gpt2']; sys.exit(run())"
    told = subprocess.run([sys.executable, "-c", lines + asked], capture_output=True, text=True)
    assert told.returncode == 3
    assert told.stderr == (
        "attnviz: this command needs torch, which is not installed: pip install torch\n"
    )


@pytest.mark.parametrize(
    "line", one_in(4, ["patterns", "ablate", "atlas", "retrieve --lengths 96"])
)
def test_a_share_of_a_corpus_is_no_interrupted_run(run, tmp_path, line):
    (tmp_path / "texts.txt").write_text("The cat sat on the mat because it was tired. " * 12)
    result = run(*line.split(), "--texts", "texts.txt", "--shard", "0/2", "--json")
    assert result.code == 0, result
