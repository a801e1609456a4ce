"""Whatever is wrong: one line on standard error, nothing on standard output, the exit code."""

import pytest

from attnviz import errors
from attnviz.models.bundled import Bundled

SENTENCE = "The cat sat on the mat."
LAYERS = Bundled().info.layers
RANGE = f"layers 0 to {LAYERS - 1}"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], 'expected a text: attnviz heads "The cat sat on the mat.", --file PATH, or -'),
        ([""], "the text is empty"),
        (["-"], "the text is empty"),
        (["a", "b"], "unexpected extra argument(s) (b) (put the text in quotes)"),
        (["a", "--token", "b", "c"], "(c) (put the value of --token in quotes)"),
        (["--pair", "a"], "requires 2 arguments; see 'attnviz heads --help'"),
        (["--head", "L1H2", "L1H0"], "expected a text, got the head 'L1H0'"),
        (["a", "--heads", "3"], "add --model mha; --head chooses heads"),
        (["a", "--file", "b"], "give TEXT or --file, not both"),
        (["a", "-m", "tiny", "--model", "mha"], "--model is given 2 times: expected one"),
        (["a\udcff"], "the text is not UTF-8: byte 2 is 0xff"),
        (["a", "--token", "\udcff"], "--token is not UTF-8"),
        (["a", "--layer", f"{LAYERS}"], f"no layer {LAYERS}: this model has {RANGE}"),
        (["a", "--head", "L1"], "such as L1H2, or a label; --layer 1 takes a whole layer"),
        (["a", "--save", ""], "expected a path, got an empty text"),
        (["a", "--slide", "--save", "a.json"], "add --save FILE.png, .svg or .pdf"),
        (["a", "--top", "0"], "'--top'"),
        (["a", "--dtype", "int8"], "'int8' is not one of 'auto', 'float32'"),
        (["a", "--dtype", "float16"], "computes in float32 or float64, got float16"),
        (["a", "--sort", "size"], "no measure 'size': measures are previous token, first token"),
        (
            ["a", "--sort", "duplicate"],
            "duplicate token cannot be measured here: the text repeats no",
        ),
        (["a", "--reverse"], "add --sort MEASURE"),
        (
            ["a", "--token", "zebra"],
            "no token 'zebra' in the text: give a word in it, WORD:2 for its second occurrence, "
            "or an index from 0 to 1",
        ),
        (["a", "--device", "cuda"], "'tiny' runs in NumPy on the cpu"),
        (["a", "--revision", "main"], "'tiny' is built in"),
        (["a", "--model", "mha", "--heads", "7"], "heads that divide it: 1, 2, 4, 8, 16, 32, 64"),
        (["a", "--model", "mha", "--dtype", "float64"], "'mha' computes in float32"),
        (["a", "--model", "mha", "--device", "mps"], "'mha' runs in NumPy on the cpu"),
        (["a", "--layer"], "'--layer' requires an argument"),
    ],
)
def test_usage_ends_with_2(refused, arguments, line):
    assert line in refused(2, "heads", *arguments)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--file", "absent.txt"], "cannot read absent.txt: No such file or directory"),
        (["--file", "."], "cannot read .: Is a directory"),
        (["--file", "latin.txt"], "latin.txt is not UTF-8: byte 6 is 0xe4; convert it first"),
        (["SENTENCE", "--model", "./absent"], "no directory './absent' here"),
        (["SENTENCE", "--model", "absent.toml"], "no file 'absent.toml' here"),
        (["SENTENCE", "--model", "broken.toml"], "broken.toml' cannot be read as a shape"),
        (["SENTENCE", "--save", "absent/map.json"], "there is no directory absent; make it first"),
    ],
)
def test_what_cannot_be_loaded_ends_with_3(refused, tmp_path, arguments, line):
    (tmp_path / "latin.txt").write_bytes("Das Mädchen".encode("latin-1"))
    (tmp_path / "broken.toml").write_text("[config")
    arguments = [SENTENCE if word == "SENTENCE" else word for word in arguments]
    assert line in refused(3, "heads", *arguments)


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


def test_a_mistyped_model_offline_ends_with_4(refused):
    for name, meant in (("tinny", "tiny"), ("mah", "mha"), ("bert-bas", "bert-base")):
        line = refused(4, "heads", SENTENCE, "--model", name, "--offline")
        assert f"{name!r} cannot be used offline: it is not in the local cache" in line
        assert f"did you mean {meant!r}?" in line


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
        ("a", "--\x1b[2J"),
    ):
        code = 3 if arguments[0] == "--file" or "--model" in arguments else 2
        line = refused(code, "heads", *arguments)
        assert "\x1b" not in line
        assert "\u202e" not in line


def test_messages_fit_the_stream(refused):
    for encoding in ("ascii", "cp1252"):
        assert r"\uac14\ub2e4" in refused(3, "heads", "--file", "갔다", encoding=encoding)
    assert "standard input is not UTF-8: byte 2 is 0xff" in refused(3, "heads", "-", stdin=b"a\xff")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["head", "a"],
            "expected a head such as L1H2, got 'a': attnviz heads shows every head over a text",
        ),
        (["heds", "a"], "No such command 'heds'. Did you mean 'heads', 'head'?"),
        (["nothing"], "No such command 'nothing'; see 'attnviz --help'"),
        (["heads", "a", "--modle", "tiny"], "No such option: --modle"),
        (["head", "a text", "--head", "L1H2"], "the head comes first: attnviz head L1H2"),
        (["heads", "a", "--pallete", "grey"], "--palette"),
        (["--versoin"], "--version"),
    ],
)
def test_typing_errors_get_a_suggestion(refused, arguments, line):
    assert line in refused(2, *arguments)
