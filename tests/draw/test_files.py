"""Files by the ending of their names: whole or not at all, what cannot be is refused first."""

import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import attnviz
from attnviz.cli.heads import HeadsOutput
from attnviz.draw.files import check_path, document_files, save, text_file
from attnviz.draw.report import EVERY
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.heads.report import compare_heads

ENDINGS = HeadsOutput().endings
STARTS = {
    ".json": b'{"schema": "attnviz.heads/1"',
    ".csv": b"layer,head,query_index",
    ".md": b"## ",
    ".npz": b"PK",
    ".svg": b"<svg",
    ".html": b"<!DOCTYPE html>",
    ".txt": b"the screen",
    ".png": b"\x89PNG",
    ".pdf": b"%PDF-",
}


def write(report, path):
    """As the outlet does, with a screen of a few words."""
    found = compare_heads([report])
    files = {
        **document_files(found.document, "magma"),
        **found.arrays(),
        ".json": text_file(found.write_json),
        ".txt": text_file(lambda stream: stream.write("the screen 학교 ▀▄ \udc80\nsecond\n")),
    }
    save(path, files)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_written(tmp_path, reports, ending):
    """Also of texts with half of a surrogate pair."""
    path = tmp_path / f"out{ending.upper()}"
    check_path(path, ENDINGS)
    write(reports(["a", "\udc80b"], text="a \udc80b"), path)
    assert os.listdir(tmp_path) == [path.name]
    content = path.read_bytes()
    assert content.startswith(STARTS.get(ending, b""))
    assert len(content) > 10
    if ending == ".json":
        assert json.loads(content)["tokens"] == ["a", "\udc80b"]
    elif ending == ".svg":
        ElementTree.fromstring(content)
    elif ending == ".txt":
        assert content.decode() == "the screen 학교 ▀▄ \\udc80\nsecond\n"
    elif ending == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            assert len(archive["tokens"]) == 2


def test_the_endings_are_those_of_the_writers_and_of_the_manual():
    def no_document():
        raise AssertionError("writers are listed without drawing")

    assert {*document_files(no_document, "magma"), ".json", ".csv", ".txt"} == {*EVERY.split()}
    page = Path(attnviz.__file__).with_name("docs") / "json.md"
    assert all(f"`{ending}`" in page.read_text(encoding="utf-8") for ending in EVERY.split())


def test_an_unknown_ending_names_the_known_ones_and_directories_come_first(tmp_path):
    for name in ("out", "out.xyz", "out.json.gz", ".json", "\x1b[2J.bad"):
        with pytest.raises(UsageError) as caught:
            check_path(tmp_path / name, ENDINGS)
        message = str(caught.value)
        assert all(ending in message for ending in ENDINGS)
        assert message.isprintable()
    with pytest.raises(LoadError, match="no directory"):
        check_path(tmp_path / "none" / "x.json", ENDINGS)


def test_pictures_need_matplotlib_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("x.png", "x.PDF"):
        with pytest.raises(LoadError, match=r"pip install 'attnviz\[plot\]'") as caught:
            check_path(tmp_path / name, ENDINGS)
        assert "\n" not in str(caught.value)
    check_path(tmp_path / "x.svg", ENDINGS)
