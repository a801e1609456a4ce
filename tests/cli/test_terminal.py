"""The console's width and colours, from options, environment and stream; and its signals."""

import io
import signal
import sys

import pytest

from attnviz.cli.terminal import messages, open_console
from attnviz.errors import UsageError
from attnviz.progress import as_interrupt


class Stream(io.StringIO):
    """A text stream that may claim to be a terminal."""

    def __init__(self, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


@pytest.fixture
def surroundings(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


@pytest.mark.parametrize(
    ("terminal", "choice", "env", "expected"),
    [
        (True, "auto", {}, "256"),
        (True, "auto", {"COLORTERM": "truecolor"}, "truecolor"),
        (True, "auto", {"TERM": "dumb"}, None),
        (True, "auto", {"NO_COLOR": "1"}, None),
        (True, "never", {}, None),
        (True, "always", {"NO_COLOR": "1"}, "256"),
        (True, "auto", {"FORCE_COLOR": "0"}, "256"),
        (False, "auto", {}, None),
        (False, "auto", {"FORCE_COLOR": "1"}, "truecolor"),
        (False, "auto", {"FORCE_COLOR": "0"}, None),
        (False, "auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, None),
        (False, "always", {}, "truecolor"),
        (False, "never", {"FORCE_COLOR": "1"}, None),
    ],
)
def test_colours(surroundings, terminal, choice, env, expected):
    for name, value in env.items():
        surroundings.setenv(name, value)
    surroundings.setattr(sys, "stdout", Stream(terminal))
    console = open_console(80, choice)
    assert (None if console.no_color else console.color_system) == expected


def test_a_width_that_can_be_drawn_in(surroundings):
    for width in (20, 80, 1000):
        assert open_console(width, "auto").width == width
        surroundings.setenv("COLUMNS", str(width))
        assert open_console(None, "auto").width == width
    for width in (0, 10, 19, 1001, 10_000):
        with pytest.raises(UsageError, match=f"--width is {width} columns: .* 20 to 1000"):
            open_console(width, "auto")
    for width in (10, 10_000):
        surroundings.setenv("COLUMNS", str(width))
        with pytest.raises(UsageError, match=f"this terminal is {width} columns"):
            open_console(None, "auto")


def test_messages_are_no_terminal_in_a_pipe(surroundings):
    surroundings.setenv("FORCE_COLOR", "1")
    surroundings.setattr(sys, "stderr", Stream(terminal=False))
    assert not messages(quiet=False).is_terminal
    surroundings.setattr(sys, "stderr", Stream(terminal=True))
    assert messages(quiet=False).is_terminal
    assert messages(quiet=True).quiet


def test_a_request_to_end_interrupts_as_ctrl_c_does():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
