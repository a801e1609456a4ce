"""Pictures in all pixels: the bytes for kitty and sixel terminals, and silence everywhere else."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from attnviz.draw import document as doc
from attnviz.draw.blocks import beside
from attnviz.draw.picture import overlays, pictures_block, protocol_of
from attnviz.draw.theme import Theme

SQUARE = np.zeros((16, 16, 3), np.uint8)
SQUARE[:8, :8] = 255


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A console in a terminal of a name; further variables of its environment."""

    def make(name="", height=40, **more):
        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("sys.stdout", Terminal())
        for variable in ("SSH_CONNECTION", "SSH_TTY", "TMUX", "STY", "CI", "TERM_PROGRAM"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in ({"TERM": name} | more).items():
            monkeypatch.setenv(variable, value)
        return Console(file=Terminal(), force_terminal=True, width=80, height=height)

    return make


def drawn(console):
    """What is written over two pictures side by side, 8 columns by 4 lines each."""
    theme = replace(Theme(), pictures=[])
    part = doc.Pictures([doc.Picture(SQUARE)], lines=4)
    block = beside([pictures_block(part, theme, 8), pictures_block(part, theme, 8)])
    return "".join(overlays(block, theme, console))


def test_kitty_gets_each_picture_where_its_half_blocks_are(terminal):
    written = drawn(terminal("xterm-kitty"))
    places = re.findall(
        r"\x1b7\x1b\[(\d+)A\x1b\[(\d+)G\x1b_G([^;]*);(.*?)\x1b8", written, re.DOTALL
    )
    assert [place[:2] for place in places] == [("4", "1"), ("4", "12")]
    for *_, facts, message in places:
        assert facts == "a=T,f=100,c=8,r=4,C=1,q=2,m=0"
        image = Image.open(io.BytesIO(base64.b64decode(message.removesuffix("\x1b\\"))))
        assert image.size == (80, 80)
        assert (image.getpixel((2, 2)), image.getpixel((70, 70))) == ((255,) * 3, (0,) * 3)


def test_a_long_picture_goes_in_pieces(terminal, monkeypatch):
    monkeypatch.setattr("attnviz.draw.picture._CHUNK", 64)
    parts = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", drawn(terminal("xterm-ghostty")))
    first = parts[: len(parts) // 2]
    assert [facts for facts, _ in first[1:]] == ["m=1"] * (len(first) - 2) + ["m=0"]
    data = base64.b64decode("".join(piece for _, piece in first))
    assert Image.open(io.BytesIO(data)).size == (80, 80)


def test_a_terminal_of_sixels(terminal):
    written = drawn(terminal("foot"))
    assert written.count("\x1bP") == written.count("\x1b\\") == 2
    assert re.match(r"\x1b7\x1b\[4A\x1b\[1G\x1bP[0-9;]*q", written)
    assert written.endswith("\x1b8")


def test_a_picture_above_the_screen_keeps_its_half_blocks(terminal):
    assert drawn(terminal("xterm-kitty", height=4)) == ""
    assert drawn(terminal("xterm-kitty", height=5)) != ""


@pytest.mark.parametrize(
    "about",
    [
        {"name": "xterm-256color"},
        {"name": "xterm-kitty", "SSH_TTY": "/dev/pts/1"},
        {"name": "xterm-kitty", "TMUX": "1"},
        {"name": "foot", "CI": "true"},
    ],
)
def test_elsewhere_there_are_half_blocks_alone(terminal, about):
    assert drawn(terminal(**about)) == ""


def test_no_terminal_is_asked_anything(terminal, monkeypatch):
    console = terminal("foot")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert protocol_of(console) is None
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("attnviz.draw.picture.find_spec", lambda name: None)
    assert protocol_of(console) is None  # without the extra
    assert protocol_of(Console(file=io.StringIO())) is None
