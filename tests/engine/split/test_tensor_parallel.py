"""Two processes that share a model find what one process finds."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import attnviz

from .asked import MODELS, REFUSED, RULES, TEXT, flat, questions, saved

_REPOSITORY = Path(__file__).parents[3]

_OWN = (
    *(".seconds", ".model.weights", ".model.name", "_a.name"),
    *("_b.name", "_a.weights", "_b.weights"),
)
"""The ends of paths to what belongs to a run, or to how the model was opened."""

CLOSE = 2e-5
"""The largest difference, of numbers above one relative to them."""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    (root / "rules.toml").write_text(RULES)
    for name, (kind, fields) in MODELS.items():
        saved(root / name, kind, **fields)
    for name, (kind, fields, _) in REFUSED.items():
        saved(root / name.replace("/", " "), kind, **fields)
    return root


def start(module, checkpoints, *arguments):
    """Start two processes of a module of this folder, as torchrun would."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    own = {"XDG_CACHE_HOME": str(checkpoints / "cache"), "PYTHONPATH": str(_REPOSITORY)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.engine.split.{module}", *arguments],
            env=os.environ | shared | own | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=_REPOSITORY,
        )
        for rank in range(2)
    ]


def answers_of(checkpoints, *arguments):
    """Return the answers of two processes, which share each model."""
    started = start("process", checkpoints, str(checkpoints), *arguments)
    for one in started:
        printed, _ = one.communicate(timeout=600)
        assert one.returncode == 0, printed[-3000:]
    return [
        json.loads((checkpoints / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)
    ]


@pytest.fixture(scope="module")
def processes(checkpoints):
    """The answers of both processes; they are started once, as importing torch takes seconds."""
    return answers_of(checkpoints)


@pytest.fixture(scope="module")
def commands(checkpoints):
    """What the command line says in both processes."""
    return answers_of(checkpoints, "quick")


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_two_processes_find_what_one_finds(name, checkpoints, processes):
    model = attnviz.load(checkpoints / name)
    for question, ask in questions(name).items():
        compare(ask(model, checkpoints / "rules.toml"), processes, name, question)


def compare(report, processes, name, question):
    """Compare a report of one process with the answers of several."""
    stream = io.StringIO()
    report.write_json(stream)
    expected = dict(flat(json.loads(stream.getvalue())))
    for answers in processes:
        assert not isinstance(answers[name][question], str), answers[name][question]
        found = dict(flat(answers[name][question]))
        assert {path for path in found if ".notes" not in path} == {
            path for path in expected if ".notes" not in path
        }
        for path, value in expected.items():
            if path.endswith(_OWN) or ".notes[" in path:
                continue
            if isinstance(value, float) and isinstance(found[path], float):
                assert found[path] == pytest.approx(value, rel=CLOSE, abs=CLOSE), path
            else:
                assert found[path] == value, path


@pytest.mark.long
def test_the_screen_says_that_the_model_is_split(processes):
    for answers in processes:
        notes = answers["grouped"]["patterns"]["model"]["notes"]
        assert "its weights are split over 2 processes" in notes


@pytest.mark.long
@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_put_together_is_refused_in_words(words, processes):
    for answers in processes:
        assert answers[words].startswith("UnsupportedError: ")
        assert words in answers[words]


def test_the_first_process_alone_prints_and_writes(checkpoints, commands):
    (code, out, err), other = commands[0]["shown"], commands[1]["shown"]
    assert (code, other) == (0, [0, "", ""])
    assert "its weights are split over 2 processes" in out
    assert err.startswith("saved ")
    found = json.loads((checkpoints / "saved.json").read_text())
    expected = attnviz.heads(attnviz.load(checkpoints / "grouped"), TEXT).to_dict()
    for (path, value), (_, other) in zip(
        flat(found["heads"]), flat(expected["heads"]), strict=True
    ):
        close = pytest.approx(other, rel=CLOSE, abs=CLOSE) if isinstance(other, float) else other
        assert value == close, path


def test_one_process_says_in_one_line_why_all_end(commands):
    codes, outs, errs = zip(*(answers["wrong"] for answers in commands), strict=True)
    assert (codes, outs) == ((2, 2), ("", ""))
    assert "".join(errs).startswith("attnviz: ")
    assert "".join(errs).count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("ended", "sent", "code"), [((0, 1), signal.SIGINT, 130), ((1,), signal.SIGKILL, 3)]
)
def test_all_end_with_one_line(ended, sent, code, checkpoints, tmp_path):
    """Ctrl-C reaches every process of a terminal; a process that is killed ends the other."""
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{TEXT}\n" * 2_000)
    model = ("--model", str(checkpoints / "grouped"), "--tp")
    started = start("endless", checkpoints, "ablate", "--texts", str(texts), *model, str(tmp_path))
    try:
        while not all((tmp_path / f"begun-{rank}").exists() for rank in range(2)):
            assert all(one.poll() is None for one in started)
            time.sleep(0.1)
        for rank in ended:
            started[rank].send_signal(sent)
        printed = [one.communicate(timeout=120)[0] for one in started]
    finally:
        for one in started:
            one.kill()
    lines = "".join(printed).splitlines()
    assert started[0].returncode == code
    assert len([line for line in lines if line.startswith("attnviz: ")]) == len(lines) == 1
