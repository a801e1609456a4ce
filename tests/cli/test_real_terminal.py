"""A real terminal: what the screen shows cell by cell, and what Ctrl-C does."""

from __future__ import annotations

import time

import pyte
import pytest

from attnviz.models.bundled import Bundled

from ..conftest import Start, interrupted, rows

SENTENCE = "The cat sat on the mat because it was tired."
WORDS = ("The", "cat", "sat", "on", "because", "it", "was")
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
NAMES = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]
_FIRST_LINES = 45
"""Lines in which the answer has shown every head, whatever the terminal's height."""


def colours(screen: pyte.Screen) -> set[str]:
    return {
        colour
        for line in screen.buffer.values()
        for cell in line.values()
        for colour in (cell.fg, cell.bg)
        if colour != "default"
    }


@pytest.mark.parametrize("columns", [80, 200])
def test_the_first_answer(screen, columns: int) -> None:
    shown = screen("heads", SENTENCE, columns=columns)
    text = "\n".join(rows(shown))
    assert rows(shown)[0].startswith("tiny · revision ")
    lines = rows(shown)
    top = next(row for row, line in enumerate(lines) if line.startswith("    H0 "))
    starts = [lines[top].index(f"H{head}") for head in range(HEADS)]
    below = lines[top + 1 : lines.index("", top)]
    named = [line for line in below if line.startswith("L")]
    assert [line.split()[0] for line in named] == [f"L{layer}" for layer in range(LAYERS)]
    assert all(line[start] == "▀" for line in named for start in starts)  # each head's map
    legend = next(row for row, line in enumerate(lines) if line.startswith("labels"))
    assert legend < _FIRST_LINES
    assert all(word in text for word in WORDS)
    assert "The most distinctive heads" in text
    assert "weight" in text
    assert len(colours(shown)) > 30
    used = [len(line) for line in rows(shown)]
    assert max(used) <= columns
    assert max(used) > 0.6 * columns  # a wide terminal is used


@pytest.mark.parametrize("columns", [80, 200])
def test_a_tall_terminal_names_every_head(screen, columns: int) -> None:
    text = "\n".join(rows(screen("heads", SENTENCE, columns=columns, rows=80)))
    assert all(name in text for name in NAMES)


@pytest.mark.parametrize("columns", [20, 47, 80, 200])
def test_nothing_wraps(screen, columns: int) -> None:
    """A line that ran over the right edge would leave a row more than the stream has lines."""
    arguments = ("heads", SENTENCE, "--explain", "--head", "L0H0,2")
    shown = screen(*arguments, columns=columns)
    wider = screen(*arguments, "--width", str(columns), columns=columns + 40)
    assert rows(shown) == rows(wider)


def test_maps_are_coloured_cell_by_cell(screen) -> None:
    shown = screen("heads", SENTENCE, "--head", "L0H2", "--values")
    lines = rows(shown)
    row = next(index for index, line in enumerate(lines) if line.strip().startswith("sat "))
    cells = [shown.buffer[row][column] for column in range(80)]
    backgrounds = [cell.bg for cell in cells if cell.bg != "default"]
    assert len(set(backgrounds)) >= 2
    inks = {cell.fg for cell in cells if cell.bg != "default"} - {"default"}
    assert inks  # the value is written in a colour that stands out from its cell


@pytest.mark.parametrize(
    ("env", "options"),
    [({"NO_COLOR": "1"}, []), ({"TERM": "dumb"}, []), ({}, ["--color", "never"])],
)
def test_without_colour_glyphs_tell(screen, env: dict[str, str], options: list[str]) -> None:
    shown = screen("heads", SENTENCE, "--head", "L1H0", *options, **env)
    text = "\n".join(rows(shown))
    assert not colours(shown)
    assert "▀" not in text
    assert {"·", "░", "▓", "█"} <= set(text)


def test_256_colours(screen) -> None:
    shown = screen("heads", SENTENCE, COLORTERM="")
    assert len(colours(shown)) > 10


def test_wide_characters_stay_in_their_columns(screen) -> None:
    shown = screen("heads", "나는 오늘 학교에 갔다 .", "--model", "mha", "--head", "0")
    lines = [line for line in rows(shown) if "학교에" in line]
    assert lines
    assert max(map(len, rows(shown))) <= 80


def test_a_terminal_too_narrow(start: Start) -> None:
    child = start("heads", SENTENCE, columns=10)
    output = child.read()
    child.wait()
    assert child.exitstatus == 2
    flat = output.replace("\r\n", "")
    assert "this terminal is 10 columns: a map needs 20 to 1000" in flat
    assert "Traceback" not in output


def test_ctrl_c_while_waiting_for_a_text(start: Start) -> None:
    child = start("heads", "-")
    child.sendline("The cat")
    time.sleep(1)  # the imports before it reads take a fifth of that
    output = interrupted(child)
    assert output.replace("^C", "").splitlines() == ["The cat", "attnviz: interrupted"]


def test_ctrl_c_while_a_model_is_opened(start: Start, checkpoint) -> None:
    child = start("heads", "the cat", "--model", str(checkpoint("gpt2")))
    child.expect("opening")
    assert "attnviz: interrupted" in interrupted(child)


def test_a_directory_with_its_spinner(screen, checkpoint) -> None:
    shown = screen("heads", "the cat sat", "--model", str(checkpoint("gpt2")), columns=100)
    text = "\n".join(rows(shown))
    assert "opening" not in text  # gone once the model is there
    assert "2 layers × 3 heads" in text
    assert "L1H2" in text
