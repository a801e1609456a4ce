"""The commands of the README and of the manual print what is said there.

In a ``console`` block a line that starts with ``$ `` is a command and the lines up to the next one
are its output, standard error included where it fails. Every block runs in an empty folder of its
own, in a terminal of 80 columns and 24 lines without colour; blanks at line ends aside, its output
must be the page's, where a line that is only ``…`` stands for any lines left out. A block is
skipped only where the line above it says why: ``<!-- not run: reason -->``. ``python`` blocks run
as well; one that starts with ``>>> `` is a session, whose output is compared in the same way.

A command that is attnviz alone runs inside this process, what needs a shell in one of its own. The
blocks of the README are run always, those of the manual with ``-m long``: what they print is drawn
by tests/oracle and the screens' own tests, too.

``ATTNVIZ_UPDATE_README=1 python -m pytest tests/test_readme.py -n 0`` writes the real outputs into
the pages; where lines were left out, those stay that are most like the lines before.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from difflib import SequenceMatcher
from pathlib import Path

import pytest

import attnviz

from .manual_pages import CONTINUED, PAGES, PROMPT, README, blocks
from .terminals import POSIX

PYTHON = Path(attnviz.__file__).parent / "docs" / "python.md"
UPDATE = "ATTNVIZ_UPDATE_README"
LEFT_OUT = "…"
_PROGRESS = re.compile(r": \d+% done, about .+ left$")
TERMINAL = {"COLUMNS": "80", "LINES": "24", "TERM": "dumb"}
_SPEAKING = ("NO_COLOR", "FORCE_COLOR", "LINES", "TERM")


def agrees(printed, real):
    """Whether the real lines are the printed ones, where ``…`` may stand for any lines."""
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == LEFT_OUT else re.escape(line.rstrip()) + "\n"
        for line in printed
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in real)) is not None


def renewed(printed, real):
    """The real lines, shortened as the printed ones were: what agrees stays as it is."""
    if agrees(printed, real):
        return list(printed)
    real = [line.rstrip() for line in real]
    parts = [
        part.splitlines() for part in re.split(r"(?m)^…\n", "".join(f"{x}\n" for x in printed))
    ]
    if not parts[1:]:
        return real
    lines, at = list[str](), 0
    for place, part in enumerate(parts):
        last = len(real) - len(part)
        starts = range(at, 1) if not place else range(at if parts[place + 1 :] else last, last + 1)
        at = max(starts, key=lambda start: alike(part, real[start : start + len(part)]), default=at)
        lines += [*[LEFT_OUT] * bool(place), *real[at : at + len(part)]]
        at += len(part)
    return lines


def alike(part, lines):
    """How much two blocks of lines have in common, from 0 to 1."""
    return SequenceMatcher(None, "\n".join(part), "\n".join(lines), autojunk=False).ratio()


def execute(command, folder, run):
    """Return the lines that a command prints; those of standard error only where it fails.

    Progress is left out, which only a slow machine prints.
    """
    words = shlex.split(command.replace("\\\n", " "))
    if words[0] == "attnviz" and not {*command} & {*"|>;&$`*"}:
        result = run(*words[1:], terminal=True, env=TERMINAL)
        return [*result.lines, *(result.err.splitlines() if result.code else [])]
    return execute_in_shell(command, folder)


def execute_in_shell(command, folder):
    """Return what `execute` returns of a command that a shell must read."""
    import pty

    kept = {name: value for name, value in os.environ.items() if name not in _SPEAKING}
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    screen, stdout = pty.openpty()
    with (
        subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env=kept | TERMINAL | {"PATH": scripts, "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        ) as process,
        ThreadPoolExecutor(1) as beside,
    ):
        shown = beside.submit(read_screen, screen)
        _, errors = process.communicate(timeout=120)
        os.close(stdout)
        lines = shown.result().splitlines()
    said = [line for line in errors.splitlines() if not _PROGRESS.search(line)]
    return [*lines, *(said if process.returncode else [])]


def read_screen(screen):
    """What is printed on a terminal until all who write have closed it."""
    shown = b""
    with suppress(OSError), open(screen, "rb", buffering=0) as stream:  # the end is an error
        while part := stream.read(65536):
            shown += part
    return shown.decode("utf-8").replace("\r\n", "\n")


def run_session(statements):
    """The lines that each statement prints, in one namespace, as a REPL echoes it."""
    names = {"__name__": "__main__"}
    outputs = []
    for step in statements:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(f"{step.command}\n", "README.md", "single"), names)
        outputs.append(printed.getvalue().splitlines())
    return outputs


def rewrite(text, block, outputs):
    """The text with new outputs in one of its blocks."""
    lines = []
    steps = block.statements if block.is_session else block.steps
    for step, output in zip(steps, outputs, strict=True):
        typed = f"$ {step.command}"
        if block.is_session:
            typed = PROMPT + step.command.replace("\n", f"\n{CONTINUED}").rstrip()
        lines += [typed, *output]
    end = block.start + len(block.body)
    return text[: block.start] + "".join(f"{line}\n" for line in lines) + text[end:]


def found(kind):
    """The blocks that are run, by their page and their place in it."""
    params = []
    for page in PAGES:
        for place, block in enumerate(blocks(page.read_text(encoding="utf-8"))):
            if block.kind == kind and block.reason is None:
                name = f"{page.stem}: {block.body.splitlines()[0][:60]}"
                marks = () if page == README else pytest.mark.long
                params.append(pytest.param(page, place, id=name, marks=marks))
    return params


def compare(page, place, real):
    """Assert that the real outputs are the page's, or write them into it where that is asked."""
    text = page.read_text(encoding="utf-8")
    block = blocks(text)[place]
    steps = block.statements if block.is_session else block.steps
    if os.environ.get(UPDATE):
        new = [renewed(step.output, lines) for step, lines in zip(steps, real, strict=True)]
        page.write_text(rewrite(text, block, new), encoding="utf-8")
        return
    for step, lines in zip(steps, real, strict=True):
        if not agrees(step.output, lines):
            assert list(step.output) == [line.rstrip() for line in lines], step.command


