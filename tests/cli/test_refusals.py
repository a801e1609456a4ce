"""Whatever is asked wrongly: one line on standard error, the exit code, and nothing is written."""

import re
import shlex
from pathlib import Path
from string import Template

import pytest

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


def refusals(beside=__file__):
    """Yield an exit code, a command line and words of its answer for each pair of lines."""
    lines = Path(beside).with_name("refusals.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    for asked, words in zip(lines[::2], lines[1::2], strict=True):
        code, line = re.fullmatch(r"(?:(\d) )?(.*)", asked).groups()
        marks = POSIX if "/dev/zero" in line else ()
        yield pytest.param(int(code or 2), line, words.strip(), id=line, marks=marks)


def typed(line):
    """Return the words of a command line, with the texts that it names."""
    return [*map(repeated, shlex.split(Template(line).substitute(TEXTS)))]


def repeated(word):
    """Return a word in which {a*9} stands for "a" nine times."""
    return re.sub(r"\{([^{}*]+)\*(\d+)\}", lambda match: match[1] * int(match[2]), word)


@pytest.fixture
def folder(tmp_path, checkpoint):
    """A folder with a few files, and with checkpoints where a line names them."""

    def fill(line):
        (tmp_path / "texts.txt").write_text("The cat sat on the mat.\nA dog ran.\n")
        (tmp_path / "latin.txt").write_bytes("Das Mädchen".encode("latin-1"))
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
        for kind in re.findall(r"--model \./(gpt2|t5)", line):
            (tmp_path / kind).symlink_to(checkpoint(kind))
        return tmp_path

    return fill


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize(("code", "line", "words"), [*refusals()])
def test_one_line_answers_and_nothing_is_written(refused, folder, code, line, words):
    place = folder(line)
    before = contents(place)
    said = refused(code, *typed(line))
    assert repeated(words) in said
    assert len(said) < 500
    if "{x*" in line:  # what is quoted is cut
        assert "x" * 81 not in said
        assert "…" in said
    assert contents(place) == before
