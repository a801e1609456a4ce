"""One entry for all files: the ending decides."""

import errno
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from attnviz.heads.files import heads_files

from attnviz.draw.files import check_path, save, text_file
from attnviz.errors import LoadError, UsageError
from attnviz.heads.command import HeadsOutput

ENDINGS = HeadsOutput().endings


def write(report, path, text="a text", target=None, screen="the screen\n"):
    files = heads_files(report, text, target, "magma")
    save(path, {**files, ".txt": text_file(lambda stream: stream.write(screen))})


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_written(tmp_path, report, ending):
    path = tmp_path / f"out{ending.upper()}"
    check_path(path, ENDINGS)
    write(report, path)
    assert os.listdir(tmp_path) == [path.name]
    content = path.read_bytes()
    starts = {
        ".json": b'{"schema": "attnviz.heads/1"',
        ".csv": b"layer,head,query_index",
        ".npz": b"PK",
        ".svg": b"<svg",
        ".html": b"<!DOCTYPE html>",
        ".txt": b"the screen\n",
        ".png": b"\x89PNG",
        ".pdf": b"%PDF-",
    }
    assert content.startswith(starts.get(ending, b""))
    assert len(content) > 10


@pytest.mark.parametrize("name", ["out", "out.xyz", "out.json.gz", ".json", "\x1b[2J.bad"])
def test_an_unknown_ending_names_the_known_ones(tmp_path, name):
    with pytest.raises(UsageError) as caught:
        check_path(tmp_path / name, ENDINGS)
    message = str(caught.value)
    assert all(ending in message for ending in ENDINGS)
    assert message.isprintable()


def test_target_reaches_the_file(tmp_path, make):
    report = make(kind="cross", keys=("x",))
    write(report, tmp_path / "x.json", target="its target")
    assert json.loads((tmp_path / "x.json").read_text())["target"] == "its target"


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("old")

    def fail(stream):
        stream.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LoadError, match="No space left"):
        save(path, {".json": fail})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("ending", [".json", ".csv", ".npz", ".safetensors", ".svg", ".png"])
def test_every_writer_passes_a_full_disk_on(report, ending):
    with (
        open("/dev/full", "wb", buffering=0) as stream,
        pytest.raises(OSError, match="No space left"),
    ):
        heads_files(report, "t", None, "viridis")[ending](stream)


def test_pictures_need_matplotlib_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("x.png", "x.PDF"):
        with pytest.raises(LoadError, match=r"pip install 'attnviz\[plot\]'") as caught:
            check_path(tmp_path / name, ENDINGS)
        assert "\n" not in str(caught.value)
    check_path(tmp_path / "x.svg", ENDINGS)


def test_a_missing_directory_is_refused_first(tmp_path, report):
    with pytest.raises(LoadError, match="no directory"):
        write(report, tmp_path / "none" / "x.json")


def test_text_is_written_as_it_stands(tmp_path, report):
    path = Path(tmp_path / "screen.txt")
    write(report, path, screen="학교 ▀▄\nsecond\n")
    assert path.read_text(encoding="utf-8") == "학교 ▀▄\nsecond\n"


def test_unpaired_surrogates_do_not_stop_a_file(tmp_path, make):
    report = make(texts=("a", "\udc80b"))
    for ending in ENDINGS:
        write(report, tmp_path / f"x{ending}", text="a \udc80b", screen="\udc80")
    assert json.loads((tmp_path / "x.json").read_text())["tokens"] == ["a", "\udc80b"]
    ElementTree.parse(tmp_path / "x.svg")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
        assert len(archive["tokens"]) == 2
