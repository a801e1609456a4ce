"""Variables, limits, devices and signals that nobody meant: one line, nothing left behind."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SENTENCE = "The cat sat."
FULL = Path("/dev/full")


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
