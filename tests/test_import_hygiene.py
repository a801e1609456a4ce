"""What a start does not import, proven in fresh processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnviz.cli.app import COMMANDS

from .first_screens import command_lines

HEAVY = {"torch", "transformers", "huggingface_hub", "keras", "matplotlib", "sympy", "pandas"}
WORDS = "the cat sat on the mat"
SENTENCE = "The cat sat on the mat because it was tired."

PROGRAM = """
import contextlib, io, json, sys
lines, unwanted = json.loads(sys.argv.pop())
from attnviz.cli.boundary import run
for arguments in lines:
    sys.argv[:] = ["attnviz", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = run()
    print(json.dumps([code, said.getvalue(), [name for name in unwanted if name in sys.modules]]))
print(json.dumps(sorted(sys.modules)))
"""
BUILT_IN = [*command_lines("light").values()]
SEPARATE = {"check", "explore"}
"""Commands that a test below runs with files of its own, or in Python."""


def imported(*lines, code=0, unwanted=()):
    """Run command lines in one fresh process; return the packages and modules imported at its end.

    Each ends with `code` and leaves the modules of `unwanted` alone.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([lines, sorted(unwanted)])],
        capture_output=True,
        text=True,
        check=True,
    )
    *ended, modules = map(json.loads, done.stdout.splitlines())
    for arguments, (ends, said, loaded) in zip(lines, ended, strict=True):
        assert (ends, loaded) == (code, []), (arguments, said)
    return {name.partition(".")[0] for name in modules}, set(modules)


CORPUS = [
    ["atlas", "--texts", "texts.txt", "--json", "--resume", "atlas.record"],
    ["merge", "atlas.record", "--json"],
]
"""Commands that read ``texts.txt``, in the order in which they need each other's files."""


def test_every_command_is_run_here():
    run = {line[0] for line in [*BUILT_IN, *CORPUS]}
    assert run | SEPARATE | {"align", "verify", "sweep", "train"} == set(COMMANDS)


def test_the_built_in_models_need_no_torch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text(f"{SENTENCE}\n{WORDS}\n")
    files = [
        word for end in ("json", "csv", "npz", "svg", "html") for word in ("--save", f"map.{end}")
    ]
    saved = ["heads", SENTENCE, *files]
    Path("rules.toml").write_text(f'[[check]]\nloss_on = "{WORDS}"\nat_most = 99\n')
    imported(*BUILT_IN, *CORPUS, ["check", "rules.toml"], saved, unwanted={*HEAVY, "rich.progress"})


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.long)])
def test_checkpoints_of_the_families_need_no_torch(kind, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("the cat sat\non the mat\n")
    lines = command_lines("checkpoint").values()
    named = [[*line, "--json", "--model", str(checkpoint(kind))] for line in lines]
    texts = ["--texts", "texts.txt"]
    compared = ["diff", "--dtype-b", "float32", *texts, "-q", str(checkpoint(kind))]
    imported(*named, compared, unwanted=HEAVY)


def test_a_session_ranks_heads_without_torch():
    program = (
        "import sys; from attnviz.inspect.explore.session import open_session; "
        "session = open_session('tiny'); "
        f"found = session.effects({SENTENCE!r}, lambda share: None); "
        "print(len(found.values), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["24", "False"]


@pytest.mark.long
def test_pictures_need_matplotlib_alone(tmp_path):
    files = [word for ending in ("png", "pdf") for word in ("--save", f"{tmp_path}/map.{ending}")]
    packages, modules = imported(["heads", SENTENCE, *files])
    assert packages & HEAVY == {"matplotlib"}
    assert "matplotlib.pyplot" not in modules


@pytest.mark.long
def test_gradients_of_the_bundled_model_need_torch_alone():
    packages, _ = imported(["ablate", "The cat sat.", "--method", "gradient", "--json"])
    assert packages & HEAVY == {"torch"}


def test_help_and_slips_need_no_numpy():
    light = {*HEAVY, "numpy", "tokenizers", "safetensors"}
    helps = [["heads"], ["patch"], ["generate"], ["patterns"]]
    imported(["--help"], ["--version"], *([*name, "--help"] for name in helps), [], unwanted=light)
    slips = [["head"], ["heads", "a", "--modle", "tiny"], ["heads", "a", "b"]]
    imported(*slips, code=2, unwanted=light)


def test_a_view_imports_no_exporter_and_no_intervention():
    _, modules = imported(["heads", SENTENCE])
    exporters = {"draw.files", "draw.svg", "draw.html", "draw.figure", "heads.data"}
    assert not modules & {f"attnviz.{name}" for name in exporters}
    begun = tuple(f"attnviz.engine.{name}" for name in ("attribution", "effects", "patching"))
    assert not [name for name in modules if name.startswith(begun)]


def test_an_answer_for_a_program_needs_nothing_that_draws():
    packages, modules = imported(["params", "--d-model", "4096", "--heads", "32", "--json"])
    assert not packages & (HEAVY | {"numpy", "tokenizers", "safetensors"})
    drawing = {"rich.console", "attnviz.draw.document", "attnviz.count.params.wording"}
    assert not modules & (drawing | {"attnviz.count.params.find_spec"})
