"""What most tests share: one thread a process, the command line run inside it, tiny checkpoints.

On a busy machine two threads of small models wait for each other far longer than they compute, in
the processes that tests start as well: one is set before NumPy or torch is imported.

Golden screens lie in ``golden/`` beside their tests; after a wanted change of the drawing, write
them anew with ``ATTNVIZ_GOLDEN=write pytest tests/CAPABILITY`` and look at the difference.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import io
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyte
import pytest
from hypothesis import HealthCheck, settings
from rich.cells import cell_len
from rich.console import Console

from attnviz.draw.blocks import Block
from attnviz.draw.palette import colour_table, to_hex
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.rows import Conditions, TextFacts, whole_scores
from attnviz.records import (
    AttentionRecord,
    HeadsRecord,
    Kind,
    LayerWeights,
    ModelInfo,
    Tokens,
)

from .small_models import SPECIAL, TINY, VOCABULARY, random_model, word_tokenizer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, where Ctrl-C is ignored: processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test has a deadline in seconds: a machine may be busy.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

SENTENCE = "The cat sat on the mat because it was tired."
_SPEAKING = (
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
    "TERM",
    "ATTNVIZ_TRACEBACK",
    "ATTNVIZ_MODEL",
)


@dataclass(frozen=True)
class Result:
    """What a run left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        """Standard output as JSON that has no NaN or Infinity."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


Run = Callable[..., Result]


_numbers = count()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache of these tests, in which labels are kept: nobody's own is touched."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Matplotlib's list of fonts takes seconds to make, whoever it is for.
    monkeypatch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR", str(home / "matplotlib")))
    cache = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cache / "config"))
    return cache


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """``run("heads", "A text.", stdin=b"", encoding="utf-8", env={})``, in an empty folder.

    However busy the machine is, no run says how far it has come.
    """
    from attnviz.cli import boundary, progress

    monkeypatch.setattr(progress, "_PATIENCE", math.inf)

    for name in _SPEAKING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(
        *arguments: str,
        stdin: bytes = b"",
        encoding: str = "utf-8",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        streams = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["attnviz", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding))
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            code = boundary.run()
        out, err = (_content(stream).decode(encoding) for stream in streams.values())
        return Result(code, out, err)

    return call


_DRAWN = {"--full", "--no-full", "--ascii", "--explain", "--quiet"}
_DRAWN_BY_VALUE = {"--width", "--color"}
_measured: dict[tuple[str, ...], Any] = {}
"""The reports of this process's tests, by what was asked and by what the named files contain."""


