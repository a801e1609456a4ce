"""Rows of a file come as they are, and what is damaged is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnviz.errors import AttnvizError, LoadError, UsageError
from attnviz.texts import read_rows

JSON = '{"a": "one, \\"two\\"", "b": "3"}\n\n{"b": "é", "a": "x", "c": null}\n'
CSV = '\ufeffb,a\r\n3,"one, ""two"""\r\n\r\né,x\r\n'


@pytest.mark.parametrize(
    ("name", "content"), [("r.jsonl", JSON), ("r", JSON), ("r.csv", CSV), ("r.txt", CSV)]
)
def test_json_lines_and_csv_are_the_same(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    found = read_rows(path, "--rows", ["a"], ["b", "c"])
    assert found.rows == ({"a": 'one, "two"', "b": "3"}, {"a": "x", "b": "é"})
    assert found.lines == ((1, 3) if content is JSON else (2, 4))
    assert found.source == str(path)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("", UsageError, "is empty: expected rows with a"),
        ("a\n", UsageError, "is empty"),
        ('{"a": "x"}\n{"a": \n', LoadError, "line 2 is no JSON: mend or remove"),
        ('{"a": "x"}\n["a"]\n', LoadError, "line 2 is no JSON object"),
        ('{"a": "x", "d": "y"}\n', UsageError, "line 1 has 'd': expected a, b and nothing else"),
        ('{"a": 0.3}\n', UsageError, "line 1: 'a' is no text"),
        ('{"b": "x"}\n', UsageError, "line 1 has no a: expected a"),
        ("a,b\nx\n", LoadError, "line 2 has 1 columns, the first line names 2"),
        ('a\n"x\n', LoadError, "line 2 is no CSV"),
        ("a,d\nx,y\n", UsageError, "line 2 has 'd'"),
        ("a,a\nx,y\n", LoadError, "line 1 names a column twice"),
        ("a\n \n\xff", LoadError, "not UTF-8"),
    ],
)
def test_what_cannot_be_read(
    tmp_path: Path, content: str, kind: type[AttnvizError], said: str
) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(kind, match=said):
        read_rows(path, "--rows", ["a"], ["b"])
    with pytest.raises(LoadError, match="cannot read"):
        read_rows(tmp_path / "gone", "--rows", ["a"])
