"""Variables, limits, signals, options and streams that nobody meant: one line, nothing left."""

import errno
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SENTENCE = "The cat sat."
FULL = Path("/dev/full")
LONG = "x" * 20_000
TEXTS = "".join(f"the cat sat on the mat and the cat number {n}\n" for n in range(40))


@pytest.fixture
def process(program, environment, tmp_path):
    """``process(*arguments, env={}, megabytes=None)``: exit code and standard error."""

    def call(*arguments, env=None, megabytes=None):
        command = [*program, *arguments]
        if megabytes is not None:
            if sys.platform != "linux":
                pytest.skip("no other system limits the memory of a process by its addresses")
            limit = f'ulimit -v {megabytes * 1000} && exec "$@"'
            command = ["bash", "-c", limit, "bash", *command]
        done = subprocess.run(
            command,
            env=environment | (env or {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stderr

    return call


@pytest.mark.long
def test_a_picture_needs_no_backend_and_pyplot_gets_its_own(process, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    saved = ("heads", SENTENCE, "--quiet", "--save", "a.png", "--save", "a.pdf")
    assert process(*saved, env={"MPLBACKEND": "garbage"}) == (0, "")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("a.png", "a.pdf"))
    script = (
        "from attnviz.draw.drawing_plot import _defaults\n"
        "with _defaults(): pass\n"
        "import matplotlib, os; print(matplotlib.get_backend(), os.environ['MPLBACKEND'])"
    )
    monkeypatch.setenv("MPLBACKEND", "svg")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["svg", "svg"]


@pytest.mark.parametrize(
    ("arguments", "name", "value", "library"),
    [
        (("params", "a/b"), "HF_HUB_ETAG_TIMEOUT", "x", "huggingface_hub"),
        pytest.param(
            *(("ablate", "--model", "DIRECTORY", "--backend", "torch"), "TORCH_LOGS", "garbage"),
            "torch",
            marks=pytest.mark.long,
        ),
        pytest.param(("verify",), "KERAS_BACKEND", "garbage", "keras", marks=pytest.mark.long),
    ],
)
def test_a_variable_that_keeps_a_library_from_starting_is_named(
    process, llama, arguments, name, value, library
):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"without {library}")
    told = [str(llama()) if word == "DIRECTORY" else word for word in arguments]
    code, said = process(*told, env={name: value, "HF_TOKEN": "hf_secret"})
    assert code == 3
    assert said.startswith(f"attnviz: {library} cannot be imported: ")
    assert name in said.rstrip().rpartition("correct or unset what it reads here: ")[2].split(", ")
    assert said.count("\n") == 1
    assert "hf_secret" not in said


@pytest.mark.long
def test_a_python_without_docstrings(process, llama):
    optimised = {"PYTHONOPTIMIZE": "2"}
    code, said = process("ablate", "--model", str(llama()), "--backend", "torch", env=optimised)
    assert code == 3
    assert said.startswith("attnviz: transformers cannot be imported: ")
    assert "unset PYTHONOPTIMIZE" in said
    assert said.count("\n") == 1
    assert process("heads", SENTENCE, env=optimised) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")
@pytest.mark.long
def test_what_half_a_gigabyte_of_address_space_is_enough_for(process, llama):
    code, said = process("ablate", "--model", str(llama()), "--backend", "torch", megabytes=500)
    assert code == 3
    assert said == (
        "attnviz: torch needs 1 GB of address space, and this shell allows "
        "0.51 GB: raise the limit (ulimit -v)\n"
    )
    assert process("heads", SENTENCE, megabytes=500) == (0, "")


@pytest.mark.skipif(not FULL.exists(), reason="no full device here")
@pytest.mark.parametrize(
    ("words", "buffered"),
    [(("--version",), ""), (("heads", "--help"), "1"), (("heads", "a", "--json"), "")],
)
def test_a_full_disk_takes_neither_help_nor_numbers(program, environment, words, buffered):
    with FULL.open("w") as full:
        done = subprocess.run(
            [*program, *words],
            env=environment | {"PYTHONUNBUFFERED": buffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr == "attnviz: cannot write to standard output: No space left on device\n"


def test_a_file_that_cannot_be_written_costs_neither_the_screen_nor_the_others(
    run, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("attnviz.inspect.heads.report._write_csv", fail)
    done = run("heads", "the cat", "--save", "a.csv", "--save", "b.json")
    assert done.code == 3
    assert done.out.startswith("tiny")
    assert done.err == "saved b.json\nattnviz: cannot write a.csv: No space left on device\n"
    assert (tmp_path / "b.json").exists()


def test_a_path_stays_whole_and_what_is_longer_is_cut(refused):
    path = "/" + "/".join(["directory"] * 20)
    assert path in refused(3, "heads", "--file", path)
    assert len(refused(3, "heads", "--file", path * 20)) < 400
    assert len(refused(2, "heads", "abc", "--head", "\u0301" * 20_000)) < 400


@pytest.mark.parametrize("command", ["heads", "rollout", "ablate", "scaling"])
def test_a_text_whose_maps_no_memory_holds(refused, tmp_path, command):
    (tmp_path / "long.txt").write_text("the cat sat on the mat " * 100_000)
    more = ("--from-model",) if command == "scaling" else ()
    line = refused(2, command, *more, "--model", "mha", "--file", "long.txt")
    assert "GB are free" in line
    assert "shorten the text" in line


def test_memory_that_runs_out_on_the_way(refused, monkeypatch):
    import torch

    def failing(error):
        def full(*arguments):
            raise error

        monkeypatch.setattr("attnviz.models.resolve.load", full)
        return refused(2, "heads", "abc")

    line = failing(MemoryError("Unable to allocate 107. GiB"))
    assert line == ("out of memory: Unable to allocate 107. GiB; ask for less, or shorten the text")
    line = failing(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. " * 50))
    assert line.startswith("the device is out of memory: CUDA out of memory. Tried to allocate 9")
    assert line.endswith("ask for less, shorten the text, or take --device cpu")
    assert len(line) < 300


def finished(run, tmp_path, *more):
    """A finished scan and the lines of its resume file."""
    (tmp_path / "t.txt").write_text(TEXTS[:200])
    arguments = ("ablate", "--texts", "t.txt", "--head", "L0H0,1", "--resume", "r.jsonl", *more)
    document = run(*arguments, "--json").document
    return document, (tmp_path / "r.jsonl").read_text().splitlines(True)


@pytest.mark.parametrize("change", ["twice", "true", "no metric", "a cosine of 7"])
def test_a_resume_file_that_was_forged(run, refused, tmp_path, change):
    """A text counts twice, its number is no number, or its result cannot be."""
    _, lines = finished(run, tmp_path)
    if change == "true":
        second = next(n for n, line in enumerate(lines) if '"text": 1' in line)
        lines[second] = lines[second].replace('"text": 1', '"text": true')
    elif change == "twice":
        lines.append(lines[1])
    else:
        entry = json.loads(lines[1])
        metrics = entry["result"]["metrics"]
        metrics["output_cosine"] = [7.0] * len(metrics["output_cosine"])
        entry["result"]["metrics"] = {} if change == "no metric" else metrics
        lines[1] = json.dumps(entry) + "\n"
    (tmp_path / "r.jsonl").write_text("".join(lines))
    line = refused(
        3, "ablate", "--texts", "t.txt", "--head", "L0H0,1", "--resume", "r.jsonl", "--json"
    )
    assert "is damaged" in line
    assert "remove" in line


def test_a_resumed_resample_says_what_it_was_done_with(run, tmp_path):
    (tmp_path / "long.txt").write_text("the cat sat on the mat and " * 9 + "\n")
    more = ("--mode", "resample", "--reference", "long.txt")
    first, _ = finished(run, tmp_path, *more)
    again, _ = finished(run, tmp_path, *more)
    assert any("were cut to its length" in note for note in first["notes"])
    for document in (first, again):
        document.pop("seconds")
    assert again == first


@pytest.mark.long
def test_a_budget_in_seconds_is_kept_over_many_texts(run, tmp_path):
    texts = (f"{line} of copy {n}\n" for n in range(40) for line in TEXTS.splitlines())
    (tmp_path / "many.txt").write_text("".join(texts))
    arguments = ("ablate", "--texts", "many.txt", "--budget", "1s", "--resume", "r.jsonl", "--json")
    document = run(*arguments).document
    assert document["seconds"] < 4  # of ranking alone it took 100
    assert 1 <= document["text_count"] < 1600
    assert any("of 1,600 texts, drawn with seed 0" in note for note in document["notes"])
    measured = [head for head in document["heads"] if "loss_delta" in head]
    assert len(measured) >= 4
    again = run(*arguments).document
    assert again["text_count"] >= document["text_count"]
    whole = [head["gradient"] for head in document["heads"]]
    assert sorted(head["gradient"] for head in again["heads"]) == sorted(whole)


def test_an_ignored_ctrl_c_stays_ignored(program, environment):
    """As in ``nohup attnviz train … &`` of a script: a Ctrl-C of another job is not for it."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + (
        "from attnviz.progress import between_steps\n"
        "with between_steps() as stopped:\n"
        "    signal.raise_signal(signal.SIGINT); assert not stopped()\n"
        "    signal.raise_signal(signal.SIGTERM); assert stopped()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN\n"
    )
    done = subprocess.run([program[0], "-c", code], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
