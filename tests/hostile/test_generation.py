"""A generation_config.json has no say in the text that a model writes: it is plainly greedy."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml

ASKED = yaml.safe_load(Path(__file__).with_name("generation.yaml").read_text(encoding="utf-8"))


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
