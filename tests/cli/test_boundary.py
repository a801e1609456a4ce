"""Whatever is wrong: one line on standard error, the exit code, and nothing is written."""

import re
import shlex
from pathlib import Path
from string import Template

import pytest
from PIL import Image

from attnviz import errors

from ..terminals import POSIX

TEXTS = {
    "CAT": "'The cat sat on the mat because it was tired.'",
    "SHORT": "'The cat sat on the mat.'",
    "CLEAN": "'The old doctor knew Robert Harris well. Every Sunday Mary and Robert'",
    "CORRUPT": "'The old doctor knew Robert Carr well. Every Sunday Mary and Robert'",
    "MET": "'When Nancy met John, nobody knew why Nancy met'",
    "MANY": ",".join(map(str, range(1, 40))),
}
TEXTS["ASKED"] = f"{TEXTS['CLEAN']} {TEXTS['CORRUPT']} --answer Harris --foil Carr"
SENTENCE = "The cat sat on the mat."


def refusals(beside=__file__):
    """Yield an exit code, a command line and words of its answer for each pair of lines."""
    lines = Path(beside).with_name("refusals.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    for asked, words in zip(lines[::2], lines[1::2], strict=True):
        code, line = re.fullmatch(r"(?:(\d) )?(.*)", asked).groups()
        marks = POSIX if "/dev/zero" in line else ()
        yield pytest.param(int(code or 2), line, words.strip(), id=line, marks=marks)


def repeated(word):
    """Return a word in which {a*9} stands for "a" nine times."""
    return re.sub(r"\{([^{}*]+)\*(\d+)\}", lambda match: match[1] * int(match[2]), word)


@pytest.fixture
def folder(tmp_path, checkpoint):
    """A folder with a few files, and with checkpoints where a line names them."""

    def fill(line):
        (tmp_path / "texts.txt").write_text("The cat sat on the mat.\nA dog ran.\n")
        (tmp_path / "latin.txt").write_bytes("Das Mädchen".encode("latin-1"))
        (tmp_path / "empty.txt").write_text("\n")
        Image.new("RGB", (9, 9)).save(tmp_path / "0.png")
        (tmp_path / "chat.json").write_text('[{"role": "user", "content": "A cat."}]')
        (tmp_path / "wrong.toml").write_text("[optimizer]\nlearning_rate = 1")
        (tmp_path / "broken.toml").write_text("[config")
        (tmp_path / "bad.tsv").write_text("text\tpairs\nOne two\n")
        (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt"\n')
        token = '{"prompt": "a", "answer": "internationalisation"}\n'
        (tmp_path / "token.jsonl").write_text(token)
        (tmp_path / "rules.toml").write_text('[[check]]\nparams = "total"\nat_least = 1\n')
        (tmp_path / "loop.json").symlink_to("loop.json")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").write_text("mine")
        for kind in re.findall(r"--model \./(gpt2|llama|t5)", line):
            (tmp_path / kind).symlink_to(checkpoint(kind))
        return tmp_path

    return fill


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize(("code", "line", "words"), [*refusals()])
def test_one_line_answers_and_nothing_is_written(refused, folder, code, line, words):
    place = folder(line)
    before = contents(place)
    said = refused(code, *map(repeated, shlex.split(Template(line).substitute(TEXTS))))
    assert repeated(words) in said
    assert len(said) < 500
    if "{x*" in line:  # what is quoted is cut
        assert "x" * 81 not in said
        assert "…" in said
    assert contents(place) == before


def test_what_is_not_utf8_is_refused(refused):
    assert "the text is not UTF-8: byte 2 is 0xff" in refused(2, "heads", "a\udcff")
    assert "--token is not UTF-8" in refused(2, "heads", "a", "--token", "\udcff")


def test_saving_where_it_cannot_be_written(refused, tmp_path):
    (tmp_path / "folder.json").mkdir()
    line = refused(2, "heads", SENTENCE, "--save", "folder.json")
    assert "cannot save to folder.json: it is a directory" in line


def test_saving_into_a_working_directory_that_is_deleted(refused, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "cannot write x.json: No such file" in refused(3, "heads", SENTENCE, "--save", "x.json")


def test_an_architecture_that_cannot_be_observed_ends_with_5(refused, monkeypatch):
    def load(*_):
        raise errors.UnsupportedError("the attention of 'odd' cannot be observed")

    monkeypatch.setattr("attnviz.models.resolve.load", load)
    assert refused(5, "heads", SENTENCE) == "the attention of 'odd' cannot be observed"


def test_the_unexpected_ends_with_1_and_shows_where_on_demand(run, refused, monkeypatch):
    def load(*_):
        raise RuntimeError("first line\nsecond \x1b line")

    monkeypatch.setattr("attnviz.models.resolve.load", load)
    line = refused(1, "heads", SENTENCE)
    assert line == (
        "unexpected RuntimeError: first line second ␛ line (ATTNVIZ_TRACEBACK=1 shows where)"
    )
    with pytest.raises(RuntimeError, match="first line"):
        run("heads", SENTENCE, env={"ATTNVIZ_TRACEBACK": "1"})


def test_hostile_names_cannot_act(refused):
    for arguments in (
        ("--file", "a\x1b[2Jb\n"),
        ("a", "--model", "./a\x1b[2Jb"),
        ("a", "--save", "\x1b[2J\u202e.bmp"),
        ("a", "--token", "\x1b[2J"),
        ("a", "--head", "\x1b[2J"),
        ("a", "--palette", "\x1b[2J"),
        ("a", "--model", "mha", "--device", "cpu\x1b[2J"),
        ("a", "--\x1b[2J"),
    ):
        code = 3 if arguments[0] == "--file" or "./a\x1b[2Jb" in arguments else 2
        line = refused(code, "heads", *arguments)
        assert "\x1b" not in line
        assert "\u202e" not in line


def test_messages_fit_the_stream(refused):
    for encoding in ("ascii", "cp1252"):
        assert r"\uac14\ub2e4" in refused(3, "heads", "--file", "갔다", encoding=encoding)
    assert "standard input is not UTF-8: byte 2 is 0xff" in refused(3, "heads", "-", stdin=b"a\xff")
