"""The short answer for programs is small, and has the numbers that the screen shows."""

import json

import pytest

from attnviz.draw.document import Column, Document, Group, Row, Table
from attnviz.draw.values import brief


def answer(rows, finding="L0H1 wins.", **fields):
    table = Table([Column("head"), Column("score")], [Row(row) for row in rows], **fields)
    return brief("made", Document("made", "Made", [Group([table])], finding=finding))


def test_cells_that_are_numbers_are_numbers():
    told = answer(
        [("L0H1", "-0.5"), ("L1H0", ".87"), ("12", "0"), ("", "1.5e-07"), ("1,024", "9%")]
    )
    assert told["rows"] == [
        ["L0H1", -0.5],
        ["L1H0", 0.87],
        [12, 0],
        [None, 1.5e-07],
        ["1,024", "9%"],
    ]
    assert (told["finding"], told["columns"]) == ("L0H1 wins.", ["head", "score"])


def test_rows_that_are_left_out_are_counted():
    told = answer([(f"L0H{head}", "1") for head in range(24)], hidden=6)
    assert len(told["rows"]) == 10
    assert told["rows_left_out"] == 20


def test_rows_below_headings_take_turns_and_name_their_heading():
    told = answer([("a", "1"), ("b", "2"), ("query",), ("c", "3")])
    assert told["rows"] == [["head: a", 1], ["query: c", 3], ["head: b", 2]]
    assert told["rows_left_out"] == 0


@pytest.mark.parametrize("text", ["나는 오늘 학교에 갔다 " * 40, "\x1b[31m" * 300, "x" * 5000])
def test_it_has_at_most_two_thousand_bytes(text):
    told = answer([(text[:200], "1")] * 12, text)
    printed = json.dumps(told)
    assert len(printed) <= 2000
    assert printed.isascii()


@pytest.mark.parametrize("name", ["heads", "rollout", "why", "lens", "link"])
def test_a_command_prints_it(redrawn, name):
    result = redrawn(name, "When Nancy met John, nobody knew why Nancy met", "--brief")
    assert (result.code, len(result.lines)) == (0, 1)
    assert len(result.out) <= 2000
    told = json.loads(result.out)
    assert told["command"] == name
    assert told["finding"]
    assert 1 <= len(told["rows"]) <= 10 or name == "rollout"
