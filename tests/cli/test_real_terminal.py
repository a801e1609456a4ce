"""A real terminal: what the screen shows cell by cell, and what Ctrl-C does."""

import time

import pytest

from attnviz.models.bundled import Bundled

from ..terminals import interrupted, rows

SENTENCE = "The cat sat on the mat because it was tired."
WORDS = ("The", "cat", "sat", "on", "because", "it", "was")
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads


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
    assert text[1].startswith("L5H2 (subject) links “was” to “cat” (.66).")
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
