"""What a start does not import, proven in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnviz.cli.app import COMMANDS

HEAVY = {"torch", "transformers", "huggingface_hub", "keras", "matplotlib", "sympy", "pandas"}
WORDS = "the cat sat on the mat"
SENTENCE = "The cat sat on the mat because it was tired."

PROGRAM = """
import contextlib, io, json, sys
arguments = json.loads(sys.argv.pop())
sys.argv[:] = ["attnviz", *arguments]
from attnviz.cli.boundary import run
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    code = run()
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
print(json.dumps(sorted(sys.modules)))
"""


def imported(*arguments: str, code: int = 0) -> tuple[set[str], set[str]]:
    """The top-level packages and the modules that a run has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    packages, modules = done.stdout.splitlines()
    ended, names = json.loads(packages)
    assert ended == code, done.stderr
    return set(names), set(json.loads(modules))


BUILT_IN = [
    ["heads", SENTENCE],
    ["heads", SENTENCE, "--json"],
    ["heads", "나는 오늘 학교에 갔다 .", "--model", "mha", "--causal", "--explain"],
    ["heads", SENTENCE, "--token", "cat", "--sort", "entropy", "--values"],
    ["why", SENTENCE, "--head", "L1H0"],
    ["lens", SENTENCE, "--head", "L1H0"],
    ["link", SENTENCE, "--controls", "2"],
    ["generate", SENTENCE, "--tokens", "2", "--ablate", "L0H0"],
    ["scaling"],
    ["scaling", SENTENCE, "--from-model", "--json"],
    ["patterns"],
    ["patterns", SENTENCE, "--control", "random-weights", "--json"],
    ["ablate", "--json"],
    ["ablate", SENTENCE, "--json", "--by-token"],
    ["ablate", "--head", "3", "--json", "--mode", "resample"],
    ["patch", "--json"],
    ["patch", "The cat sat.", "The dog sat.", "--what", "key", "--metric", "kl", "--json"],
    ["prune", "--fraction", "0.1", "--json"],
    ["diff", "tiny", "--dtype-b", "float64", "--importance", "-q"],
    ["rollout", SENTENCE],
    ["heads", SENTENCE, "--cut", "it->cat"],
    ["heads", SENTENCE, "--ablate", "L1H0"],
    ["path", "L1H2", "--top", "3"],
    ["head", "L1H2", "--json"],
    ["report", "--json", "--cards", "2"],
    ["retrieve", "--lengths", "128", "--haystacks", "1", "--json"],
    ["params", "tiny", "--tokens", "64"],
    ["docs", "lens"],
    ["use"],
]

CORPUS = [
    ["atlas", "--texts", "texts.txt", "--json", "--resume", "atlas.record"],
    ["merge", "atlas.record", "--json"],
]
"""Commands that read ``texts.txt``, in the order in which they need each other's files."""

SEPARATE = {"check", "explore"}
"""Commands that a test of their own runs below."""

IN_TORCH = {"verify", "sweep", "train"}


def test_every_command_is_run_here() -> None:
    run = {line[0] for line in [*BUILT_IN, *CORPUS]}
    assert run | SEPARATE | IN_TORCH == set(COMMANDS)


@pytest.mark.parametrize("arguments", BUILT_IN, ids=lambda arguments: " ".join(arguments[:3:2]))
def test_the_built_in_models_need_no_torch(arguments: list[str]) -> None:
    packages, modules = imported(*arguments)
    assert not packages & HEAVY
    assert "rich.progress" not in modules


