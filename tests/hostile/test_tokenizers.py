"""A tokenizer.json may panic or grow, a generation_config.json has no say: one line each."""

import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

from attnviz.errors import LoadError
from attnviz.models.third_party import running, third_party, tokenizing

from ..terminals import POSIX
from .conftest import ON_A_MODEL, asked

PARTS = yaml.safe_load(Path(__file__).with_name("tokenizer_parts.yaml").read_text("utf-8"))
TEXT = "the cat sat on " + "a" * 40 + "!"
ASKED = yaml.safe_load(Path(__file__).with_name("generation.yaml").read_text(encoding="utf-8"))


def replacing(pattern, content):
    return {"normalizer": {"type": "Replace", "pattern": pattern, "content": content}}


@pytest.fixture
def tokenizer(llama):
    """A Llama whose tokenizer.json has these fields; those of its model come by themselves."""

    def make(fields, **model):
        path = llama() / "tokenizer.json"
        content = json.loads(path.read_text()) | fields
        content["model"] |= model
        path.write_text(json.dumps(content))
        return path.parent

    return make


@pytest.mark.parametrize("command", ON_A_MODEL)
def test_a_panic(command, tokenizer, refused, capfd):
    """A slow expression and a token that is not there, in turn."""
    slow = ON_A_MODEL.index(command) % 2 == 0
    fields = PARTS["slow" if slow else "unknown"]
    says = "retry-limit-in-match over" if slow else "no entry found for key"
    said = refused(3, *asked(command, TEXT, tokenizer(fields)))
    assert said.startswith("the tokenizer of '")
    assert says in said
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("command", ON_A_MODEL)
def test_unknown_words_without_a_token_and_texts_that_grow_without_end(command, tokenizer, refused):
    file = tokenizer({}) / "tokenizer.json"
    before = file.read_text()
    missing = {"unk_token": "<none>"}
    if ON_A_MODEL.index(command) % 2:
        missing = {"vocab": {"the": 0, "cat": 1}}
    said = refused(3, *asked(command, "the zebra sat on it", tokenizer({}, **missing)))
    assert "cannot be used: WordLevel error: Missing [UNK] token from the vocabulary" in said
    file.write_text(before)
    directory = tokenizer(replacing({"String": "a"}, "x" * 10**6))
    began = time.monotonic()
    said = refused(3, *asked(command, "the cat sat on a mat", directory))
    assert said.endswith("it makes more than 20 characters of each character of a text")
    assert time.monotonic() - began < 20


def test_a_text_of_which_nothing_is_left(tokenizer, run, refused):
    asked = ("the cat sat on a mat", "--model", str(tokenizer(replacing({"Regex": "."}, ""))))
    assert run("heads", *asked).code == 0
    assert "2 tokens" in refused(2, "patterns", *asked)


@POSIX
def test_what_others_say_meanwhile_is_not_lost(capfd):
    """One inside another leaves no descriptor open; more than a pipe holds blocks nobody."""
    before = sorted(os.listdir("/dev/fd"))
    with tokenizing("m"), tokenizing("m"):
        os.write(2, b"another thread\n")
    assert sorted(os.listdir("/dev/fd")) == before
    assert capfd.readouterr().err == "another thread\n"
    with tokenizing("m"):
        os.write(2, b"x" * 2**16)
        with pytest.raises(BlockingIOError):
            os.write(2, b"x")
    assert len(capfd.readouterr().err) == 2**16


def test_each_failure_is_a_line_and_the_end_of_a_process_passes():
    for stop in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(stop), third_party("a failure"), tokenizing("m"):
            raise stop
    for error, says in (
        (RecursionError("x"), "it is nested too deep"),
        (MemoryError(), "it does not fit the free memory"),
        (Exception("x\ny"), "x y"),
    ):
        with pytest.raises(LoadError) as caught, third_party("a failure"):
            raise error
        assert str(caught.value) == f"a failure: {says}"


def test_what_observes_a_model_may_raise_its_own():
    import torch

    from attnviz.engine.replacing import LostTrackError

    with pytest.raises(ZeroDivisionError), running(torch.nn.Linear(2, 2)):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError), running(torch.nn.Linear(2, 2), RuntimeError):
        torch.nn.Linear(2, 2)(torch.zeros(3))
    failure = pytest.raises(LoadError, match="Linear cannot run over this text: ")
    with failure, running(torch.nn.Linear(2, 2)):
        torch.nn.Linear(2, 2)(torch.zeros(3))
    with pytest.raises(LostTrackError), running(torch.nn.Linear(2, 2)):
        raise LostTrackError("a hook")


@pytest.fixture
def t5(stranger):
    return partial(stranger, "t5", "generation_config.json")


@pytest.mark.parametrize(
    "some", [ASKED[::8], pytest.param(ASKED, marks=pytest.mark.long)], ids=["few", "all"]
)
def test_the_text_is_plainly_greedy(some, t5, document):
    """Every eighth setting always, all with ``-m long``: one code ignores them all."""
    directory = t5()
    asked = ("the cat sat", "--kind", "cross", "--model", str(directory))
    plain, file = document(*asked), directory / "generation_config.json"
    before = json.loads(file.read_text())
    for fields in some:
        file.write_text(json.dumps(before | fields))
        assert document(*asked) == plain, fields


def test_a_start_that_no_file_names(t5, refused):
    path = t5(decoder_start_token_id=10**9, pad_token_id=None, bos_token_id=None) / "config.json"
    gone = {"decoder_start_token_id": 10**9, "pad_token_id": None, "bos_token_id": -1}
    path.write_text(json.dumps(json.loads(path.read_text()) | gone))
    said = refused(2, "heads", "the cat", "--kind", "cross", "--model", str(path.parent))
    assert "names no token for its decoder to start with" in said


REFUSED = [
    '{"cache_implementation": "x"}',
    "[" * 100_000,
    "null",
    "7",
    '{"watermarking_config": 7}',
]


@pytest.mark.parametrize("kind", ["llama", "t5"])
@pytest.mark.long
def test_a_file_that_the_library_refuses_is_ignored(kind, checkpoint, document, tmp_path):
    directory = tmp_path / "m"
    shutil.copytree(checkpoint(kind), directory)
    asked = ("the cat sat", *(("--kind", "cross") if kind == "t5" else ()), "--model", "m")
    plain = document(*asked)
    for content in REFUSED:
        (directory / "generation_config.json").write_text(content)
        assert document(*asked) == plain, content[:20]


def test_a_model_with_such_a_file_is_stored(llama, run):
    (llama() / "generation_config.json").write_text(REFUSED[0])
    asked = ("prune", "the cat sat on", "--heads", "0.0", "--draws", "0", "--model")
    assert run(*asked, "m", "--out", "smaller").code == 0
    assert run("heads", "the cat sat", "--model", "smaller").code == 0
