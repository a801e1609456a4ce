"""``attnviz explore`` in a real terminal: what it writes, refuses, imports, and how it ends."""

import json
import os
import re
import signal
import sys
import time

import pexpect
import pytest

from ...test_import_hygiene import HEAVY

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
from attnviz.inspect.explore.desk import Actions
Actions.restore = lambda self: 1 / 0
from attnviz.cli.main import main
main()
"""


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


@pytest.mark.long
def test_steps_are_small_over_ssh(opened, tmp_path):
    """Bytes of a step and of another head in 256 colours; the benchmark has the goal's own map."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on it . " * 6)
    child, before = opened("--file", "text.txt", columns=120, rows=40, COLORTERM="")
    steps = [len(sent(child, key).encode()) for key in ("h", "k", "k", "j", "l")]
    head = len(sent(child, ">").encode())
    child.send("q")
    ended(child, before)
    assert max(steps) < 2_500
    assert sorted(steps)[2] < 1_500
    assert head < 40_000


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["A text."], "attnviz heads 'A text.'"),
        (
            ["a", "--model", "mha", "--causal", "--heads", "2"],
            "heads a --model mha --heads 2 --causal",
        ),
        (["--file", "x.txt", "--index-base", "1"], "attnviz heads --file x.txt --index-base 1"),
        (["a", "--palette", "magma", "--ascii"], "attnviz heads a --palette magma --ascii"),
        (["a", "--with", "b c"], "attnviz heads a, and again for b c"),
    ],
)
def test_a_pipe_is_refused_and_the_command_to_use_named(refused, arguments, named):
    told = refused(2, "explore", *arguments)
    assert told.startswith("explore needs a terminal, and standard input is no terminal: use ")
    assert named in told


def test_a_terminal_that_cannot_move_its_cursor_is_refused(start):
    child = start("explore", "A text.", TERM="dumb")
    told = child.read()
    child.wait()
    assert child.exitstatus == 2
    assert "attnviz heads 'A text.'" in " ".join(told.split())
    assert "\x1b" not in told


@pytest.mark.long
def test_a_directory_and_an_empty_file_are_named_as_what_they_are(start, tmp_path):
    (tmp_path / "empty.json").touch()
    for given, said, code in ((f"{tmp_path}/", "is a directory", 2), ("empty.json", "is empty", 3)):
        child = start("explore", given, columns=200)
        told = " ".join(child.read().split())
        child.wait()
        assert (said in told, child.exitstatus) == (True, code), told


WATCHED = """
import json, sys
if "--without" in sys.argv:
    sys.argv.remove("--without")
    sys.modules["textual"] = None
if "--broken" in sys.argv:
    sys.argv.remove("--broken")
    sys.modules["textual.app"] = None
from attnviz.cli.boundary import run
code = run()
with open("modules.json", "w") as stream:
    json.dump(sorted({name.partition(".")[0] for name in sys.modules}), stream)
sys.exit(code)
"""


@pytest.mark.parametrize("state", ["--without", "--broken"])
def test_without_textual_one_line_says_how_to_get_it(spawned, state):
    child = spawned(WATCHED, "explore", state)
    told = " ".join(child.read().split())
    child.wait()
    assert child.exitstatus == 5
    assert told.startswith("attnviz: explore needs textual: pip install 'attnviz[tui]'")


@pytest.mark.long
def test_the_bundled_model_is_explored_without_torch(spawned, tmp_path):
    """Not even when heads are removed, all of them measured, and a text is written."""
    child = spawned(WATCHED, "explore", SENTENCE, "--head", "L1H2")
    child.expect("induction")
    sent(child, "")
    sent(child, "x")
    sent(child, "i", quiet=1.0)
    sent(child, "g", quiet=1.0)
    child.send("q")
    child.read()
    child.wait()
    modules = set(json.loads((tmp_path / "modules.json").read_text()))
    assert "textual" in modules
    assert not modules & HEAVY
