"""A directory that appears whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnviz.draw.whole_file import check_new_directory, whole_directory
from attnviz.errors import LoadError, UsageError


@pytest.mark.parametrize("there", [False, True])
def test_it_appears_at_the_end(tmp_path: Path, there: bool) -> None:
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
def test_nothing_is_left_of_a_failure(tmp_path: Path, end: type[BaseException]) -> None:
    def fail() -> None:
        with whole_directory(tmp_path / "new") as draft:
            (draft / "part").write_text("half")
            raise end

    with pytest.raises(end):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_untouched(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    with pytest.raises(UsageError, match="not empty"), whole_directory(kept):
        pytest.fail("must not begin")
    assert (kept / "file").read_text() == "mine"
    with pytest.raises(UsageError, match="no directory"):
        check_new_directory(kept / "file")
    with pytest.raises(LoadError, match="there is no directory"):
        check_new_directory(tmp_path / "missing" / "new")


def test_a_system_that_refuses_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot write"), whole_directory(tmp_path / "new"):
        raise OSError(28, "No space left on device")
    with pytest.raises(LoadError, match="cannot write"):
        check_new_directory(tmp_path / ("n" * 300))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_closed_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LoadError, match="not writable"):
        check_new_directory(tmp_path / "new")
