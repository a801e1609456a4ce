"""Whole processes: exit codes, Ctrl-C even during imports, and a terminal cell by cell."""

import gc
import os
import subprocess
import sys
import time

import pytest

from attnviz.cli import boundary
from attnviz.cli.main import main
from attnviz.models.bundled import Bundled

from ..terminals import interrupted, rows

SENTENCE = "The cat sat on the mat because it was tired."
WORDS = ("The", "cat", "sat", "on", "because", "it", "was")
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads


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


def colours(screen):
    return {
        colour
        for line in screen.buffer.values()
        for cell in line.values()
        for colour in (cell.fg, cell.bg)
        if colour != "default"
    }


def test_the_first_answer(screen):
    shown = screen("heads", SENTENCE)
    text = [line for line in rows(shown) if line]
    assert text[0].startswith(f"tiny · {LAYERS} layers × {HEADS} heads · 13 tokens · The cat sat")
    assert text[1].startswith("L5H2 (subject) attends (.66) from “was” to “cat”.")
    assert text[-1].endswith("--full: everything")
    assert all(word in "\n".join(text) for word in WORDS)
    assert len(colours(shown)) > 30


@pytest.mark.long
def test_ctrl_c_while_waiting_for_a_text(start):
    child = start("heads", "-")
    child.sendline("The cat")
    time.sleep(1)  # the imports before it reads take a fifth of that
    output = interrupted(child)
    assert output.replace("^C", "").splitlines() == ["The cat", "attnviz: interrupted"]


def test_ctrl_c_while_a_model_is_opened(start, checkpoint):
    child = start("heads", "the cat", "--model", str(checkpoint("gpt2")))
    child.expect("opening")
    assert "attnviz: interrupted" in interrupted(child)


def test_a_directory_with_its_spinner(screen, checkpoint):
    shown = screen("heads", "the cat sat", "--model", str(checkpoint("gpt2")), columns=100)
    text = "\n".join(rows(shown))
    assert "opening" not in text  # gone once the model is there
    assert "2 layers × 3 heads" in text
    assert "--head L" in text
