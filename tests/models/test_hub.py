"""The network path with the real client, in a process of its own, against a hub on loopback."""

import json
import shutil
import socket
import time
from pathlib import Path

import pytest

from attnviz.models.hub import progress_bar

from . import stand_in_hub

_FIND, _LOAD, _DESIGN = stand_in_hub.FIND, stand_in_hub.LOAD, stand_in_hub.SPEC


@pytest.fixture
def hub(checkpoint):
    with stand_in_hub.serving(stand_in_hub.StandInHub()) as serving:
        serving.models["some/gpt2"] = checkpoint("gpt2")
        yield serving


@pytest.fixture
def ask_all(tmp_path):
    """Run a script on several names with options of their own, with a cache of the test's own."""

    def call(script, endpoint, *calls, env=None):
        asked = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": endpoint} | (env or {})
        return stand_in_hub.ask_all(script, calls, asked)

    return call


@pytest.fixture
def run(ask_all):
    def call(script, endpoint, name, env=None, **options):
        return ask_all(script, endpoint, (name, options), env=env)[0]

    return call


def free_port():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return closed.getsockname()[1]


@pytest.mark.long
def test_a_model_is_fetched_with_progress_then_comes_from_the_cache(hub, run, ask_all):
    weights = hub.models["some/gpt2"] / "model.safetensors"
    size = weights.stat().st_size
    (weights.parent / "pytorch_model.bin").write_bytes(b"not wanted")
    (weights.parent / "README.md").write_text("not wanted")
    (weights.parent / "code.py").write_text("not wanted")
    first = run(_LOAD, hub.endpoint, "some/gpt2")
    assert first["revision"] == stand_in_hub.COMMIT
    assert first["ids"] == [1, 4, 5, 2]
    steps = [(done, total) for file, done, total in first["progress"] if file == weights.name]
    assert steps[0] == (0, size)
    assert steps[-1] == (size, size)
    fetched = hub.fetched()
    assert fetched[0] == "config.json"
    assert fetched[-1] == "model.safetensors"
    assert set(fetched) == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    nobody = f"http://127.0.0.1:{free_port()}"
    ways = ({}, {"offline": True}, {"revision": "main"}, {"revision": stand_in_hub.COMMIT})
    for again in ask_all(_FIND, nobody, *(("some/gpt2", options) for options in ways)):
        assert (again["revision"], again["progress"]) == (stand_in_hub.COMMIT, [])


@pytest.mark.long
def test_shards_come_with_their_index(hub, run):
    source = hub.models["some/gpt2"]
    shard = "model-00001-of-00001.safetensors"
    (source / "model.safetensors").rename(source / shard)
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"transformer.wte.weight": shard}})
    )
    directory = Path(run(_FIND, hub.endpoint, "some/gpt2")["directory"])
    assert (directory / shard).is_file()


@pytest.mark.long
def test_pickles_are_not_even_fetched(hub, run, ask_all):
    source = hub.models["some/gpt2"]
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    refused = run(_FIND, hub.endpoint, "some/gpt2")
    assert refused["exit_code"] == 3
    assert "--allow-pickle" in refused["error"]
    assert "pytorch_model.bin" not in hub.fetched()
    fetched, refused = ask_all(
        _FIND, hub.endpoint, *(("some/gpt2", {way: True}) for way in ("allow_pickle", "offline"))
    )
    assert (Path(fetched["directory"]) / "pytorch_model.bin").is_file()
    assert refused["exit_code"] == 3
    assert "--allow-pickle" in refused["error"]


@pytest.mark.long
def test_code_is_fetched_only_when_trusted(hub, run):
    (hub.models["some/gpt2"] / "own.py").touch()
    directory = Path(run(_FIND, hub.endpoint, "some/gpt2", trust_remote_code=True)["directory"])
    assert (directory / "own.py").is_file()


def test_what_cannot_be_had(hub, ask_all, tmp_path):
    (tmp_path / "empty").mkdir()
    held = hub.models["some/gpt2"]
    hub.models |= {"some/gated": held, "some/down": held, "some/empty": tmp_path / "empty"}
    hub.gated.add("some/gated")
    hub.private.add("some/private")
    hub.down.add("some/down")
    expected = {
        "some/none": "no model 'some/none'",
        "some/private": "log in with `hf auth login`",
        "some/gated": "is gated: accept its terms",
        "no/such/path": "neither a directory nor a model id",
        "tinny": "did you mean 'tiny'?",
        "gpt2": "`--model configs/gpt2` builds its shape with random weights",
        "some/empty": "no config.json",
        "some/gpt2": "has no revision 'v9'",
        "some/down": "answers HTTP 503",
    }
    calls = [(name, {"revision": "v9"} if name == "some/gpt2" else {}) for name in expected]
    answers = ask_all(_FIND, hub.endpoint, *calls)
    for (name, says), answer in zip(expected.items(), answers, strict=True):
        down = ("OfflineError", 4)
        assert (answer["kind"], answer["exit_code"]) == (
            down if name == "some/down" else ("LoadError", 3)
        )
        assert says in answer["error"]


