"""A resume file survives any end of the process, and belongs to one run only."""

import json
import math

import pytest

from attnviz.errors import LoadError, UsageError
from attnviz.resume import Piece, ResumeFile, restored

SCHEMA = "attnviz.ablate-resume/1"
RUN = {"model": "tiny", "texts": "3 (abc)", "mode": "zero"}
FIRST = Piece("removals", 0, {"loss": 0.1 + 0.2})
LAST = Piece("removals", 2, [1, None])


def filled(path):
    with ResumeFile(path, SCHEMA, RUN) as resume:
        assert resume.done == []
        resume.append(FIRST)
        resume.append(LAST)
    return path.read_bytes()


def test_every_line_is_an_object_and_on_the_disk_at_once(tmp_path):
    """What was appended comes back to the bit."""
    path = tmp_path / "scan.jsonl"
    header, *rest = map(json.loads, filled(path).splitlines())
    assert header == {"schema": SCHEMA, "run": RUN}
    assert [entry["text"] for entry in rest] == [0, 2]
    with ResumeFile(path, SCHEMA, RUN) as resume:
        assert resume.done == [FIRST, LAST]
        resume.append(Piece("control", 1, "done"))
        assert path.read_bytes().endswith(b'{"part": "control", "text": 1, "result": "done"}\n')


def test_a_line_that_was_cut_short_is_written_anew(tmp_path):
    """An empty file is begun."""
    path = tmp_path / "scan.jsonl"
    path.touch()
    whole = filled(path)
    assert whole.count(b"\n") == 3
    for cut in range(1, 49, 5):
        path.write_bytes(whole[:-cut])
        with ResumeFile(path, SCHEMA, RUN) as resume:
            assert resume.done == [FIRST]
            resume.append(LAST)
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "gpt2"}, "its model is tiny, here it is gpt2"),
        ({"texts": "3 (def)"}, r"its texts are 3 \(abc\), here they are 3 \(def\)"),
        ({"draws": 4}, "its draws are null, here they are 4"),
    ],
)
def test_another_run_is_refused_and_the_file_left(tmp_path, changed, said):
    path = tmp_path / "scan.jsonl"
    whole = filled(path)
    with pytest.raises(UsageError, match=said), ResumeFile(path, SCHEMA, RUN | changed):
        pass
    assert path.read_bytes() == whole


def test_another_file_is_refused_and_left(tmp_path):
    path = tmp_path / "scan.jsonl"
    for content in (b"some notes of mine\n", b"no end", b'{"schema": "x"}\n', b"\xff\n"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="not a resume file"), ResumeFile(path, SCHEMA, RUN):
            pass
        assert path.read_bytes() == content


def test_a_damaged_line_inside_is_named(tmp_path):
    path = tmp_path / "scan.jsonl"
    header, first, last = filled(path).splitlines(keepends=True)
    path.write_bytes(header + first[:-9] + b"\n" + last)
    with pytest.raises(LoadError, match="line 2 is damaged"), ResumeFile(path, SCHEMA, RUN):
        pass


def test_two_runs_cannot_write_one_file_and_none_a_place_that_is_not_there(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "scan.jsonl"
    with (
        ResumeFile(path, SCHEMA, RUN),
        pytest.raises(UsageError, match="another run is writing"),
        ResumeFile(path, SCHEMA, RUN),
    ):
        pass
    missing = ResumeFile(tmp_path / "gone" / "scan.jsonl", SCHEMA, RUN)
    with pytest.raises(LoadError, match="there is no directory"), missing:
        pass


@pytest.mark.parametrize("values", [[True], ["1"], [math.inf], [[1.0]], 5], ids=str)
def test_only_numbers_are_restored(values):
    with pytest.raises((TypeError, ValueError)):
        restored(values)