@pytest.fixture
def plain_terminal(tmp_path, monkeypatch):
    """An empty folder, 80 columns, no wish about colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in _SPEAKING:
        monkeypatch.delenv(name, raising=False)


@POSIX
@pytest.mark.parametrize(("page", "place"), found("console"))
def test_commands_print_what_is_said(page, place, tmp_path, redrawn):
    block = blocks(page.read_text(encoding="utf-8"))[place]
    compare(page, place, [execute(step.command, tmp_path, redrawn) for step in block.steps])


@pytest.mark.usefixtures("plain_terminal")
@pytest.mark.parametrize(("page", "place"), found("python"))
def test_python_runs(page, place):
    block = blocks(page.read_text(encoding="utf-8"))[place]
    if block.is_session:
        compare(page, place, run_session(block.statements))
    else:
        exec(block.body, {"__name__": "readme"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_points_at_is_there(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(
    ("printed", "real", "expected"),
    [
        ([], [], True),
        ([], ["a"], False),
        (["a"], [" a"], False),
        (["a.c"], ["abc"], False),
        (["…"], [], True),
        (["a", "…", "d"], ["a", "b", "c", "d"], True),
        (["a", "…", "d"], ["a", "b", "c"], False),
        (["…", "c", "…"], ["a", "b", "c", "d"], True),
    ],
)
def test_agreement(printed, real, expected):
    assert agrees(printed, real) == expected


def test_the_python_example_runs_on_a_model_that_is_loaded(checkpoint, tmp_path, monkeypatch):
    """With a small GPT-2 of few layers in the place of the one that it downloads."""
    monkeypatch.chdir(tmp_path)
    (example,) = (
        block.body
        for block in blocks(PYTHON.read_text(encoding="utf-8"))
        if block.kind == "python" and '"openai-community/gpt2"' in block.body
    )
    here = example.replace('"openai-community/gpt2"', repr(str(checkpoint("gpt2"))))
    names = {}
    exec(here.replace("L5H1", "L1H1"), names)
    assert Path("maps.html").stat().st_size > 10_000
    assert names["maps"]["L1H1"].ndim == 2
