"""Where ``attnviz ablate`` takes its texts from, and what it says of damaged ones."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from attnviz.cli.inputs import BUILT_IN_TEXT, read_texts, read_texts_file
from attnviz.errors import LoadError, UsageError


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_the_built_in_text_says_so() -> None:
    texts = read_texts(None, None, None)
    assert texts.texts == (BUILT_IN_TEXT,)
    assert "built in" in texts.source


def test_the_built_in_text_repeats_its_names() -> None:
    for name in ("Captain Alder", "Mary", "Margaret"):
        assert BUILT_IN_TEXT.count(name) == 3


def test_a_typed_text_has_no_source() -> None:
    texts = read_texts("A text.", None, None)
    assert (texts.texts, texts.source, texts.place(0)) == (("A text.",), "", "the text")


def test_a_file_of_one_text(tmp_path: Path) -> None:
    path = written(tmp_path, "one.txt", b"First line.\nSecond line.\n")
    texts = read_texts(None, path, None)
    assert texts.texts == ("First line.\nSecond line.",)
    assert texts.source.endswith("one.txt")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"From a pipe.\n")))
    assert read_texts("-", None, None).source == "standard input"


def test_one_text_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, "many", "one\r\n\n  \nzwei Löwen\n".encode())
    texts = read_texts(None, None, path)
    assert texts.texts == ("one", "zwei Löwen")
    assert texts.lines == (1, 4)
    assert texts.place(1) == "text 2 (line 4)"


def test_many_texts_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    texts = read_texts_file(Path("-"), "--texts")
    assert (texts.texts, texts.source) == (("one", "two"), "standard input")


@pytest.mark.parametrize("name", ["many.jsonl", "many.ndjson", "many"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, b'{"text": "one", "id": 7}\n\n{"text": "t\\u00e9o"}\n')
    assert read_texts_file(path, "--texts").texts == ("one", "téo")


def test_a_brace_in_a_txt_file_is_text(tmp_path: Path) -> None:
    path = written(tmp_path, "many.txt", b"{curly} start\nnext\n")
    assert read_texts_file(path, "--texts").texts == ("{curly} start", "next")


@pytest.mark.parametrize(
    "line",
    [b'{"text": "cut', b'{"words": "no text"}', b'{"text": 3}', b'["text"]', b'{"text": " "}'],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path, "many.jsonl", b'{"text": "one"}\n\n' + line + b"\n")
    with pytest.raises(LoadError, match=r"many\.jsonl line 3 is damaged: expected"):
        read_texts_file(path, "--texts")


def test_a_line_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "many.txt", b"fine\nbad \xff byte\n")
    with pytest.raises(LoadError, match="line 2 is not UTF-8: byte 5 is 0xff"):
        read_texts_file(path, "--texts")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_a_text(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, "none.txt", content)
    with pytest.raises(UsageError, match=r"--reference .*none\.txt has no text"):
        read_texts_file(path, "--reference")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot read"):
        read_texts_file(tmp_path / "gone", "--texts")


def test_two_sources(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one source"):
        read_texts("A text.", None, tmp_path / "many")
    with pytest.raises(UsageError, match="one text"):
        read_texts("A text.", tmp_path / "one", None)
