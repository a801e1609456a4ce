"""Files without end, files nested too deep, halves of characters: one line, and no full memory."""

import io
import os
import threading
from pathlib import Path

import pytest

from attnviz import reading
from attnviz.errors import LoadError
from attnviz.reading import parse_json, read_bytes, read_stream

from ..terminals import POSIX

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def short(monkeypatch):
    """Limits that a test can reach."""
    monkeypatch.setattr(reading, "_PIECE", 8)
    monkeypatch.setattr(reading, "TEXT_BYTES", 20)


@POSIX
def test_a_pipe_without_end(short, refused, tmp_path):
    """As of ``--file <(yes)``; a writer that is cut off does not keep the process."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        try:
            with pipe.open("wb") as stream:
                while True:
                    stream.write(b"yes\n")
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    said = refused(3, "heads", "--file", str(pipe))
    assert said.endswith("has more than 20 bytes, the most that is read here: name a smaller file")
    writer.join(timeout=30)
    assert not writer.is_alive()


def test_an_input_without_end(short, refused):
    said = refused(3, "heads", "-", stdin=b"the cat " * 10)
    assert said.startswith("standard input has more than 20 bytes")


def test_a_file_that_is_as_long_as_it_may_be(short, tmp_path):
    path = tmp_path / "a.txt"
    for size in (0, 7, 8, 9, 16, 20):
        path.write_bytes(b"x" * size)
        assert read_bytes(path) == b"x" * size
    path.write_bytes(b"x" * 21)
    with pytest.raises(LoadError, match=r"a\.txt' has more than 20 bytes"):
        read_bytes(path)


def test_a_terminal_is_not_asked_for_a_second_end(short):
    """Its first end comes as an empty answer, and what follows would be asked of the person."""

    class Terminal(io.BytesIO):
        ended = False

        def read(self, size=-1):
            assert not self.ended
            piece = super().read(size)
            self.ended = len(piece) < (size or 0)
            return piece

    assert read_stream(Terminal(b"the cat sat"), "it") == b"the cat sat"


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_json_of_a_checkpoint_that_is_nested_too_deep(file, llama, refused):
    directory = llama()
    (directory / file).write_text(DEEP)
    assert "it is nested too deep" in refused(3, "heads", "the cat", "--model", str(directory))


def test_toml_and_resume_files_that_are_nested_too_deep(refused):
    Path("a.toml").write_text("a = " + DEEP)
    Path("b.txt").write_text("the cat")
    for command in (("heads", "a", "--model"), ("train", "b.txt", "--out", "m", "--config")):
        assert "it is nested too deep" in refused(3, *command, "a.toml")
    Path("r.jsonl").write_text(DEEP + "\n")
    said = refused(2, "ablate", "the cat sat on", "--resume", "r.jsonl")
    assert said.startswith("r.jsonl is not a resume file of attnviz ablate")


@pytest.mark.parametrize(
    ("field", "command"),
    [
        ("text", ("ablate", "--texts")),
        ("text", ("ablate", "the cat sat", "--mode", "resample", "--reference")),
        ("text", ("prune", "--heads", "0.0", "--texts")),
        ("text", ("diff", "tiny", "--texts")),
        ("prompt", ("why", "--texts")),
        ("clean", ("patch", "--pairs")),
    ],
    ids=str,
)
def test_damaged_lines(field, command, refused):
    rest = ', "corrupt": "the mat"' * (field == "clean")
    whole = f'{{"{field}": "the \\ud83d\\udc31 sat"{rest}}}\n'
    for value in (DEEP, '"\\ud800 cat"'):
        Path("t.jsonl").write_text(f'{whole}{{"{field}": {value}{rest}}}\n')
        said = refused(3, *command, "t.jsonl")
        assert said.startswith("t.jsonl line 2 is ")
        assert "fix or remove the line" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"\\ud800"', r"x cannot be read as JSON: it holds half of a surrogate pair \('\\ud800'\)"),
        ('{"\\uDFFF": 1}', r"half of a surrogate pair \('\\udfff'\)"),
        ("{", "x cannot be read as JSON: "),
        ("1" * 5000, "x cannot be read as JSON: "),
        (b"\xff", "x cannot be read as JSON: "),
    ],
    ids=["half", "key", "cut", "digits", "bytes"],
)
def test_json_that_is_none(text, says):
    with pytest.raises(LoadError, match=says):
        parse_json(text, "x")


def test_json_that_is_whole_and_what_does_not_fit_the_memory():
    assert parse_json('["\\ud83d\\udc31", "\\\\ud800"]', "x") == ["🐱", "\\ud800"]
    assert parse_json(b"\xef\xbb\xbf{}", "x") == {}

    class Full(io.BytesIO):
        def read(self, size=-1):
            raise MemoryError

    with pytest.raises(LoadError, match="a text does not fit the free memory: name a smaller"):
        read_stream(Full(), "a text")
