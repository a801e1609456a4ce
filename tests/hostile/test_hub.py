"""A hub that lies, drips or damages: nothing is written where it says, nothing is waited for."""

import json
from pathlib import Path

import pytest

from ..models import stand_in_hub


@pytest.fixture
def hub(llama):
    with stand_in_hub.serving(stand_in_hub.StandInHub()) as serving:
        serving.models["some/llama"] = llama()
        yield serving


@pytest.fixture
def ask(hub, tmp_path):
    """What a script finds of ``some/llama``, in a cache below ``tmp_path / "home"``."""

    def call(script=stand_in_hub.FIND, **env):
        asked = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint} | env
        return stand_in_hub.ask(script, "some/llama", asked)

    return call


def files_below(directory):
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit"])
@pytest.mark.long
def test_a_header_names_no_path(hub, ask, tmp_path, header):
    """Names of every kind for ETag, which all headers are read like: those have the worst two."""
    others = ("..", "a/b", "x" * 200, "") if header == "ETag" else ()
    before = files_below(tmp_path)
    for text in (f"{tmp_path}/x", "../../../../../../x", *others):
        named = text if header == "X-Repo-Commit" else f'"{text}"'
        hub.headers["config.json"] = {header: named}
        answer = ask(stand_in_hub.SPEC)
        assert answer["exit_code"] == 3
        assert f"sends the {header} " in answer["error"]
        assert "no plain name" in answer["error"]
        assert "use another HF_ENDPOINT" in answer["error"]
        assert len(answer["error"]) < 400
        assert files_below(tmp_path) == before


@pytest.mark.long
def test_nor_does_the_commit_of_a_file_that_is_not_there(hub, ask, tmp_path):
    """The client notes down what a commit lacks, in a directory with the commit's name."""
    hub.listing = json.dumps(
        {"id": "some/llama", "siblings": [{"rfilename": "token.json"}]}
    ).encode()
    hub.headers["token.json"] = {"X-Repo-Commit": f"{tmp_path}/new"}
    answer = ask()
    assert answer["exit_code"] == 3
    assert "sends the X-Repo-Commit " in answer["error"]
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_what_lies_outside_the_cache_is_not_used(hub, ask, tmp_path):
    """Where the server told us one name and the client another, by a fake that sees no header."""
    hub.headers["config.json"] = {"ETag": f'"{tmp_path}/x"'}
    blind = "from attnviz.models import hub; hub._refuse_paths = lambda answer: None"
    answer = ask(stand_in_hub.FIND.replace("said = []", f"said = []; {blind}"))
    assert answer["exit_code"] == 3
    assert f"was put outside the cache, at '{tmp_path}/x'" in answer["error"]


@pytest.mark.long
def test_a_file_that_drips_is_given_up(hub, ask, tmp_path):
    hub.dripping.add("config.json")
    answer = ask(stand_in_hub.SPEC, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert answer["exit_code"] == 3
    assert "the transfer of config.json of 'some/llama' failed (no answer in 6" in answer["error"]
    assert 5 < answer["seconds"] < 9
    assert not [path for path in files_below(tmp_path / "home") if "incomplete" in path.name]


@pytest.mark.parametrize(
    "listing",
    [
        b'{"id": "some/llama", "siblings": [{"rfilename": 5}, {"rfilename": "model.safetensors"}]}',
        b'{"id": "some/llama", "siblings": {"a": 1}}',
        b'{"siblings": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["one name", "none", "deep"],
)
@pytest.mark.long
def test_a_list_that_is_none_is_done_without(hub, ask, listing):
    hub.listing = listing
    directory = Path(ask()["directory"])
    assert (directory / "model.safetensors").is_file()
    assert (directory / "tokenizer.json").is_file()


def test_weights_that_are_not_those_of_their_hash(hub, ask, tmp_path):
    hub.headers["config.json"] = {"X-Linked-ETag": f'"{"0" * 64}"'}
    answer = ask(stand_in_hub.SPEC)
    assert answer["exit_code"] == 3
    assert (
        "config.json of 'some/llama' arrived damaged: expected the SHA-256 000" in answer["error"]
    )
    assert "run again to fetch it again" in answer["error"]
    assert not list((tmp_path / "home").rglob("config.json"))
    hub.headers["config.json"] = {"ETag": 'W/"5e8f-abc_DEF.12"'}  # as other servers name it
    assert "directory" in ask()


def test_a_revision_is_no_path(refused):
    named = ("../../../../x", "..", "a/../b", "/x", "a b", "a\\b", "a\x1b[31m", "a\n", "", "a:b")
    for command in (("params",), ("heads", "the cat", "--model")):
        for revision in named:
            said = refused(2, *command, "some/llama", "--revision", revision, "--offline")
            assert "is not a branch, tag or commit" in said
            assert "\x1b" not in said