@pytest.mark.long
def test_a_transfer_that_breaks_off_leaves_nothing_behind(hub, run, ask_all):
    hub.broken.add("model.safetensors")
    calls = [("some/gpt2", {"offline": offline}) for offline in (False, True)]
    answer, offline = ask_all(_FIND, hub.endpoint, *calls)
    assert (answer["kind"], answer["exit_code"]) == ("LoadError", 3)
    assert "the transfer of model.safetensors of 'some/gpt2' failed" in answer["error"]
    assert offline["exit_code"] == 4
    assert "has no weights" in offline["error"]
    hub.broken.clear()
    assert "directory" in run(_FIND, hub.endpoint, "some/gpt2")


@pytest.mark.parametrize("silent", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_unreachable_network_is_told_soon(run, silent):
    with socket.socket() as listener:  # it accepts a connection, and never answers
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1] if silent else free_port()
        start = time.monotonic()
        answer = run(
            _FIND, f"http://127.0.0.1:{port}", "some/gpt2", env={"HF_HUB_ETAG_TIMEOUT": "1"}
        )
    assert (answer["kind"], answer["exit_code"]) == ("OfflineError", 4)
    assert "whole in the local cache" in answer["error"]
    assert "cannot be reached" in answer["error"]
    assert answer["seconds"] < 4
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("by_variable", [False, True])
def test_offline_asks_nobody(hub, run, by_variable):
    env = {"HF_HUB_OFFLINE": "1"} if by_variable else {}
    answer = run(_FIND, hub.endpoint, "some/gpt2", env=env, offline=not by_variable)
    assert (answer["kind"], answer["exit_code"]) == ("OfflineError", 4)
    assert "not in the local cache" in answer["error"]
    assert answer["seconds"] < 1
    assert hub.requests == []


@pytest.mark.long
def test_a_cached_model_without_tokenizer_is_completed(hub, run, ask_all):
    directory = Path(run(_FIND, hub.endpoint, "some/gpt2")["directory"])
    (directory / "tokenizer.json").unlink()
    calls = [("some/gpt2", {"offline": offline}) for offline in (True, False)]
    assert ask_all(_FIND, hub.endpoint, *calls)[0]["directory"] == str(directory)
    assert (directory / "tokenizer.json").is_file()


@pytest.mark.long
def test_a_cache_that_cannot_be_written(hub, run, tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where the cache should be")
    answer = run(_FIND, hub.endpoint, "some/gpt2", env={"HF_HUB_CACHE": str(occupied)})
    assert answer["exit_code"] == 3
    assert "the transfer of config.json of 'some/gpt2' failed" in answer["error"]
    assert "Not a directory" in answer["error"]


@pytest.mark.long
def test_of_a_model_to_count_only_the_config_is_fetched(hub, run, ask_all, tmp_path):
    first = run(_DESIGN, hub.endpoint, "some/gpt2")
    assert (first["revision"], first["layers"]) == (stand_in_hub.COMMIT, 2)
    assert first["heavy"] == []
    assert Path(first["source"]).name == "config.json"
    assert hub.fetched() == ["config.json"]
    nobody = f"http://127.0.0.1:{free_port()}"
    calls = [("some/gpt2", options) for options in ({}, {"offline": True, "revision": "main"})]
    assert [answer["layers"] for answer in ask_all(_DESIGN, nobody, *calls)] == [2, 2]
    # A cached config does not pass for a whole checkpoint.
    assert run(_FIND, hub.endpoint, "some/gpt2")["revision"] == stand_in_hub.COMMIT
    assert "model.safetensors" in hub.fetched()
    hub.models["some/gpt2"] = shutil.copytree(hub.models["some/gpt2"], tmp_path / "quantised")
    (tmp_path / "quantised" / "hf_quant_config.json").write_text("{}")
    run(_DESIGN, hub.endpoint, "some/gpt2", env={"HF_HOME": str(tmp_path / "other")})
    assert hub.fetched()[-2:] == ["config.json", "hf_quant_config.json"]


# The callback, driven the way the hub's client drives its progress bar


def test_bytes_add_up():
    said = []
    bar = progress_bar("a.bin", lambda *step: said.append(step))
    with bar(total=7, initial=0, desc="other", unit="B") as counting:
        counting.update(3)
        counting.set_postfix_str("fast", refresh=False)
        counting.update(4)
    assert said == [("a.bin", 0, 7), ("a.bin", 3, 7), ("a.bin", 7, 7)]


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_transfer_that_never_ends_is_given_up(rolled_back):
    # A server that cannot resume: the client starts anew, and older ones do not count back.
    bar = progress_bar("a.bin", None)(total=10)

    def transfer():
        for _ in range(9):
            bar.update(6)
            if rolled_back:
                bar.update(-6)

    with pytest.raises(ConnectionAbortedError, match="again and again"):
        transfer()
