"""``attnviz explore`` in a real terminal: what it writes, refuses, imports, and how it ends."""

import json
import os
import re
import signal
import sys
import time

import pexpect
import pytest

termios = pytest.importorskip("termios")

SENTENCE = "The cat sat on the mat because it was tired."


def settings(child):
    """How the terminal takes keys, which a program that ends must leave as it was."""
    return termios.tcgetattr(child.child_fd)[:4]


def sent(child, keys, quiet=0.4):
    """What is written after some keys, until nothing more comes."""
    child.send(keys)
    written, end = "", time.monotonic() + 20
    while time.monotonic() < end:
        try:
            written += child.read_nonblocking(1 << 20, timeout=quiet)
        except pexpect.TIMEOUT:
            if written:
                break
        except pexpect.EOF:
            break
    return written


@pytest.fixture
def spawned(environment, tmp_path):
    """A script in a terminal of its own."""

    def call(script, *arguments):
        return pexpect.spawn(
            sys.executable,
            ["-c", script, *arguments],
            env=environment | {"TERM": "xterm-256color"},
            cwd=tmp_path,
            encoding="utf-8",
            timeout=600,
        )

    return call


@pytest.fixture
def opened(start):
    """The app over a sentence, drawn, and how the terminal was before."""

    def call(*arguments, **settings_):
        child = start("explore", *arguments, **settings_)
        before = settings(child)
        child.expect("tiny", timeout=600)
        sent(child, "")
        return child, before

    return call


def ended(child, before):
    """What is written at the end: the terminal must be as it was, on its own screen."""
    try:
        rest = child.read()
    except OSError:
        rest = ""
    child.wait()
    assert settings(child) == before
    return rest


@pytest.mark.long
def test_keys_that_are_typed_ahead_meet_what_they_are_for(opened, tmp_path):
    """Each a single write, as over a slow line: a letter of them as a command would end it."""
    child, before = opened(SENTENCE)
    assert "no token has “quit” in it" in sent(child, "/quit\r", quiet=1.0)
    assert "“" in sent(child, "e\x15Buck gxq ran\r", quiet=1.0)
    sent(child, "s\x15quit.json\r", quiet=1.0)
    assert json.loads((tmp_path / "quit.json").read_text())["text"] == "Buck gxq ran"
    assert "Generating" in sent(child, "?xg", quiet=1.0)
    child.send("?q")
    sent(child, "", quiet=1.0)
    child.send("/q\rq")
    rest = ended(child, before)
    assert child.exitstatus == 0
    assert "Traceback" not in rest


@pytest.mark.parametrize("way", ["\x03", pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_it_is_interrupted(opened, way):
    child, before = opened()
    if isinstance(way, str):
        child.send(way)
    else:
        child.kill(way)
    rest = ended(child, before)
    assert (child.exitstatus, child.signalstatus) == (130, None)
    assert "\x1b[?1049l" in rest
    assert "attnviz: interrupted" in rest


BROKEN = """
from attnviz.inspect.explore.app import Actions
Actions.restore = lambda self: 1 / 0
from attnviz.cli.main import main
main()
"""


@pytest.mark.long
def test_what_nobody_expected_is_one_line_and_the_terminal_is_restored(spawned):
    child = spawned(BROKEN, "explore")
    before = settings(child)
    child.expect("tiny")
    sent(child, "")
    child.send("X")
    rest = ended(child, before)
    assert child.exitstatus == 1
    told = re.sub(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[=>]", "", rest.rpartition("\x1b[?1049l")[2])
    assert "attnviz: unexpected ZeroDivisionError" in told
    assert "Traceback" not in rest


@pytest.mark.long
def test_a_terminal_that_closes_gives_the_documented_code(opened):
    child, _ = opened(SENTENCE)
    child.ptyproc.fileobj.close()
    _, status = os.waitpid(child.pid, 0)
    child.closed = child.terminated = child.ptyproc.closed = child.ptyproc.terminated = True
    assert os.waitstatus_to_exitcode(status) == 130


@pytest.mark.long
@pytest.mark.parametrize(
    "setting",
    [
        {
            "TEXTUAL_LOG": "/nonexistent/x",
            "TEXTUAL_DRIVER": "nowhere:Driver",
            "TEXTUAL_COLOR_SYSTEM": "x",
            "TEXTUAL_FPS": "-1",
            "COLUMNS": "999999999",
            "LINES": "999999999",
        },
        {"COLUMNS": "-5"},
    ],
    ids=["all", "less than no columns"],
)
def test_what_textual_would_read_does_not_decide(opened, setting):
    child, before = opened(SENTENCE, **setting)
    child.send("q")
    ended(child, before)
    assert child.exitstatus == 0


def test_a_terminal_that_cannot_move_its_cursor_is_refused(start):
    child = start("explore", "A text.", TERM="dumb")
    told = child.read()
    child.wait()
    assert child.exitstatus == 2
    assert "attnviz heads 'A text.'" in " ".join(told.split())
    assert "\x1b" not in told


WATCHED = """
import sys
sys.modules[sys.argv.pop()] = None
from attnviz.cli.boundary import run
sys.exit(run())
"""


@pytest.mark.parametrize("state", ["textual", "textual.app"])
def test_without_textual_one_line_says_how_to_get_it(spawned, state):
    child = spawned(WATCHED, "explore", state)
    told = " ".join(child.read().split())
    child.wait()
    assert child.exitstatus == 5
    assert told.startswith("attnviz: explore needs textual: pip install 'attnviz[tui]'")
