"""Where the text comes from, and what is no text."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from attnviz.cli.inputs import as_utf8, read_text
from attnviz.errors import LoadError, UsageError


def type_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "ascii"))


def test_an_argument_is_taken_as_it_is() -> None:
    assert read_text(" The cat ", None) == " The cat "


def test_a_file_loses_only_its_last_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("나는 오늘\n학교에 갔다 .\r\n\n".encode())
    assert read_text(None, path) == "나는 오늘\n학교에 갔다 ."


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfThe cat\n")
    assert read_text(None, path) == "The cat"


def test_standard_input_is_utf8_whatever_its_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "나는 오늘\n".encode())
    assert read_text("-", None) == "나는 오늘"


def test_arguments_are_utf8_whatever_the_locale() -> None:
    mangled = "갔다".encode().decode("ascii", "surrogateescape")
    assert read_text(mangled, None) == "갔다"
    assert as_utf8(mangled, "--token") == "갔다"


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\r\n", "\u3000"])
def test_nothing_to_read(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    type_in(monkeypatch, text.encode())
    for argument, file in ((text, None), (None, path), ("-", None)):
        with pytest.raises(UsageError, match="the text is empty: expected at least one word"):
            read_text(argument, file)


def test_one_text_is_expected() -> None:
    with pytest.raises(UsageError, match="--file PATH, or - to read standard input"):
        read_text(None, None)
    with pytest.raises(UsageError, match="give TEXT or --file, not both"):
        read_text("The cat", Path("text.txt"))


def test_what_is_not_utf8_names_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("Das Mädchen".encode("latin-1"))
    with pytest.raises(LoadError, match=r"latin\.txt is not UTF-8: byte 6 is 0xe4; convert"):
        read_text(None, path)
    type_in(monkeypatch, b"\xff\xfea\x00")
    with pytest.raises(LoadError, match="standard input is not UTF-8: byte 1 is 0xff"):
        read_text("-", None)
    with pytest.raises(UsageError, match="the text is not UTF-8: byte 2 is 0x80"):
        read_text("a\udc80", None)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot read .*: No such file or directory"):
        read_text(None, tmp_path / "absent.txt")
    with pytest.raises(LoadError, match=r"cannot read .*: Is a directory"):
        read_text(None, tmp_path)
    with pytest.raises(LoadError, match="cannot read a␛b: No such file"):
        read_text(None, Path("a\x1bb"))


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        read_text("-", None)