def test_a_corpus_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text(f"{SENTENCE}\n{WORDS}\n")
    for arguments in CORPUS:
        packages, _ = imported(*arguments)
        assert not packages & HEAVY, arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ["heads", WORDS, "--cut", "mat->cat", "--model"],
        ["heads", WORDS, "--ablate", "L1H0", "--model"],
        ["path", "L0H1", "the cat sat", "the mat sat", "--model"],
        ["head", "L0H1", WORDS, "--texts", "texts.txt", "--model"],
        ["report", "--texts", "texts.txt", "--cards", "1", "--model"],
        ["prune", "--fraction", "0.2", "--texts", "texts.txt", "--json", "--model"],
        ["diff", "--dtype-b", "float32", "--importance", "--texts", "texts.txt", "-q"],
    ],
    ids=lambda arguments: " ".join(arguments[:3:2]),
)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_checkpoints_of_the_families_need_no_torch(
    arguments: list[str],
    kind: str,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("the cat sat\non the mat\n")
    packages, _ = imported(*arguments, str(checkpoint(kind)))
    assert not packages & HEAVY


TOGETHER = """
import contextlib, io, json, sys
lines, heavy = json.loads(sys.argv.pop())
from attnviz.cli.boundary import run
for arguments in lines:
    sys.argv[:] = ["attnviz", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = run()
    found = [name for name in heavy if name in sys.modules]
    if code or found:
        print(arguments[0], code, *found)
        break
"""


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_commands_over_one_text_of_a_checkpoint_need_no_torch(
    kind: str, checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text(f"{WORDS}\non the mat\n")
    lines = [
        *([name, WORDS] for name in ("heads", "rollout", "why", "lens", "link", "patterns")),
        ["generate", WORDS, "--tokens", "2"],
        ["ablate", WORDS],
        ["patch", WORDS, "the mat sat on the mat", "--answer", "cat", "--foil", "mat"],
        ["atlas", "--texts", "texts.txt"],
    ]
    lines = [[*line, "--json", "--model", str(checkpoint(kind))] for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, json.dumps([lines, sorted(HEAVY)])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stdout, done.stdout


def test_rules_are_checked_without_torch(tmp_path: Path) -> None:
    rules = str(tmp_path / "rules.toml")
    for arguments in (["check", rules, "--init"], ["check", rules]):
        packages, _ = imported(*arguments)
        assert not packages & HEAVY


def test_a_session_ranks_heads_without_torch() -> None:
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


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_pictures_need_matplotlib_alone(ending: str, tmp_path: Path) -> None:
    packages, modules = imported("heads", SENTENCE, "--save", f"{tmp_path}/map.{ending}")
    assert packages & HEAVY == {"matplotlib"}
    assert "matplotlib.pyplot" not in modules


def test_gradients_of_the_bundled_model_need_torch_alone() -> None:
    packages, _ = imported("ablate", "The cat sat.", "--method", "gradient", "--json")
    assert "torch" in packages
    assert not packages & (HEAVY - {"torch"})


def test_saving_arrays_and_drawings_needs_no_matplotlib(tmp_path) -> None:
    files = [f"{tmp_path}/map{ending}" for ending in (".json", ".csv", ".npz", ".svg", ".html")]
    options = [word for file in files for word in ("--save", file)]
    packages, _ = imported("heads", SENTENCE, *options)
    assert not packages & HEAVY


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["heads", "--help"], 0),
        (["patch", "--help"], 0),
        (["generate", "--help"], 0),
        (["patterns", "--help"], 0),
        ([], 0),
        (["head"], 2),
        (["heads", "a", "--modle", "tiny"], 2),
        (["heads", "a", "b"], 2),
    ],
    ids=[
        "help",
        "version",
        "of heads",
        "of patch",
        "of generate",
        "of patterns",
        "nothing",
        "command",
        "option",
        "words",
    ],
)
def test_help_and_slips_need_no_numpy(arguments: list[str], code: int) -> None:
    packages, _ = imported(*arguments, code=code)
    assert not packages & (HEAVY | {"numpy", "tokenizers", "safetensors"})


def test_a_view_without_saving_imports_no_exporter() -> None:
    _, modules = imported("heads", SENTENCE)
    exporters = {"draw.files", "draw.svg", "draw.html", "draw.figure", "heads.data"}
    assert not modules & {f"attnviz.{name}" for name in exporters}


def test_an_answer_for_a_program_needs_nothing_that_draws() -> None:
    packages, modules = imported("params", "--d-model", "4096", "--heads", "32", "--json")
    assert not packages & (HEAVY | {"numpy", "tokenizers", "safetensors"})
    drawing = {"rich.console", "attnviz.draw.document", "attnviz.count.params.words"}
    assert not modules & (drawing | {"attnviz.count.params.config.read"})


def test_a_view_without_an_intervention_imports_none() -> None:
    _, modules = imported("heads", SENTENCE)
    begun = tuple(f"attnviz.engine.{name}" for name in ("attribution", "effects", "patching"))
    assert not [name for name in modules if name.startswith(begun)]
