"""A real terminal: what the screen shows cell by cell, and what Ctrl-C does."""

import time

import pytest

from attnviz.models.bundled import Bundled

from ..terminals import interrupted, rows

SENTENCE = "The cat sat on the mat because it was tired."
WORDS = ("The", "cat", "sat", "on", "because", "it", "was")
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
NAMES = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]


def colours(screen):
    return {
        colour
        for line in screen.buffer.values()
        for cell in line.values()
        for colour in (cell.fg, cell.bg)
        if colour != "default"
    }


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60)])
def test_the_first_answer(screen, columns, lines):
    shown = screen("heads", SENTENCE, columns=columns, rows=lines)
    text = [line for line in rows(shown) if line]
    assert text[0].startswith(f"tiny · {LAYERS} layers × {HEADS} heads · 13 tokens · The cat sat")
    assert text[1].startswith("L5H2 (subject) links “was” to “cat” (.66).")
    assert text[-1].endswith("--full: everything")
    assert all(word in "\n".join(text) for word in WORDS)
    assert len(colours(shown)) > 30


def test_a_large_terminal_names_every_head(screen):
    text = "\n".join(rows(screen("heads", SENTENCE, columns=200, rows=60)))
    assert all(name in text for name in NAMES)


@pytest.mark.parametrize("columns", [20, 80])
@pytest.mark.long
def test_nothing_wraps(screen, columns):
    """A line that ran over the right edge would leave a row more than the stream has lines."""
    arguments = ("heads", SENTENCE, "--explain", "--head", "L0H0,2")
    shown = screen(*arguments, columns=columns)
    wider = screen(*arguments, "--width", str(columns), columns=columns + 40)
    assert rows(shown) == rows(wider)


def test_maps_are_coloured_cell_by_cell(screen):
    shown = screen("heads", SENTENCE, "--head", "L0H2", "--values")
    lines = rows(shown)
    row = next(index for index, line in enumerate(lines) if line.rstrip().endswith(" sat"))
    cells = [shown.buffer[row][column] for column in range(80)]
    backgrounds = [cell.bg for cell in cells if cell.bg != "default"]
    assert len(set(backgrounds)) >= 2
    inks = {cell.fg for cell in cells if cell.bg != "default"} - {"default"}
    assert inks  # the value is written in a colour that stands out from its cell


def test_wide_characters_stay_in_their_columns(screen):
    shown = screen("heads", "나는 오늘 학교에 갔다 .", "--model", "mha", "--head", "0")
    lines = [line for line in rows(shown) if "학교에" in line]
    assert lines
    assert max(map(len, rows(shown))) <= 80


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
