"""``attnviz train`` from the command line to the directory that it writes."""

import signal
import subprocess
import time

import pytest

from attnviz.cli.learn import spread_lists

from ...terminals import POSIX

RECIPE = """
vocabulary = 270
model = {{layers = 2, heads = 3, kv_heads = 3, head_dim = 4, d_model = 12, d_ff = 16, context = 32}}
budget = {{tokens = {tokens}}}
validation = {{every = 0.25, tokens = 200}}
[[phase]]
name = "short"
until = 0.5
length = 13
batch = 5
repeated_tokens = 1.0
repeated_passages = 0.0
period = [3, 6]
[[phase]]
length = 23
batch = 5
period = [3, 7]
"""


@pytest.fixture
def texts(run, tmp_path):
    """A folder of two texts, a third to validate on, a recipe of 30 steps and one of minutes."""
    words = ("the cat sat on the mat", "a dog ran to the log", "it rained all day long")
    (tmp_path / "books").mkdir()
    for number, name in enumerate(("books/a.txt", "books/b.txt", "valid.txt", "other.txt")):
        lines = [f"{number} {words[row % 3]} {words[row * 7 % 3]}" for row in range(60)]
        (tmp_path / name).write_text(".\n".join(lines), encoding="utf-8")
    (tmp_path / "quick.toml").write_text(RECIPE.format(tokens=2500))
    (tmp_path / "long.toml").write_text(RECIPE.format(tokens=4_000_000))
    return tmp_path


QUICK = ("--config", "quick.toml", "--out", "m")


def test_from_texts_to_a_model_that_heads_shows(run, texts):
    result = run("train", "books", "--valid", "valid.txt", "other.txt", *QUICK)
    assert result.code == 0, result
    for words in (
        *("2 layers × 3 heads", "seed 0", "trained on a.txt and b.txt"),
        *("validated on valid.txt and other.txt", "nats per token", "bits per byte"),
        *("training", "validation", "phase text from", "Best heads", "Did not train: "),
        *("--tokens 2000000 --out NEW: train longer", "uniform random tokens, repeated"),
    ):
        assert words in result.out.replace("\n            ", " "), words
    assert max(map(len, result.lines)) <= 80
    files = {path.name for path in (texts / "m").iterdir()}
    assert files == {
        *("README.md", "config.json", "log.csv", "model.safetensors", "tokenizer.json"),
        *("tokenizer_config.json", "first"),
    }
    before = run("diff", "m/first", "m", "--text", "the cat sat on the mat")
    assert "1 text, too few to test a head" in " ".join(before.out.split())
    shown = run("heads", "the cat sat", "--model", "m")
    assert shown.code == 0
    assert "2 layers × 3 heads" in shown.out


@pytest.mark.parametrize(
    ("arguments", "spread"),
    [
        (["a", "--valid", "b", "c", "-o"], ["a", "--valid", "b", "--valid", "c", "-o"]),
        (["--valid", "b", "--valid", "c", "d"], ["--valid", "b", "--valid", "c", "--valid", "d"]),
        (["a", "--valid=b", "c", "-q", "e"], ["a", "--valid", "b", "--valid", "c", "-q", "e"]),
        (["--valid", "b", "--", "c"], ["--valid", "b", "--", "c"]),
        (["a", "--valid", "--out", "d"], ["a", "--valid", "--out", "d"]),
        (["a", "--validate", "b", "c"], ["a", "--validate", "b", "c"]),
        ([], []),
    ],
)
def test_several_values_may_follow_an_option(arguments, spread):
    assert spread_lists(arguments) == spread


def test_a_finished_model_is_never_overwritten(run, refused, texts):
    assert run("train", "books", *QUICK, "-q").code == 0
    before = {path: path.read_bytes() for path in (texts / "m").rglob("*") if path.is_file()}
    assert "already holds a trained model" in refused(2, "train", "books", *QUICK)
    line = refused(2, "train", "books", *QUICK, "--resume")
    assert "is finished, nothing is left to resume" in line
    files = (path for path in (texts / "m").rglob("*") if path.is_file())
    assert {path: path.read_bytes() for path in files} == before


def begin(program, environment, folder, *arguments):
    """A long run in a process of its own, once it has saved its state."""
    process = subprocess.Popen(
        [*program, "train", "books", "--config", "long.toml", "--out", "m", *arguments],
        env=environment | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    for _ in range(6000):
        if (folder / "m" / "training.pt").exists():
            return process
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    raise AssertionError("the run did not get there")


@pytest.mark.long
@POSIX
def test_stopped_it_saves_and_says_how_to_go_on_and_does(program, environment, run, refused, texts):
    """Stopped twice, by either signal; what a killed process leaves half written is swept away."""
    part = texts / "m" / ".attnviz-0123.part"
    for number, options in ((signal.SIGTERM, ()), (signal.SIGINT, ("--resume",))):
        process = begin(program, environment, texts, *options)
        for _ in range(6000):
            if not part.exists():
                break
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        lines = " ".join(said.decode().split())
        assert process.returncode == 130, said
        assert "saved in 'm': the same command with --resume continues" in lines
        assert lines.endswith("attnviz: interrupted")
        assert "Traceback" not in lines
        assert not part.exists()
        part.write_text("half")
    again = ("train", "books", "--config", "long.toml", "--out", "m")
    assert "holds a run that is not finished: --resume goes on with it" in refused(2, *again)
    line = refused(2, *again, "--resume", "--seed", "1")
    assert "is of another run: its seed is 0, here it is 1" in line
    assert run("heads", "the cat", "--model", "m").code == 0  # it can be looked at on its way


@pytest.mark.parametrize("name", ["books/a.txt", "valid.txt"])
def test_a_text_is_not_overwritten_by_the_result(refused, texts, name):
    before = (texts / name).read_bytes()
    options = ("--valid", "valid.txt", *QUICK, "--save", name)
    assert "would overwrite" in refused(2, "train", "books", *options)
    assert (texts / name).read_bytes() == before
