"""Whatever is wrong: one line on standard error, nothing on standard output, the exit code."""

import pytest

from attnviz import errors

SENTENCE = "The cat sat on the mat."


def test_what_is_not_utf8_is_refused(refused):
    assert "the text is not UTF-8: byte 2 is 0xff" in refused(2, "heads", "a\udcff")
    assert "--token is not UTF-8" in refused(2, "heads", "a", "--token", "\udcff")


def test_saving_where_it_cannot_be_written(refused, tmp_path):
    (tmp_path / "folder.json").mkdir()
    line = refused(2, "heads", SENTENCE, "--save", "folder.json")
    assert "cannot save to folder.json: it is a directory" in line
    refused(2, "heads", SENTENCE, "--save", "good.json", "--save", "bad.bmp")
    assert not (tmp_path / "good.json").exists()


def test_saving_into_a_working_directory_that_is_deleted(refused, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "cannot write x.json: No such file" in refused(3, "heads", SENTENCE, "--save", "x.json")


@pytest.mark.parametrize(
    ("arguments", "reading"),
    [
        (["heads", "--texts", "x.csv", "--save", "y.json", "--save", "./x.csv"], "--texts"),
        (["diff", "x.csv", "tiny", "--save", "x.csv"], "A"),
        (["patterns", "--resume", "x.csv", "--save", "x.csv"], "--resume"),
        (["merge", "y.csv", "x.csv", "--save", "x.csv"], "PART"),
    ],
)
def test_a_file_that_is_read_is_not_overwritten(refused, tmp_path, monkeypatch, arguments, reading):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("text\nThe cat sat.\n")
    line = f"--save would overwrite {tmp_path / 'x.csv'} of {reading}: name another"
    assert line in refused(2, *arguments)
    assert (tmp_path / "x.csv").read_text() == "text\nThe cat sat.\n"


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