@pytest.fixture
def redrawn(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """As ``run``, but what was asked before is not measured again where only its drawing differs.

    For tests of screens: files that the arguments name must not change between two runs.
    """
    import typer

    from attnviz.cli import outlet

    opened, shown = outlet.open_outlet, outlet.Outlet.show
    asked: tuple[str, ...] = ()  # empty: measure

    def open_or_draw(output: Any) -> Any:
        made = opened(output)
        if asked and asked in _measured:
            shown(made, _measured[asked])
            raise typer.Exit
        return made

    def keep(made: Any, report: Any) -> None:
        _measured[asked] = report
        shown(made, report)

    monkeypatch.setattr(outlet, "open_outlet", open_or_draw)
    monkeypatch.setattr(outlet.Outlet, "show", keep)

    def call(*arguments: str, **settings: Any) -> Result:
        nonlocal asked
        words = iter(arguments)
        kept = []
        for word in words:
            if word in _DRAWN_BY_VALUE:
                next(words)
            elif word not in _DRAWN:
                kept.append(word)
        named = [tmp_path / word for word in kept if len(word) < 100]
        here = [path for path in named if path.is_relative_to(tmp_path) and path.exists()]
        read = [path.read_bytes().hex() if path.is_file() else str(path) for path in here]
        asked = (*read, *kept)
        try:
            return run(*arguments, **settings)
        finally:
            asked = ()

    return call


def _content(stream: io.TextIOWrapper) -> bytes:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


@pytest.fixture
def document(run: Run) -> Callable[..., Any]:
    """The JSON object of ``attnviz heads ARGUMENTS --json``."""

    def call(*arguments: str, **settings: Any) -> Any:
        return run("heads", *arguments, "--json", **settings).document

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """The one line of a run that must fail: ``refused(code, *arguments)``."""

    def call(code: int, *arguments: str, **settings: Any) -> str:
        result = run(*arguments, **settings)
        assert result.code == code, result
        assert result.out == ""
        assert result.err.startswith("attnviz: ")
        assert result.err.endswith("\n")
        assert result.err.count("\n") == 1
        assert "Traceback" not in result.err
        assert result.err.startswith("attnviz: unexpected") == (code == 1)
        return result.err.removeprefix("attnviz: ").rstrip("\n")

    return call


@pytest.fixture(scope="session")
def program() -> Sequence[str]:
    """The command line as a process of its own."""
    return (sys.executable, "-c", "from attnviz.cli.main import main; main()")


@pytest.fixture
def environment() -> dict[str, str]:
    """The variables of a process that nobody has set up for colour or width."""
    kept = {name: value for name, value in os.environ.items() if name not in _SPEAKING}
    return kept | {"PYTHONUNBUFFERED": ""}


POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals, shells or files of POSIX")

Start = Callable[..., Any]
"""Starts the command line in a terminal; returns the ``pexpect.spawn``."""


@pytest.fixture
def start(program: Sequence[str], environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts the command line in a terminal of its own, which has colours."""
    pexpect = pytest.importorskip("pexpect")
    if not hasattr(pexpect, "spawn"):
        pytest.skip("pexpect opens terminals of POSIX alone")
    children = []

    def spawn(*arguments: str, columns: int = 80, rows: int = 24, **env: str) -> Any:
        child = pexpect.spawn(
            program[0],
            [*program[1:], *arguments],
            env=environment | {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | env,
            dimensions=(rows, columns),
            cwd=tmp_path,
            timeout=60,
            encoding="utf-8",
            codec_errors="replace",  # the terminal's own ^C may stand inside a character
        )
        children.append(child)
        return child

    yield spawn
    for child in children:
        child.close(force=True)


def interrupted(child: Any) -> str:
    """What a process says from Ctrl-C to its end, which tells of the interruption."""
    child.sendintr()
    output: str = child.read()
    child.wait()
    assert child.exitstatus == 130, output
    assert "Traceback" not in output
    return output


def finished(child: Any) -> str:
    """What a process writes until it ends well."""
    output: str = child.read()
    child.wait()
    assert child.exitstatus == 0, output
    return output


def on_screen(output: str, columns: int = 80) -> pyte.Screen:
    """What output leaves on a screen so tall that nothing scrolls away."""
    shown = pyte.Screen(columns, 400)
    pyte.Stream(shown).feed(output)
    return shown


@pytest.fixture
def screen(start: Start) -> Callable[..., pyte.Screen]:
    """The screen that a finished run leaves."""

    def show(*arguments: str, columns: int = 80, **settings: Any) -> pyte.Screen:
        return on_screen(finished(start(*arguments, columns=columns, **settings)), columns)

    return show


def rows(screen: pyte.Screen) -> list[str]:
    return [line.rstrip() for line in screen.display]


def console(terminal: bool, quiet: bool = False) -> Console:
    """Standard error, on a terminal or not; ``printed`` says what was written to it."""
    return Console(
        file=io.StringIO(),
        width=100,
        force_terminal=terminal,
        quiet=quiet,
        markup=False,
        emoji=False,
        _environ={"TERM": "xterm"},
    )


def printed(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def in_fresh_process(
    code: str, modules: Sequence[str], *arguments: str, folder: Path | None = None
) -> tuple[str, str]:
    """Runs code in a process of its own: its standard output, and standard error.

    At the end of standard error stand those of the modules that have been imported by then.
    """
    telling = f"import sys; sys.stderr.write(','.join(sorted({{*{modules!r}}} & {{*sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{telling}", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small matrices are slower on several threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def save_tokenizer(directory: Path) -> None:
    word_tokenizer().save_pretrained(directory)


def _random_model(kind: str) -> Any:
    ids = SPECIAL if kind in ("gpt2", "llama") else {"pad_token_id": 0}
    return random_model(TINY[kind], vocab_size=VOCABULARY, **ids)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A directory with a tiny random ``gpt2``, ``llama`` (grouped), ``bert`` or ``t5``."""
    import torch
    from transformers.utils import logging

    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            torch.manual_seed(7)
            logging.disable_progress_bar()
            made[kind] = tmp_path_factory.mktemp("checkpoints") / kind
            _random_model(kind).save_pretrained(made[kind])
            save_tokenizer(made[kind])
        return made[kind]

    return get


@pytest.fixture(scope="session")
def trained_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a BERT whose heads attend as trained ones do."""
    from .bert_by_hand import write_bert

    directory = tmp_path_factory.mktemp("checkpoints") / "bert-by-hand"
    write_bert(directory)
    return directory


_SHOWN = ("<s>", " The", " cat", " saw", " the", " cat", ".")


def tokens_of(texts: Sequence[str]) -> Tokens:
    numbers = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return Tokens(
        tuple(numbers[text] for text in texts), tuple(texts), tuple(t == "<s>" for t in texts)
    )


def random_maps(heads: int, queries: int, keys: int, causal: bool, seed: int) -> np.ndarray:
    """Weights (head, query, key) between nothing and everything."""
    raw = np.random.default_rng(seed).dirichlet(np.full(keys, 0.3), size=(heads, queries)) + 1e-4
    weights = np.tril(raw) if causal else raw
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def make_report(
    texts: Sequence[str] = _SHOWN,
    *,
    keys: Sequence[str] | None = None,
    heads: Sequence[int] = (3, 3),
    weights: Sequence[np.ndarray] | None = None,
    causal: bool = True,
    kind: Kind = "self",
    kv_heads: int | None = None,
    selected: bool = False,
    index_base: int = 0,
    sorted_by: str | None = None,
    name: str = "made",
    notes: tuple[str, ...] = (),
    revision: str | None = "0123456789abcdef",
    text: str = "a text",
    target: str | None = None,
    kept: Sequence[int] | None = None,
    dtype: type = np.float32,
) -> HeadsRecord:
    """A report; ``heads`` counts the heads of each layer, ``weights`` gives each layer's maps.

    kept: the places of those that are there, of a layer that has more.
    """
    queries = tokens_of(texts)
    key_tokens = queries if keys is None else tokens_of(keys)
    causal = causal and keys is None and len(texts) > 1
    if weights is None:
        weights = [
            random_maps(count, len(queries), len(key_tokens), causal, seed)
            for seed, count in enumerate(heads)
        ]
    layers = tuple(
        LayerWeights(at, tuple(places), maps[list(places)].astype(dtype))
        for at, maps in enumerate(weights)
        for places in [range(len(maps)) if kept is None else kept]
    )
    most = max(len(maps) for maps in weights)
    info = ModelInfo(
        name, revision, "None", "float32", len(layers), most, kv_heads or most, 8, notes=notes
    )
    record = AttentionRecord(info, kind, causal, queries, key_tokens, layers)
    scores = head_scores(record)
    if sorted_by is not None:
        scores = tuple(sorted(scores, key=lambda entry: entry.scores[sorted_by] or 0.0))
    notable = notable_heads(scores, 3)
    return HeadsRecord(record, scores, notable, selected, index_base, sorted_by, text, target)


@dataclass(frozen=True)
class Terminal:
    """What a terminal shows after a block was printed on it, cell by cell."""

    rows: list[list[pyte.screens.Char]]
    steps: dict[str, set[int]]

    def text(self, y: int) -> str:
        return "".join(cell.data for cell in self.rows[y]).rstrip()

    def find(self, text: str) -> tuple[int, int]:
        """The row and column at which ``text`` starts."""
        for y in range(len(self.rows)):
            if text in self.text(y):
                return y, cell_len(self.text(y).partition(text)[0])
        raise AssertionError(f"{text!r} is not on the screen")

    def cell(self, y: int, x: int) -> tuple[set[int] | None, set[int] | None]:
        """The steps of the palette that the upper and the lower half show; None is blank."""
        cell = self.rows[y][x]
        back = None if cell.bg == "default" else self.steps[cell.bg]
        if cell.data == "▀":
            return self.steps[cell.fg], back
        if cell.data == "▄":
            return back, self.steps[cell.fg]
        return back, back


@pytest.fixture(scope="session")
def look() -> Callable[..., Terminal]:
    """Prints a block on a truecolor terminal and reads the screen back."""

    def show(block: Block, columns: int, palette: str = "viridis") -> Terminal:
        stream = io.StringIO()
        console = Console(
            file=stream, force_terminal=True, color_system="truecolor", width=columns, height=9
        )
        console.print(block, end="", soft_wrap=True)
        screen = pyte.Screen(columns, len(block.lines) + 1)
        screen.set_mode(pyte.modes.LNM)
        pyte.Stream(screen).feed(stream.getvalue())
        rows = [[screen.buffer[y][x] for x in range(columns)] for y in range(len(block.lines))]
        steps: dict[str, set[int]] = {}
        for step, colour in enumerate(colour_table(palette)):
            steps.setdefault(to_hex(colour)[1:], set()).add(step)
        return Terminal(rows, steps)

    return show


def measured(
    name: str,
    weights: np.ndarray,
    ids: Sequence[int] | None = None,
    special: Sequence[bool] | None = None,
    *,
    causal: bool = True,
) -> np.ndarray:
    """One measure of whole matrices (..., query, key); every token different unless told."""
    queries, keys = weights.shape[-2:]
    kind: Kind = "self" if queries == keys else "cross"

    def tokens(count: int) -> Tokens:
        return Tokens(
            tuple(range(count)) if ids is None else tuple(ids),
            ("x",) * count,
            (False,) * count if special is None or len(special) != count else tuple(special),
        )

    text = TextFacts(tokens(queries), tokens(keys), Conditions(kind, causal))
    return whole_scores(text, weights, [name])[name]


@pytest.fixture(scope="session")
def reports() -> Callable[..., HeadsRecord]:
    """Makes reports of made-up weights."""
    return make_report


@pytest.fixture(scope="session")
def step_of() -> Callable[[float], int]:
    """A weight's step, from the sentence in the legend: colour is the square root."""
    return lambda weight: round(float(weight) ** 0.5 * 255)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a screen with ``golden/NAME.txt`` beside the test; see the top."""
    folder = request.path.parent / "golden"

    def check(name: str, screen: str) -> None:
        path = folder / f"{name}.txt"
        if os.environ.get("ATTNVIZ_GOLDEN") == "write":
            path.write_text(screen, encoding="utf-8")
        assert screen == path.read_text(encoding="utf-8")

    return check


def without_times(document: Any) -> Any:
    """Return a document of JSON without the durations at any depth."""
    if isinstance(document, dict):
        kept = {
            key: each for key, each in document.items() if key != "timings" and "second" not in key
        }
        return {key: without_times(each) for key, each in kept.items()}
    return [*map(without_times, document)] if isinstance(document, list) else document
