"""The text while it is written: it grows, is gone at the end, and Ctrl-C keeps what is there."""

from __future__ import annotations

import pytest

from attnviz.inspect.generate.data import read_run
from attnviz.inspect.generate.live import unfinished
from attnviz.records import Tokens

from ...terminals import finished, interrupted, on_screen, rows

PROMPT = "The cat sat on the mat because"


def test_the_text_grows_and_the_screen_is_what_stays(start):
    child = start("generate", PROMPT, "--tokens", "30")
    child.expect(r"of 30 tokens")
    output = child.before + child.after + finished(child)
    assert output.count("of 30 tokens") > 1
    shown = [line for line in rows(on_screen(output)) if line]
    assert shown[0].startswith("tiny · greedy · 9 + 30 tokens")
    assert not any("of 30 tokens" in line for line in shown)
    assert shown[-1].endswith("--full: everything")


def test_what_was_written_stays_when_it_is_interrupted(start, tmp_path):
    child = start("generate", PROMPT, "--tokens", "900", "--temperature", "1", "--save", "a.jsonl")
    child.expect(r"of 900 tokens")
    child.expect(r"of 900 tokens")
    output = interrupted(child)
    shown = rows(on_screen(output))
    assert any("interrupted" in line for line in shown)
    assert "saved a.jsonl" in output
    run = read_run((tmp_path / "a.jsonl").read_bytes(), "a.jsonl")
    assert run.ending == "interrupted"
    assert 0 < len(run.steps) < 900


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        ((" a", "b"), 0),
        ((" a", "<0xED>"), 1),
        ((" a<0xED>", "<0x95>"), 2),
        (("<0xED>", "<0x95>", "<0x9C>"), 0),
        (("<0xF0><0x9F>", "<0x8E>"), 2),
        (("<0xED>", "<0x95><0x9C><0xED>"), 1),
        (("<0x98>", "<0x98>"), 0),
        ((), 0),
    ],
)
def test_half_of_a_character_waits_for_the_rest(texts, count):
    tokens = Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))
    assert unfinished(tokens) == count
