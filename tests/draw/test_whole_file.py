"""Files and directories appear whole or not at all, and two processes do not write one."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from attnviz.draw import files as module
from attnviz.draw.files import (
    check_new_directory,
    check_writable,
    directory_lock,
    whole_directory,
    whole_file,
)
from attnviz.errors import LoadError, UsageError

from ..terminals import POSIX

FULL = OSError(errno.ENOSPC, "No space left on device")
SOCKET = pytest.param("socket", marks=pytest.mark.skipif(sys.platform != "linux", reason="root"))
DEVICES = ("fifo", "directory", SOCKET, "loop", "/dev/null", "/dev/zero")
SPECIAL = (*DEVICES, "real", "missing")


def test_content_appears_at_the_end(tmp_path):
    path = tmp_path / "out.bin"
    with whole_file(path) as stream:
        stream.write(b"half")
        stream.flush()
        assert not path.exists()
    assert path.read_bytes() == b"half"
    assert os.listdir(tmp_path) == ["out.bin"]


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), FULL], ids=repr)
def test_an_exception_leaves_the_old_file(tmp_path, error):
    """What the system refuses is one line that names the file."""
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")

    def write():
        with whole_file(path) as stream:
            stream.write(b"new")
            raise error

    with pytest.raises(LoadError if error is FULL else type(error)) as caught:
        write()
    if error is FULL:
        assert "No space left on device" in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


@POSIX
def test_new_files_have_the_rights_of_any_new_file_and_old_ones_keep_theirs(tmp_path):
    with whole_file(tmp_path / "saved") as stream:
        stream.write(b"x")
    (tmp_path / "plain").write_bytes(b"x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("saved", "plain")]
    assert modes[0] == modes[1]
    (tmp_path / "plain").chmod(0o640)
    with whole_file(tmp_path / "plain") as stream:
        stream.write(b"new")
    assert stat.S_IMODE((tmp_path / "plain").stat().st_mode) == 0o640
    assert (tmp_path / "plain").read_bytes() == b"new"


def test_a_link_that_a_person_named_is_followed(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with whole_file(tmp_path / "link", named=True) as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def special(kind, path):
    """Make something at ``path`` that is not a regular file."""
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "loop":
            path.symlink_to(path.name)
        case target:
            path.symlink_to(path.parent / target)


def written(path, named, meanwhile=lambda: None):
    """Write a few bytes; ``meanwhile`` happens while the file is open."""
    with whole_file(path, named=named) as stream:
        stream.write(b"new")
        meanwhile()


@POSIX
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("kind", SPECIAL)
def test_only_a_regular_file_is_replaced(tmp_path, kind, early):
    (tmp_path / "real").write_bytes(b"old")
    path = tmp_path / "out"
    if early:
        special(kind, path)
    make = (lambda: None) if early else (lambda: special(kind, path))
    before = os.stat("/dev/zero")
    with pytest.raises((LoadError, UsageError)) as caught:
        written(path, named=False, meanwhile=make)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert stat.S_IFMT(path.lstat().st_mode) != stat.S_IFREG
    assert (tmp_path / "real").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["out", "real"]
    assert os.stat("/dev/zero") == before


@POSIX
def test_refused_before_anything_is_made(tmp_path):
    (tmp_path / "dir.json").mkdir()
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.json")
    for name, error, said in (
        ("dir.json", UsageError, "a directory"),
        ("pipe.json", UsageError, "no regular file"),
        ("missing/out.json", LoadError, "no directory"),
        ("file/out.json", LoadError, "no directory"),
        ("\x1b[31m/x.json", LoadError, "no directory"),
        ("x" * 300, LoadError, "File name too long"),
    ):
        with pytest.raises(error, match=said) as caught:
            check_writable(tmp_path / name, named=True)
        assert "\x1b" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["dir.json", "file", "pipe.json"]


@pytest.mark.parametrize("closed", ["directory", "file"])
def test_closed_places(tmp_path, monkeypatch, closed):
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    refused = tmp_path if closed == "directory" else path

    def access(place, mode):
        return os.fspath(place) != os.fspath(refused)

    monkeypatch.setattr(module.os, "access", access)  # root may write anywhere
    with pytest.raises(LoadError, match="is not writable"):
        check_writable(path, named=True)


@pytest.mark.parametrize("there", [False, True])
def test_it_appears_at_the_end(tmp_path, there):
    """An empty directory is taken."""
    wanted = tmp_path / "new"
    if there:
        wanted.mkdir()
    with whole_directory(wanted) as draft:
        (draft / "part").write_text("whole")
        assert not (wanted / "part").exists()
    assert (wanted / "part").read_text() == "whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_of_a_failure(tmp_path, end):
    def fail():
        with whole_directory(tmp_path / "new") as draft:
            (draft / "part").write_text("half")
            raise end

    with pytest.raises(end):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_untouched(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    with pytest.raises(UsageError, match="not empty"), whole_directory(kept):
        pytest.fail("must not begin")
    assert (kept / "file").read_text() == "mine"
    with pytest.raises(UsageError, match="not a directory"):
        check_new_directory(kept / "file")
    with pytest.raises(LoadError, match="there is no directory"):
        check_new_directory(tmp_path / "missing" / "new")


def test_a_system_that_refuses_is_one_line(tmp_path):
    with pytest.raises(LoadError, match="cannot write"), whole_directory(tmp_path / "new"):
        raise OSError(28, "No space left on device")
    with pytest.raises(LoadError, match="cannot write"):
        check_new_directory(tmp_path / ("n" * 300))
    assert list(tmp_path.iterdir()) == []


TRY = """
import sys
from pathlib import Path
from attnviz.draw.files import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("got it")
"""


def another_process(directory):
    return subprocess.run(
        [sys.executable, "-c", TRY, str(directory)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.skipif(sys.platform == "win32", reason="opens no directories")
def test_a_directory_is_held_against_other_processes_until_it_is_left(tmp_path):
    with directory_lock(tmp_path):
        refused = another_process(tmp_path)
        with pytest.raises(UsageError, match="another run is writing"), directory_lock(tmp_path):
            pytest.fail("held twice")
    assert "another run is writing" in refused.stderr
    assert another_process(tmp_path).stdout == "got it\n"


def test_the_directory_one_stands_in_is_filled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    with whole_directory(Path()) as draft:
        (draft / "a").write_text("new")
    assert [path.name for path in Path().iterdir()] == ["a"]
    assert tmp_path.stat().st_ino == before


def test_a_directory_that_is_gone_is_said(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(LoadError, match=r"cannot write a.json: No such file"):
        check_writable(Path("a.json"), named=True)
