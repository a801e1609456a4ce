"""The command line run inside a test's process: what it leaves, a refusal, a report drawn again."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from dataclasses import dataclass

import pytest
from rich.cells import cell_len

from .terminals import SPEAKING

_DRAWN = {"--full", "--no-full", "--ascii", "--explain", "--quiet", "-q"}
_DRAWN_BY_VALUE = {"--width", "--color", "--save"}
_WRITE = {"--init", "--out", "--resume"}
_measured = {}
"""The reports of this process's tests, by what was asked and by what the named files contain."""


@dataclass(frozen=True)
class Result:
    """What a run left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def document(self):
        """Standard output as JSON that has no NaN or Infinity."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """``run("heads", "A text.", stdin=b"", encoding="utf-8", env={})``, in an empty folder.

    However busy the machine is, no run says how far it has come. terminal: standard output says
    that it is one, of the size that ``COLUMNS`` and ``LINES`` give.
    """
    from attnviz.cli import boundary, progress

    monkeypatch.setattr(progress, "_PATIENCE", math.inf)

    for name in SPEAKING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments, stdin=b"", encoding="utf-8", env=None, terminal=False):
        streams = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
        if terminal:
            monkeypatch.setattr(streams["stdout"], "isatty", lambda: True)
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


def _content(stream):
    stream.flush()
    return stream.buffer.getvalue()


def json_of(command, *further, runner="run"):
    """Return a fixture: the JSON object of ``attnviz COMMAND ARGUMENTS --json``."""

    def made(request):
        call = request.getfixturevalue(runner)
        return lambda *asked, **options: (
            call(command, *asked, "--json", *further, **options).document
        )

    return pytest.fixture(made)


document = json_of("heads")


@pytest.fixture
def refused(run):
    """The one line of a run that must fail: ``refused(code, *arguments)``."""

    def call(code, *arguments, **settings):
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


@pytest.fixture
def fitted(redrawn):
    """The first screen of a command, which must fit: ``fitted(columns, lines, *arguments)``."""

    def call(columns, lines, *arguments):
        size = {"COLUMNS": str(columns), "LINES": str(lines)}
        result = redrawn(*arguments, "--no-full", env=size)
        assert result.code == 0, result.err
        assert len(result.lines) < lines  # and one for the prompt
        plain = [re.sub("\x1b[^m]*m", "", line) for line in result.lines]
        assert max(map(cell_len, plain)) <= columns
        return result

    return call


@pytest.fixture
def redrawn(run, monkeypatch, tmp_path):
    """As ``run``, but what was asked before is not measured again where only its drawing differs.

    For tests of screens and saved files: those that the arguments name are part of what is asked if
    they lie in the test's folder; others must not change. ``--json`` and a terminal ask
    anew, for what is not drawn is not measured, and so does what writes files of its own.
    """
    import typer

    from attnviz.cli.outlet import Outlet

    opened, shown = Outlet.open, Outlet.show
    asked = ()  # empty: measure

    def open_or_draw(*given, **options):
        made = opened(*given, **options)
        if asked and asked in _measured:
            shown(made, _measured[asked])
            raise typer.Exit
        return made

    def keep(made, report):
        if asked:
            _measured[asked] = report
        shown(made, report)

    monkeypatch.setattr(Outlet, "open", open_or_draw)
    monkeypatch.setattr(Outlet, "show", keep)

    def call(*arguments, **settings):
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
        where = ("terminal",) * bool(settings.get("terminal"))
        asked = () if _WRITE & {*arguments} else (*where, *read, *kept)
        try:
            return run(*arguments, **settings)
        finally:
            asked = ()

    return call


@pytest.fixture
def reported(redrawn):
    """Return the report of a command line that names no file, measured once a process."""

    def call(*arguments):
        if arguments not in _measured:
            assert redrawn(*arguments).code == 0
        return _measured[arguments]

    return call
